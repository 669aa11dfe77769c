//! Reads the first bytes of a file that SQLite may have open in this process.
//!
//! On Unix, closing a file ends all locks that the process has on it, also those of SQLite's connections. The next
//! process that closes the queue would take itself for the last and remove the log that this one still writes. So a
//! file that was opened here stays open.

use std::{io, path::Path};

/// The first bytes of a file, at most `length`.
#[cfg(unix)]
pub(super) fn beginning(path: &Path, length: usize) -> io::Result<Vec<u8>> {
    use std::{
        collections::{HashMap, hash_map::Entry},
        fs::{self, File, Metadata},
        os::unix::fs::{FileExt, MetadataExt},
        sync::{Mutex, PoisonError},
    };

    /// By device and number. A number is not used again while its file is open.
    static OPEN: Mutex<Option<HashMap<(u64, u64), File>>> = Mutex::new(None);

    let identity = |metadata: &Metadata| (metadata.dev(), metadata.ino());
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let open = open.get_or_insert_default();
    let found = identity(&fs::metadata(path)?);
    let file = if open.contains_key(&found) {
        &open[&found]
    } else {
        let file = File::open(path)?;
        match open.entry(identity(&file.metadata()?)) {
            Entry::Vacant(place) => place.insert(file),
            Entry::Occupied(place) => {
                // It was renamed to this path just now, and closing it would end its locks.
                std::mem::forget(file);
                place.into_mut()
            }
        }
    };
    let mut bytes = vec![0; length];
    let mut read = 0;
    while read < length {
        match file.read_at(&mut bytes[read..], read as u64)? {
            0 => break,
            more => read += more,
        }
    }
    bytes.truncate(read);
    Ok(bytes)
}

/// The first bytes of a file, at most `length`.
#[cfg(not(unix))]
pub(super) fn beginning(path: &Path, length: usize) -> io::Result<Vec<u8>> {
    use std::io::Read;

    let mut bytes = Vec::with_capacity(length);
    std::fs::File::open(path)?
        .take(length as u64)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

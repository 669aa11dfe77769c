//! Plain and compressed files: gzip and Zstandard.

use std::{
    fmt,
    fs::{self, File},
    io::{self, BufRead, BufReader, Read},
    path::Path,
};

use super::{progress::BytesRead, zstandard::Frames};
use crate::error::DataError;

/// Format of a compressed file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// gzip, of one member or several.
    Gzip,
    /// Zstandard, of one frame or several.
    Zstd,
}

impl Compression {
    const ALL: [Self; 2] = [Self::Gzip, Self::Zstd];

    fn extension(self) -> &'static str {
        match self {
            Self::Gzip => "gz",
            Self::Zstd => "zst",
        }
    }

    fn first_bytes(self) -> &'static [u8] {
        match self {
            Self::Gzip => b"\x1f\x8b",
            Self::Zstd => b"\x28\xb5\x2f\xfd",
        }
    }

    /// The format by the last extension of a name.
    fn of(path: &Path) -> Option<Self> {
        let extension = path.extension()?;
        let is_it = |it: &Self| extension.eq_ignore_ascii_case(it.extension());
        Self::ALL.into_iter().find(is_it)
    }

    /// The command that tests an archive.
    pub(crate) fn test(self) -> &'static str {
        match self {
            Self::Gzip => "gzip -t",
            Self::Zstd => "zstd -t",
        }
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gzip => "gzip",
            Self::Zstd => "Zstandard",
        })
    }
}

/// The extension of a file's content, in lower case: `jsonl` of `a.jsonl` and of `a.JSONL.gz`.
pub(crate) fn extension(path: &Path) -> Option<String> {
    let inner = Compression::of(path).and_then(|_| path.file_stem());
    let extension = inner.map_or(path, Path::new).extension()?;
    Some(extension.to_string_lossy().to_ascii_lowercase())
}

/// Refuses what is not a regular file.
pub(super) fn refuse_special(path: &Path) -> Result<(), DataError> {
    let metadata = fs::metadata(path).map_err(|source| cannot_read(path, source))?;
    if metadata.is_file() {
        Ok(())
    } else {
        Err(DataError::NotAFile(path.to_owned()))
    }
}

/// The bytes of a file, decompressed if its name or its first bytes indicate a compressed file.
pub(super) fn open(path: &Path) -> Result<Box<dyn Read>, DataError> {
    // Opening a pipe blocks until a writer comes, and files are read more than once.
    refuse_special(path)?;
    decompressed(path).map_err(|source| cannot_read(path, source))
}

fn decompressed(path: &Path) -> io::Result<Box<dyn Read>> {
    let file = Counted(File::open(path)?, BytesRead::default());
    let mut file = BufReader::with_capacity(1 << 18, file);
    Ok(match compression(path, file.fill_buf()?) {
        None => Box::new(file),
        Some(Compression::Gzip) => Box::new(flate2::bufread::MultiGzDecoder::new(file)),
        Some(Compression::Zstd) => Box::new(Frames::new(file)),
    })
}

/// A file that says how far it was read.
struct Counted(File, BytesRead);

impl Read for Counted {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let read = self.0.read(to)?;
        self.1.add(read as u64);
        Ok(read)
    }
}

fn compression(path: &Path, start: &[u8]) -> Option<Compression> {
    let begins = |it: &Compression| start.starts_with(it.first_bytes());
    let by_content = Compression::ALL.into_iter().find(begins);
    by_content.or_else(|| Compression::of(path))
}

/// The error of a file that a decoder or the operating system failed on.
pub(crate) fn cannot_read(path: &Path, source: io::Error) -> DataError {
    let path = path.to_owned();
    // Decoders create errors without a code of the operating system.
    let made = source.raw_os_error().is_none();
    let start =
        File::open(&path).and_then(|file| BufReader::new(file).fill_buf().map(<[u8]>::to_vec));
    match start.ok().and_then(|start| compression(&path, &start)) {
        Some(compression) if made => DataError::Archive {
            path,
            compression,
            source,
        },
        _ => DataError::Io { path, source },
    }
}

//! What a file is, by its first bytes, before SQLite may touch it: SQLite takes an empty file for an
//! empty database, and deletes the log beside it.

use std::{
    fs::File,
    io::{ErrorKind, Read},
    path::Path,
};

use crate::{QueueError, schema::APPLICATION};

const MAGIC: &[u8; 16] = b"SQLite format 3\0";
const LENGTH: usize = 100;
const APPLICATION_AT: usize = 68;

/// Refuses a file that is not a queue.
pub(crate) fn inspect(path: &Path) -> Result<(), QueueError> {
    let mut header = [0; LENGTH];
    match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let path = path.to_owned();
            Err(QueueError::Missing { path })
        }
        opened => opened
            .and_then(|file| fill(file, &mut header))
            .map_err(|source| QueueError::Io {
                action: "read",
                path: path.to_owned(),
                source,
            })
            .and_then(|read| judge(path, &header[..read])),
    }
}

fn fill(mut file: File, header: &mut [u8]) -> std::io::Result<usize> {
    let mut read = 0;
    while read < header.len() {
        match file.read(&mut header[read..]) {
            Ok(0) => break,
            Ok(more) => read += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}

fn judge(path: &Path, header: &[u8]) -> Result<(), QueueError> {
    let path = path.to_owned();
    if header.is_empty() {
        let problem = "it is empty".to_owned();
        return Err(QueueError::Corrupt { path, problem });
    }
    if !header.starts_with(&MAGIC[..header.len().min(MAGIC.len())]) {
        let problem = "it does not begin as a SQLite file does".to_owned();
        return Err(QueueError::NotAQueue { path, problem });
    }
    let application = header[..]
        .get(APPLICATION_AT..)
        .and_then(|rest| rest.first_chunk())
        .map(|bytes| u32::from_be_bytes(*bytes));
    match application {
        _ if header.len() < LENGTH => {
            let problem = format!("it ends after {} bytes", header.len());
            Err(QueueError::Corrupt { path, problem })
        }
        Some(APPLICATION) => Ok(()),
        found => {
            let found = found.unwrap_or_default();
            let problem =
                format!("its application_id is {found:#010x}, a queue's is {APPLICATION:#010x}");
            Err(QueueError::NotAQueue { path, problem })
        }
    }
}

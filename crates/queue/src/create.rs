//! A new queue, which appears in its place whole or not at all.

use std::{
    fs,
    io::{self, ErrorKind},
    path::{Path, PathBuf},
};

use rusqlite::Connection;

use crate::{
    QueueError,
    connection::{At, configure},
    schema::{APPLICATION, TABLES, VERSION},
};

/// Makes the file, unless there is one. Only the holder of the server's lock may call this.
///
/// # Errors
///
/// [`QueueError::Corrupt`] if the file is gone but its log is there: a new file would take the log for
/// its own, or the tasks in it would be lost.
pub(crate) fn create_if_missing(path: &Path) -> Result<(), QueueError> {
    if exists(path)? {
        return Ok(());
    }
    let log = beside(path, "-wal");
    if exists(&log)? {
        return Err(QueueError::Corrupt {
            path: path.to_owned(),
            problem: format!("it is gone, but its log {} is there", log.display()),
        });
    }
    let draft = beside(path, ".new");
    for suffix in ["", "-journal", "-wal", "-shm"] {
        let file = beside(&draft, suffix);
        match fs::remove_file(&file) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(failed("remove", &file, error));
            }
            _ => {}
        }
    }
    write(&draft).at(&draft)?;
    fs::rename(&draft, path).map_err(|error| failed("create", path, error))?;
    sync_directory(path).map_err(|error| failed("create", path, error))
}

/// Commits first with a rollback journal, then says in the header that a log is used from now on: the
/// draft is one file, and on the disk, when this returns.
fn write(draft: &Path) -> rusqlite::Result<()> {
    let mut connection = Connection::open(draft)?;
    configure(&mut connection)?;
    connection.execute_batch(&format!(
        "BEGIN IMMEDIATE;
         PRAGMA application_id = {APPLICATION};
         PRAGMA user_version = {VERSION};
         {TABLES}
         COMMIT;"
    ))?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.close().map_err(|(_, error)| error)
}

/// The rename must be on the disk before a task is accepted into the file.
#[cfg(unix)]
fn sync_directory(path: &Path) -> io::Result<()> {
    path.parent()
        .map_or(Ok(()), |directory| fs::File::open(directory)?.sync_all())
}

#[cfg(not(unix))]
fn sync_directory(_path: &Path) -> io::Result<()> {
    Ok(())
}

fn exists(path: &Path) -> Result<bool, QueueError> {
    path.try_exists()
        .map_err(|error| failed("look for", path, error))
}

/// The file whose name is another's and a suffix.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn failed(action: &'static str, path: &Path, source: io::Error) -> QueueError {
    QueueError::Io {
        action,
        path: path.to_owned(),
        source,
    }
}

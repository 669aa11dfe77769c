//! The SQLite file: its tables, how a connection to it is opened, how it is created.

use std::{
    fs,
    io::{self, ErrorKind},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use rusqlite::{Connection, OpenFlags};

use super::{QueueError, Result, error::At};

/// The queue's file in its run directory.
pub const FILE_NAME: &str = "queue.sqlite";

/// `application_id` of a queue: "LLQU".
pub(super) const APPLICATION: u32 = u32::from_be_bytes(*b"LLQU");

/// `user_version` of the tables below.
pub(super) const VERSION: i64 = 1;

/// The tables. `spec` and the fields of `task` under its digest never change. The specification has a
/// table of its own, so that writing a step's progress does not rewrite the long text.
///
/// `last_loss` and `best_metric` are `ANY` because SQLite has no NaN. `changed` is the number of the
/// transaction that last changed the row, counted by `clock`.
pub(super) const TABLES: &str = "
CREATE TABLE task (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL COLLATE NOCASE,
    tenant TEXT NOT NULL,
    priority INTEGER NOT NULL,
    dataset_hash TEXT NOT NULL,
    sweep TEXT,
    key TEXT UNIQUE,
    state TEXT NOT NULL CHECK (state IN
        ('queued', 'running', 'parked', 'paused', 'done', 'failed', 'cancelled')),
    reason TEXT NOT NULL,
    requested TEXT CHECK (requested IN ('pause', 'resume', 'cancel')),
    explanation TEXT NOT NULL,
    step INTEGER NOT NULL CHECK (step >= 0),
    saved_step INTEGER NOT NULL CHECK (saved_step >= 0),
    total_steps INTEGER CHECK (total_steps >= 0),
    last_loss ANY CHECK (typeof(last_loss) IN ('null', 'real') OR last_loss = 'NaN'),
    best_metric ANY CHECK (typeof(best_metric) IN ('null', 'real') OR best_metric = 'NaN'),
    submitted_at INTEGER NOT NULL,
    started_at INTEGER,
    ended_at INTEGER,
    changed INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX task_live_name ON task (name)
    WHERE state IN ('queued', 'running', 'parked', 'paused');
CREATE INDEX task_name ON task (name);
CREATE INDEX task_changed ON task (changed);
CREATE INDEX task_requested ON task (id) WHERE requested IS NOT NULL;
CREATE TABLE spec (
    task INTEGER PRIMARY KEY REFERENCES task (id),
    text TEXT NOT NULL,
    digest BLOB NOT NULL CHECK (length(digest) = 32)
) STRICT;
CREATE TABLE event (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    task INTEGER NOT NULL REFERENCES task (id),
    kind TEXT NOT NULL,
    reason TEXT NOT NULL,
    at INTEGER NOT NULL
) STRICT;
CREATE INDEX event_task ON event (task, sequence);
CREATE TABLE stored (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE clock (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    changed INTEGER NOT NULL CHECK (changed >= 0)
) STRICT;
INSERT INTO clock VALUES (1, 0);
";

/// How long a process waits for transactions of other processes, which take milliseconds.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// SQLite's own busy handler polls only ten times a second, and nothing signals that a file is free. A
/// server that writes after every step leaves it free only for the duration of a step.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

fn wait(polls: i32) -> bool {
    thread::sleep(POLL_INTERVAL);
    POLL_INTERVAL.saturating_mul(polls.unsigned_abs()) < PATIENCE
}

/// Opens a file that exists. Nothing is written, and a missing file is not created.
pub(super) fn open(path: &Path) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags).at(path)?;
    configure(&mut connection).at(path)?;
    Ok(connection)
}

/// Sets what SQLite keeps per connection and not in the file.
fn configure(connection: &mut Connection) -> rusqlite::Result<()> {
    connection.busy_handler(Some(wait))?;
    // A commit returns once it is on the disk; on macOS that needs F_FULLFSYNC.
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "fullfsync", true)?;
    connection.pragma_update(None, "checkpoint_fullfsync", true)?;
    // The file may be damaged or untrusted.
    connection.pragma_update(None, "cell_size_check", true)?;
    connection.pragma_update(None, "trusted_schema", false)?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(())
}

/// Creates the file if it does not exist: it appears whole or not at all. Only the holder of the
/// server's lock may call this.
///
/// # Errors
/// [`QueueError::Corrupt`] if the file is gone but its log is there: a new file would adopt the log or
/// lose the tasks in it.
pub(super) fn create_if_missing(path: &Path) -> Result<()> {
    if exists(path)? {
        return Ok(());
    }
    let log = with_suffix(path, "-wal");
    if exists(&log)? {
        let problem = format!("it is missing, but its log {} exists", log.display());
        return Err(QueueError::corrupt(path, problem));
    }
    let draft = with_suffix(path, ".new");
    for suffix in ["", "-journal", "-wal", "-shm"] {
        let file = with_suffix(&draft, suffix);
        match fs::remove_file(&file) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(QueueError::io("remove", &file, error));
            }
            _ => {}
        }
    }
    write_draft(&draft).at(&draft)?;
    fs::rename(&draft, path).map_err(|error| QueueError::io("create", path, error))?;
    sync_directory(path).map_err(|error| QueueError::io("create", path, error))
}

/// Commits with a rollback journal, then switches the header to a write-ahead log: when this returns,
/// the draft is a single file, and on the disk.
fn write_draft(draft: &Path) -> rusqlite::Result<()> {
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

fn exists(path: &Path) -> Result<bool> {
    path.try_exists()
        .map_err(|error| QueueError::io("look for", path, error))
}

/// The path with `suffix` appended to the file's name.
pub(super) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Giving up at once would report a busy file to owners; never giving up would hang them.
    #[test]
    fn a_file_that_stays_busy_is_given_up_on() {
        let polls = (PATIENCE.as_millis() / POLL_INTERVAL.as_millis()) as i32;
        assert!(wait(0) && wait(polls - 1));
        assert!(!wait(polls));
    }
}

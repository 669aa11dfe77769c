//! Checks that a file is a queue, and whole.

use std::{collections::BTreeSet, io::ErrorKind, path::Path};

use loraloom_scheduler::TaskId;
use rusqlite::Connection;

use super::{
    HistoryEntry, Queue, QueueError, QueuedTask, Result, Submission,
    beginning::beginning,
    error::At,
    file::{APPLICATION, TABLES, VERSION},
    task::get,
};

const MAGIC: &[u8; 16] = b"SQLite format 3\0";
const HEADER_LENGTH: usize = 100;
const APPLICATION_AT: usize = 68;

/// Refuses a file whose first bytes are not a queue's. This comes before SQLite opens the file: SQLite
/// takes an empty file for an empty database, and deletes the log beside it.
pub(super) fn check_header(path: &Path) -> Result<()> {
    match beginning(path, HEADER_LENGTH) {
        Err(error) if error.kind() == ErrorKind::NotFound => Err(QueueError::Missing {
            path: path.to_owned(),
        }),
        Err(source) => Err(QueueError::io("read", path, source)),
        Ok(header) => judge(path, &header),
    }
}

fn judge(path: &Path, header: &[u8]) -> Result<()> {
    let foreign = |problem: String| {
        let path = path.to_owned();
        Err(QueueError::NotAQueue { path, problem })
    };
    if header.is_empty() {
        return Err(QueueError::corrupt(path, "it is empty".to_owned()));
    }
    if !header.starts_with(&MAGIC[..header.len().min(MAGIC.len())]) {
        return foreign("it does not begin with the header of SQLite".to_owned());
    }
    if header.len() < HEADER_LENGTH {
        let problem = format!("it ends after {} bytes", header.len());
        return Err(QueueError::corrupt(path, problem));
    }
    let bytes = header[APPLICATION_AT..].first_chunk();
    match bytes.map_or(0, |bytes| u32::from_be_bytes(*bytes)) {
        APPLICATION => Ok(()),
        found => foreign(format!(
            "its application_id is {found:#010x}, expected {APPLICATION:#010x}"
        )),
    }
}

/// Refuses a file with any other schema version.
pub(super) fn check_version(connection: &Connection, path: &Path) -> Result<()> {
    let version = connection.pragma_query_value(None, "user_version", |row| row.get(0));
    let found: i64 = version.at(path)?;
    if found > VERSION {
        return Err(QueueError::NewerSchema {
            path: path.to_owned(),
            found,
            known: VERSION,
        });
    }
    if found < VERSION {
        let problem = format!("its schema version is {found}, but the first was {VERSION}");
        return Err(QueueError::corrupt(path, problem));
    }
    Ok(())
}

/// Refuses a file with damaged pages, indices or constraints, other tables than this version's, rows that
/// cannot be read, or a task that differs from what was accepted.
pub(super) fn check_all(queue: &Queue) -> Result<()> {
    let (connection, path) = (&queue.connection, queue.path());
    let findings: Vec<String> = queue.rows("PRAGMA integrity_check(5)", [], |row| row.get(0))?;
    if findings != ["ok"] {
        return Err(QueueError::corrupt(path, findings.join("; ")));
    }
    if tables(connection).at(path)? != expected_tables().at(path)? {
        let problem = "its tables differ from a queue's".to_owned();
        return Err(QueueError::corrupt(path, problem));
    }
    check_specs(queue)?;
    check_rows(queue)
}

/// Refuses a task that differs from what was accepted.
pub(super) fn check_digest(
    path: &Path,
    id: TaskId,
    submission: &Submission,
    digest: [u8; 32],
) -> Result<()> {
    if submission.digest() == digest {
        return Ok(());
    }
    let problem = format!(
        "{id} (`{}`) differs from the accepted task",
        submission.name
    );
    Err(QueueError::corrupt(path, problem))
}

fn check_specs(queue: &Queue) -> Result<()> {
    let sql = format!(
        "SELECT {}, id, digest FROM task LEFT JOIN spec ON spec.task = id",
        Submission::COLUMNS
    );
    let width = Submission::WIDTH;
    let mut checked = Ok(());
    queue.each(&sql, |row| {
        let id = get(row, width)?;
        let submission = Submission::read(row)?;
        let digest = row.get(width + 1)?;
        if checked.is_ok() {
            checked = check_digest(queue.path(), id, &submission, digest);
        }
        Ok(())
    })?;
    checked
}

/// SQLite stores any bytes as text; reading invalid UTF-8 would fail later, after the first write.
fn check_rows(queue: &Queue) -> Result<()> {
    let tasks = format!("SELECT {} FROM task", QueuedTask::COLUMNS);
    queue.each(&tasks, |row| QueuedTask::read(row).map(drop))?;
    let events = format!("SELECT {} FROM event", HistoryEntry::COLUMNS);
    queue.each(&events, |row| HistoryEntry::read(row).map(drop))?;
    queue.stored().map(drop)
}

type Tables = BTreeSet<(String, String, Option<String>)>;

fn tables(connection: &Connection) -> rusqlite::Result<Tables> {
    connection
        .prepare("SELECT type, name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite_stat%'")?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
        .collect()
}

fn expected_tables() -> rusqlite::Result<Tables> {
    let fresh = Connection::open_in_memory()?;
    fresh.execute_batch(TABLES)?;
    tables(&fresh)
}

//! Checks that a file is a queue, and whole.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{ErrorKind, Read},
    path::Path,
};

use loraloom_scheduler::TaskId;
use rusqlite::{Connection, Row};

use super::{
    HistoryEntry, QueueError, QueuedTask, Submission,
    error::At,
    file::{APPLICATION, TABLES, VERSION},
    task::get,
};

const MAGIC: &[u8; 16] = b"SQLite format 3\0";
const HEADER_LENGTH: usize = 100;
const APPLICATION_AT: usize = 68;

/// Refuses a file whose first bytes are not a queue's. This comes before SQLite opens the file: SQLite
/// takes an empty file for an empty database, and deletes the log beside it.
pub(super) fn check_header(path: &Path) -> Result<(), QueueError> {
    let mut header = Vec::with_capacity(HEADER_LENGTH);
    let read =
        File::open(path).and_then(|file| file.take(HEADER_LENGTH as u64).read_to_end(&mut header));
    match read {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let path = path.to_owned();
            Err(QueueError::Missing { path })
        }
        Err(source) => Err(QueueError::io("read", path, source)),
        Ok(_) => judge(path, &header),
    }
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
    let application = header
        .get(APPLICATION_AT..)
        .and_then(|rest| rest.first_chunk())
        .map(|bytes| u32::from_be_bytes(*bytes));
    match application {
        _ if header.len() < HEADER_LENGTH => {
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

/// Refuses a file with any other schema version.
pub(super) fn check_version(connection: &Connection, path: &Path) -> Result<(), QueueError> {
    let found: i64 = connection
        .pragma_query_value(None, "user_version", |row| row.get(0))
        .at(path)?;
    if found > VERSION {
        return Err(QueueError::NewerSchema {
            path: path.to_owned(),
            found,
            known: VERSION,
        });
    }
    if found < VERSION {
        let problem = format!("its schema version is {found}, and the first was {VERSION}");
        return Err(QueueError::corrupt(path, problem));
    }
    Ok(())
}

/// Refuses a file with damaged pages, indices or constraints, other tables than this version's, rows that
/// cannot be read, or a task that differs from what was accepted.
pub(super) fn check_all(connection: &Connection, path: &Path) -> Result<(), QueueError> {
    let findings: Vec<String> = connection
        .prepare("PRAGMA integrity_check(5)")
        .and_then(|mut statement| statement.query_map([], |row| row.get(0))?.collect())
        .at(path)?;
    if findings != ["ok"] {
        return Err(QueueError::corrupt(path, findings.join("; ")));
    }
    if tables(connection).at(path)? != expected_tables().at(path)? {
        return Err(QueueError::corrupt(
            path,
            "its tables are not a queue's".to_owned(),
        ));
    }
    check_specs(connection, path)?;
    check_rows(connection, path)
}

/// Refuses a task that differs from what was accepted.
pub(super) fn check_digest(
    path: &Path,
    id: TaskId,
    submission: &Submission,
    digest: [u8; 32],
) -> Result<(), QueueError> {
    if submission.digest() == digest {
        return Ok(());
    }
    let problem = format!("{id} (`{}`) is not what was accepted", submission.name);
    Err(QueueError::corrupt(path, problem))
}

fn check_specs(connection: &Connection, path: &Path) -> Result<(), QueueError> {
    let sql = format!(
        "SELECT {}, id, digest FROM task LEFT JOIN spec ON spec.task = id",
        Submission::COLUMNS
    );
    let mut statement = connection.prepare(&sql).at(path)?;
    let mut rows = statement.query([]).at(path)?;
    let width = Submission::WIDTH;
    let read = |row: &Row<'_>| {
        Ok((
            get(row, width)?,
            Submission::read(row)?,
            row.get(width + 1)?,
        ))
    };
    while let Some(row) = rows.next().at(path)? {
        let (id, submission, digest) = read(row).at(path)?;
        check_digest(path, id, &submission, digest)?;
    }
    Ok(())
}

/// SQLite stores any bytes as text; reading invalid UTF-8 would fail later, after the first write.
fn check_rows(connection: &Connection, path: &Path) -> Result<(), QueueError> {
    let check = |columns: &str, table: &str, read: fn(&Row<'_>) -> rusqlite::Result<()>| {
        let mut statement = connection.prepare(&format!("SELECT {columns} FROM {table}"))?;
        statement
            .query_map([], read)?
            .collect::<rusqlite::Result<()>>()
    };
    check(QueuedTask::COLUMNS, "task", |row| {
        QueuedTask::read(row).map(drop)
    })
    .and_then(|()| {
        check(HistoryEntry::COLUMNS, "event", |row| {
            HistoryEntry::read(row).map(drop)
        })
    })
    .and_then(|()| {
        check("key, value", "stored", |row| {
            row.get::<_, String>(0)?;
            row.get::<_, String>(1).map(drop)
        })
    })
    .at(path)
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

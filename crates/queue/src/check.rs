//! Whether a file is whole.

use std::{collections::BTreeSet, path::Path};

use rusqlite::{Connection, Row};

use crate::{
    Event, QueueError, Submission, Task, TaskId,
    connection::At,
    schema::{TABLES, VERSION},
};

/// Refuses a file of a later version, and one of none.
pub(crate) fn check_version(connection: &Connection, path: &Path) -> Result<(), QueueError> {
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
        return Err(corrupt(path, problem));
    }
    Ok(())
}

/// Refuses a file whose pages, indices, constraints or tables are not as SQLite and this version left
/// them, with a row that cannot be read, or that holds a task other than it was accepted.
pub(crate) fn check_all(connection: &Connection, path: &Path) -> Result<(), QueueError> {
    let findings: Vec<String> = connection
        .prepare("PRAGMA integrity_check(5)")
        .and_then(|mut statement| statement.query_map([], |row| row.get(0))?.collect())
        .at(path)?;
    if findings != ["ok"] {
        return Err(corrupt(path, findings.join("; ")));
    }
    if tables(connection).at(path)? != expected_tables().at(path)? {
        return Err(corrupt(path, "its tables are not a queue's".to_owned()));
    }
    check_specs(connection, path)?;
    check_rows(connection, path)
}

/// Refuses a task that is not what was accepted.
pub(crate) fn check_digest(
    path: &Path,
    id: TaskId,
    submission: &Submission,
    digest: [u8; 32],
) -> Result<(), QueueError> {
    if submission.digest() == digest {
        return Ok(());
    }
    let problem = format!("{id} (`{}`) is not what was accepted", submission.name);
    Err(corrupt(path, problem))
}

fn check_specs(connection: &Connection, path: &Path) -> Result<(), QueueError> {
    let sql = format!(
        "SELECT {}, id, digest FROM task LEFT JOIN spec ON spec.task = id",
        Submission::COLUMNS
    );
    let mut statement = connection.prepare(&sql).at(path)?;
    let mut rows = statement.query([]).at(path)?;
    let width = Submission::WIDTH;
    let read = |row: &Row<'_>| Ok((row.get(width)?, Submission::read(row)?, row.get(width + 1)?));
    while let Some(row) = rows.next().at(path)? {
        let (id, submission, digest) = read(row).at(path)?;
        check_digest(path, id, &submission, digest)?;
    }
    Ok(())
}

/// SQLite does not mind what bytes a text is made of; whoever reads one minds, after the first write.
fn check_rows(connection: &Connection, path: &Path) -> Result<(), QueueError> {
    let check = |columns: &str, table: &str, read: fn(&Row<'_>) -> rusqlite::Result<()>| {
        let mut statement = connection.prepare(&format!("SELECT {columns} FROM {table}"))?;
        statement
            .query_map([], read)?
            .collect::<rusqlite::Result<()>>()
    };
    check(Task::COLUMNS, "task", |row| Task::read(row).map(drop))
        .and_then(|()| check(Event::COLUMNS, "event", |row| Event::read(row).map(drop)))
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

fn corrupt(path: &Path, problem: String) -> QueueError {
    let path = path.to_owned();
    QueueError::Corrupt { path, problem }
}

//! How the file is opened, and what SQLite's errors mean.

use std::{path::Path, time::Duration};

use rusqlite::{Connection, Error, ErrorCode, OpenFlags};

use crate::QueueError;

/// How long a process waits for the others' transactions, which take milliseconds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Opens a file that exists. Nothing is written, and a missing file is not created.
pub(crate) fn open(path: &Path) -> Result<Connection, QueueError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).at(path)?;
    configure(&connection).at(path)?;
    Ok(connection)
}

/// What holds for a connection and is not kept in the file.
pub(crate) fn configure(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(PATIENCE)?;
    // A commit returns when it is on the disk, and on macOS when the disk says so, too.
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "fullfsync", true)?;
    connection.pragma_update(None, "checkpoint_fullfsync", true)?;
    // The file may be damaged, or made by somebody else.
    connection.pragma_update(None, "cell_size_check", true)?;
    connection.pragma_update(None, "trusted_schema", false)?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(())
}

/// Names the file in an error of SQLite's.
pub(crate) trait At<T> {
    /// The error with its path and its meaning.
    fn at(self, path: &Path) -> Result<T, QueueError>;
}

impl<T> At<T> for rusqlite::Result<T> {
    fn at(self, path: &Path) -> Result<T, QueueError> {
        self.map_err(|error| meaning(path, error))
    }
}

fn meaning(path: &Path, error: Error) -> QueueError {
    let path = path.to_owned();
    let problem = error.to_string();
    match &error {
        Error::SqliteFailure(failure, _) => match failure.code {
            ErrorCode::DatabaseCorrupt => return QueueError::Corrupt { path, problem },
            ErrorCode::NotADatabase => return QueueError::NotAQueue { path, problem },
            // The main file could be opened before: its log or its index could not.
            ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied => {
                return QueueError::ReadOnly { path, problem };
            }
            ErrorCode::DiskFull => return QueueError::DiskFull { path },
            ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => {
                let waited = PATIENCE;
                return QueueError::Busy { path, waited };
            }
            // Every statement here is fixed: if one does not compile, the tables are not ours.
            ErrorCode::Unknown => return QueueError::Corrupt { path, problem },
            _ => {}
        },
        Error::SqlInputError { .. }
        | Error::FromSqlConversionFailure(..)
        | Error::IntegralValueOutOfRange(..)
        | Error::InvalidColumnType(..)
        | Error::Utf8Error(..) => return QueueError::Corrupt { path, problem },
        _ => {}
    }
    let source = Box::new(error);
    QueueError::Sqlite { path, source }
}

//! How the file is opened, and what SQLite's errors mean.

use std::{path::Path, thread, time::Duration};

use rusqlite::{Connection, Error, ErrorCode, OpenFlags};

use crate::QueueError;

/// How long a process waits for the others' transactions, which take milliseconds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// SQLite's own way of waiting comes to look ten times a second only. Nobody is told when a file is
/// free, and a server that writes after every step leaves it so for the moment of a step.
const LOOK_EVERY: Duration = Duration::from_millis(2);

fn wait(looks: i32) -> bool {
    thread::sleep(LOOK_EVERY);
    LOOK_EVERY.saturating_mul(looks.unsigned_abs()) < PATIENCE
}

/// Opens a file that exists. Nothing is written, and a missing file is not created.
pub(crate) fn open(path: &Path) -> Result<Connection, QueueError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags).at(path)?;
    configure(&mut connection).at(path)?;
    Ok(connection)
}

/// What holds for a connection and is not kept in the file.
pub(crate) fn configure(connection: &mut Connection) -> rusqlite::Result<()> {
    connection.busy_handler(Some(wait))?;
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
            // Every statement here is fixed: one that does not compile means that the tables are not ours.
            ErrorCode::DatabaseCorrupt | ErrorCode::Unknown => {
                return QueueError::Corrupt { path, problem };
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn meant(code: i32) -> QueueError {
        let failure = rusqlite::ffi::Error::new(code);
        let text = rusqlite::ffi::code_to_str(code).to_owned();
        meaning(
            Path::new("run/queue.sqlite"),
            Error::SqliteFailure(failure, Some(text)),
        )
    }

    #[test]
    fn what_an_owner_can_do_something_about_has_a_name_and_a_hint() {
        use rusqlite::ffi;
        for code in [ffi::SQLITE_CORRUPT, ffi::SQLITE_ERROR] {
            assert!(matches!(meant(code), QueueError::Corrupt { .. }));
        }
        for code in [
            ffi::SQLITE_READONLY,
            ffi::SQLITE_READONLY_DIRECTORY,
            ffi::SQLITE_CANTOPEN,
            ffi::SQLITE_PERM,
        ] {
            assert!(matches!(meant(code), QueueError::ReadOnly { .. }));
        }
        for code in [
            ffi::SQLITE_BUSY,
            ffi::SQLITE_BUSY_RECOVERY,
            ffi::SQLITE_LOCKED,
        ] {
            assert!(matches!(meant(code), QueueError::Busy { .. }));
        }
        assert!(matches!(
            meant(ffi::SQLITE_NOTADB),
            QueueError::NotAQueue { .. }
        ));
        assert!(matches!(
            meant(ffi::SQLITE_FULL),
            QueueError::DiskFull { .. }
        ));
        for code in [ffi::SQLITE_CORRUPT, ffi::SQLITE_READONLY, ffi::SQLITE_BUSY] {
            assert!(meant(code).hint().is_some());
        }
        let other = meant(ffi::SQLITE_IOERR_FSYNC);
        assert!(matches!(other, QueueError::Sqlite { .. }));
        assert!(
            other.to_string().starts_with("run/queue.sqlite: "),
            "{other}"
        );
    }

    /// A wait that ends at once would have owners told that the file is busy; one that never ends
    /// would hang them.
    #[test]
    fn a_file_that_stays_busy_is_given_up_on() {
        let looks = (PATIENCE.as_millis() / LOOK_EVERY.as_millis()) as i32;
        assert!(wait(0) && wait(looks - 1));
        assert!(!wait(looks));
    }
}

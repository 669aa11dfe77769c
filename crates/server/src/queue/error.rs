use std::{
    error::Error,
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use loraloom_scheduler::{TaskId, TaskState};
use loraloom_trainer::quoted;
use rusqlite::ErrorCode;

use super::{LOCK_NAME, Request, file::PATIENCE};

/// Bytes of the longest path to which SQLite can still append the suffix of its journal.
const LONGEST_PATH: usize = 511 - "-journal".len();

/// The result of an operation on a queue.
pub(super) type Result<T, E = QueueError> = std::result::Result<T, E>;

/// An error of a queue.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueueError {
    /// The directory holds no queue.
    #[error("{}", missing(path))]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// The file is not a queue.
    #[error("{} is not a queue: {problem}", path.display())]
    NotAQueue {
        /// The file.
        path: PathBuf,
        /// What was found instead.
        problem: String,
    },
    /// The file is damaged.
    #[error("{} is damaged: {problem}", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What was found.
        problem: String,
    },
    /// A later version wrote the file.
    #[error("{} has schema version {found}; this version of loraloom knows {known}", path.display())]
    NewerSchema {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: i64,
        /// The newest version known here.
        known: i64,
    },
    /// Another server holds the directory's lock.
    #[error("a server{} already uses {}", process(*pid), directory.display())]
    ServerRunning {
        /// The run directory.
        directory: PathBuf,
        /// Its process, if readable.
        pid: Option<u32>,
    },
    /// The operating system refused a file.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The operation.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The file or its directory cannot be written.
    #[error("{} cannot be written: {problem}", path.display())]
    ReadOnly {
        /// The file.
        path: PathBuf,
        /// What SQLite said.
        problem: String,
    },
    /// The disk is full. Tasks accepted before are kept.
    #[error("no space left for {}", path.display())]
    DiskFull {
        /// The file.
        path: PathBuf,
    },
    /// Other processes kept the file locked.
    #[error("{} was busy for {} s", path.display(), waited.as_secs_f64())]
    Busy {
        /// The file.
        path: PathBuf,
        /// How long this process waited.
        waited: Duration,
    },
    /// Any other error of SQLite.
    #[error("{}: {source}", path.display())]
    Sqlite {
        /// The file.
        path: PathBuf,
        /// SQLite's error.
        source: Box<dyn Error + Send + Sync>,
    },
    /// A field of a submission is invalid.
    #[error("{field} `{value}` {problem}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// Its value.
        value: String,
        /// The problem.
        problem: String,
    },
    /// A live task has the same name.
    #[error("the name `{name}` is taken by {id}, which {}", state.predicate())]
    NameTaken {
        /// The name.
        name: String,
        /// The task that has it.
        id: TaskId,
        /// That task's state.
        state: TaskState,
    },
    /// Another submission has a sweep of the name; the leaderboards of both would be one.
    #[error("the sweep name `{sweep}` is taken: {id} (`{name}`) is in it, and {}", state.predicate())]
    SweepTaken {
        /// The sweep.
        sweep: String,
        /// The first task that is in it.
        id: TaskId,
        /// That task's name.
        name: String,
        /// That task's state.
        state: TaskState,
    },
    /// The idempotency key belongs to a different submission.
    #[error(
        "the key `{key}` belongs to {id} (`{existing}`), and `{name}` differs from it in {}",
        differs.join(", ")
    )]
    KeyTaken {
        /// The key.
        key: String,
        /// The task accepted with it.
        id: TaskId,
        /// That task's name.
        existing: String,
        /// The refused task's name.
        name: String,
        /// The fields that differ.
        differs: Vec<&'static str>,
    },
    /// The idempotency key belongs to a submission of other tasks.
    #[error("the key `{key}` belongs to a submission of {accepted}, and this one has {names}")]
    KeyOfOthers {
        /// The key.
        key: String,
        /// Names of the tasks accepted with it.
        accepted: String,
        /// Names of the refused tasks.
        names: String,
    },
    /// No task has this id.
    #[error("there is no {0}")]
    UnknownTask(TaskId),
    /// No task has this name.
    #[error("there is no task `{0}`")]
    UnknownName(String),
    /// No task has this number.
    #[error(
        "there is no task {number}{}",
        named.map_or_else(String::new, |id| format!("; the task with the name `{number}` is {id}"))
    )]
    UnknownNumber {
        /// The number.
        number: String,
        /// The task whose name it is.
        named: Option<TaskId>,
    },
    /// The state machine has no such transition.
    #[error("{id} (`{name}`) {} and cannot become {to}", from.predicate())]
    IllegalTransition {
        /// The task.
        id: TaskId,
        /// Its name.
        name: String,
        /// Its state.
        from: TaskState,
        /// The state asked for.
        to: TaskState,
    },
    /// The task's state, or a pending request, forbids the request.
    #[error(
        "cannot {request} {id} (`{name}`): it {}{}",
        state.predicate(),
        pending.map_or_else(String::new, |pending| format!(" and was asked to {pending}"))
    )]
    RequestRefused {
        /// The task.
        id: TaskId,
        /// Its name.
        name: String,
        /// The refused request.
        request: Request,
        /// Its state.
        state: TaskState,
        /// The request that is pending already.
        pending: Option<Request>,
    },
}

impl QueueError {
    /// [`QueueError::Io`].
    pub(super) fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        Self::Io {
            action,
            path,
            source,
        }
    }

    /// [`QueueError::Corrupt`].
    pub(super) fn corrupt(path: &Path, problem: String) -> Self {
        let path = path.to_owned();
        Self::Corrupt { path, problem }
    }

    /// Advice, if known and not part of the message.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Missing { path } if path.with_file_name(LOCK_NAME).exists() => {
                "a server ran here: restore its queue; adapters and checkpoints do not depend on it"
            }
            Self::Missing { .. } => {
                "check the directory: a server creates its queue there. A run of `train` has no queue; \
                 resume it with `loraloom train --resume RUN`"
            }
            Self::NotAQueue { .. } => {
                "nothing was changed; choose another directory, or move the file away"
            }
            Self::Corrupt { .. } => {
                "nothing was changed; copy all files that begin with its name, then restore it from a \
                 backup or try `sqlite3 queue.sqlite .recover`"
            }
            Self::NewerSchema { .. } => "use the version of loraloom that wrote it, or a later one",
            Self::ServerRunning { .. } => {
                "submit to the running server, or stop it first; the lock is released when its process \
                 ends"
            }
            Self::ReadOnly { path, .. } if path.as_os_str().len() > LONGEST_PATH => {
                "SQLite supports paths of at most 511 bytes, including the suffix `-journal`: use a \
                 shorter one"
            }
            Self::ReadOnly { .. } => {
                "the file and its directory must be writable, for readers too: SQLite keeps its \
                 log and index in the directory"
            }
            Self::DiskFull { .. } => "free some space and try again; accepted tasks are kept",
            Self::Busy { .. } => "check whether a process that uses the queue is suspended",
            Self::NameTaken { .. } => "choose another name, or cancel the task",
            Self::SweepTaken { sweep, .. } => {
                let name = quoted(format!("sweep.{sweep}.name={sweep}-2"));
                return Some(format!(
                    "give it another name, for example with `--set {name}`"
                ));
            }
            Self::KeyTaken { .. } | Self::KeyOfOthers { .. } => {
                "a key identifies one submission: use a new one"
            }
            _ => return None,
        };
        Some(hint.to_owned())
    }
}

fn missing(path: &Path) -> String {
    match path.parent() {
        Some(directory) if !directory.exists() => {
            format!("there is no directory `{}`", directory.display())
        }
        _ => format!("{} does not exist", path.display()),
    }
}

fn process(pid: Option<u32>) -> String {
    pid.map_or_else(String::new, |pid| format!(" (process {pid})"))
}

/// Turns SQLite's errors into [`QueueError`]s of a file.
pub(super) trait At<T> {
    /// Adds the file's path to an error.
    fn at(self, path: &Path) -> Result<T>;
}

impl<T> At<T> for rusqlite::Result<T> {
    fn at(self, path: &Path) -> Result<T> {
        self.map_err(|error| meaning(path, error))
    }
}

fn meaning(path: &Path, error: rusqlite::Error) -> QueueError {
    let problem = error.to_string();
    let path = path.to_owned();
    let code = match &error {
        rusqlite::Error::SqliteFailure(failure, _) => Some(failure.code),
        rusqlite::Error::SqlInputError { .. }
        | rusqlite::Error::FromSqlConversionFailure(..)
        | rusqlite::Error::IntegralValueOutOfRange(..)
        | rusqlite::Error::InvalidColumnType(..)
        | rusqlite::Error::Utf8Error(..) => Some(ErrorCode::DatabaseCorrupt),
        _ => None,
    };
    match code {
        // The statements are fixed: one that does not compile means foreign tables.
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::Unknown) => {
            QueueError::Corrupt { path, problem }
        }
        Some(ErrorCode::NotADatabase) => QueueError::NotAQueue { path, problem },
        // The main file could be opened, so its log or its index could not.
        Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
            QueueError::ReadOnly { path, problem }
        }
        Some(ErrorCode::DiskFull) => QueueError::DiskFull { path },
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => QueueError::Busy {
            path,
            waited: PATIENCE,
        },
        _ => QueueError::Sqlite {
            path,
            source: Box::new(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meant(code: i32) -> QueueError {
        let failure = rusqlite::ffi::Error::new(code);
        let text = rusqlite::ffi::code_to_str(code).to_owned();
        meaning(
            Path::new("run/queue.sqlite"),
            rusqlite::Error::SqliteFailure(failure, Some(text)),
        )
    }

    #[test]
    fn errors_of_sqlite_become_variants_with_hints() {
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
}

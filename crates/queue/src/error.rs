//! What can be wrong with a queue, and what to do about it.

use std::{error::Error, io, path::PathBuf, time::Duration};

use crate::{LOCK_NAME, Request, TaskId, TaskState};

/// Bytes of a path that SQLite still takes with the name of its journal.
const LONGEST_PATH: usize = 511 - "-journal".len();

/// Everything that can go wrong with a queue.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueueError {
    /// There is no queue in the directory.
    #[error("{} does not exist", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// The file is something else.
    #[error("{} is not a queue: {problem}", path.display())]
    NotAQueue {
        /// The file.
        path: PathBuf,
        /// What it is.
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
    /// The file was written by a later version.
    #[error("{} has schema version {found}; this version of loraloom knows {known}", path.display())]
    NewerSchema {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: i64,
        /// The version known here.
        known: i64,
    },
    /// Another server has the directory.
    #[error("a server{} has {} already", process(*pid), directory.display())]
    ServerRunning {
        /// The run directory.
        directory: PathBuf,
        /// Its process, if that can be read.
        pid: Option<u32>,
    },
    /// The operating system refused a file.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
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
    /// The disk is full. What was accepted before is not touched.
    #[error("no space left for {}", path.display())]
    DiskFull {
        /// The file.
        path: PathBuf,
    },
    /// Others held the file all the time.
    #[error("{} was busy for {} s", path.display(), waited.as_secs_f64())]
    Busy {
        /// The file.
        path: PathBuf,
        /// How long was waited.
        waited: Duration,
    },
    /// Anything else that SQLite reports.
    #[error("{}: {source}", path.display())]
    Sqlite {
        /// The file.
        path: PathBuf,
        /// The report.
        source: Box<dyn Error + Send + Sync>,
    },
    /// A field of a submission that cannot be used.
    #[error("{field} `{value}` {problem}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// Its value.
        value: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A live task has the name.
    #[error("the name `{name}` is taken by {id}, which {}", state.predicate())]
    NameTaken {
        /// The name.
        name: String,
        /// The task that has it.
        id: TaskId,
        /// Where that task stands.
        state: TaskState,
    },
    /// An idempotency key was used for something else.
    #[error(
        "the key `{key}` belongs to {id} (`{existing}`), and `{name}` differs from it in {}",
        differs.join(", ")
    )]
    KeyTaken {
        /// The key.
        key: String,
        /// The task that was accepted with it.
        id: TaskId,
        /// That task's name.
        existing: String,
        /// The refused task's name.
        name: String,
        /// The fields in which they differ.
        differs: Vec<&'static str>,
    },
    /// No task has the identity.
    #[error("there is no {0}")]
    UnknownTask(TaskId),
    /// No task has the name or number.
    #[error("there is no task `{0}`")]
    UnknownName(String),
    /// The state machine has no such step.
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
    /// A request that the task's state, or a request before it, forbids.
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
        /// What was asked for.
        request: Request,
        /// Its state.
        state: TaskState,
        /// The request that waits already.
        pending: Option<Request>,
    },
}

impl QueueError {
    /// What to do about it, where that is known and not in the message already.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Missing { path } if path.with_file_name(LOCK_NAME).exists() => {
                "a server was here: put its queue back; adapters and checkpoints are there without it"
            }
            Self::Missing { .. } => {
                "a queue is created by its server; is it another directory? A run of `train` has none: \
                 `loraloom train --resume RUN` goes on with it"
            }
            Self::NotAQueue { .. } => {
                "nothing was changed; name another directory, or move the file away"
            }
            Self::Corrupt { .. } => {
                "nothing was changed; copy the file and what begins with its name, then \
                 restore it from a backup or try `sqlite3 queue.sqlite .recover`"
            }
            Self::NewerSchema { .. } => "use the version of loraloom that wrote it, or a later one",
            Self::ServerRunning { .. } => {
                "submit to the server that runs, or stop it first; its lock ends with its process"
            }
            Self::ReadOnly { path, .. } if path.as_os_str().len() > LONGEST_PATH => {
                "SQLite takes paths of at most 511 bytes, with `-journal` at their end: use a shorter one"
            }
            Self::ReadOnly { .. } => {
                "the file and its directory must be writable, for readers too: SQLite keeps its \
                 log and index beside it"
            }
            Self::DiskFull { .. } => "free some space and try again; what was accepted is kept",
            Self::Busy { .. } => "is a process that uses the queue stopped?",
            Self::NameTaken { .. } => "choose another name, or cancel the task",
            Self::KeyTaken { .. } => "a key stands for one submission: use a new one",
            _ => return None,
        };
        Some(hint.to_owned())
    }
}

fn process(pid: Option<u32>) -> String {
    pid.map_or_else(String::new, |pid| format!(" (process {pid})"))
}

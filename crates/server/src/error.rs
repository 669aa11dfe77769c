use std::{error::Error, io, path::PathBuf};

use loraloom_config::ConfigError;
use loraloom_scheduler::SchedulerError;
use loraloom_trainer::{CONFIG_FILE, TrainerError, quoted};

use crate::queue::{FILE_NAME, LOCK_NAME, QueueError};

/// The result of a function of this crate.
pub(crate) type Result<T, E = ServerError> = std::result::Result<T, E>;

/// An error and its causes in one line, without causes that the line already ends with.
pub fn with_causes(error: &(dyn Error + 'static)) -> String {
    let mut line = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let text = cause.to_string();
        if !line.ends_with(&text) {
            line = format!("{line}: {text}");
        }
        source = cause.source();
    }
    line
}

/// An error of a server or a client.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The queue.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// A configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Training, or the data of a task.
    #[error(transparent)]
    Trainer(#[from] TrainerError),
    /// The memory of a device is invalid.
    #[error(transparent)]
    Scheduler(#[from] SchedulerError),
    /// The directory holds a run of `train`.
    #[error("`{}` holds a run without a queue", path.display())]
    NotServed {
        /// The directory.
        path: PathBuf,
    },
    /// The directory has no server's configuration, and none was given.
    #[error("`{}` is not a server's directory: {CONFIG_FILE} is missing", path.display())]
    NoConfiguration {
        /// The directory.
        path: PathBuf,
    },
    /// The queue has saved steps of tasks, but there is no checkpoint.
    #[error(
        "`{}` has no checkpoint, but the queue has {} with saved steps: {}",
        path.display(),
        match tasks.len() { 1 => "a task".to_owned(), count => format!("{count} tasks") },
        tasks.join(", ")
    )]
    CheckpointsGone {
        /// The directory of checkpoints.
        path: PathBuf,
        /// The tasks with their saved steps.
        tasks: Vec<String>,
    },
    /// An interrupted task was asked to resume, which only a server can do.
    #[error("`{name}` is not paused: it is interrupted, and no server runs")]
    Unserved {
        /// The task's name.
        name: String,
        /// The server's directory.
        directory: PathBuf,
    },
    /// The queue of a running server, or its lock, was removed, moved or replaced.
    #[error(
        "`{}` was removed, moved or replaced while the server ran: clients cannot reach it; the \
         tasks are saved", path.display()
    )]
    QueueGone {
        /// Its path.
        path: PathBuf,
    },
    /// A task is for another model than the server's.
    #[error("the server trains over `{}`, not over `{}`", server.display(), task.display())]
    OtherModel {
        /// The server's model.
        server: PathBuf,
        /// The task's model.
        task: PathBuf,
    },
    /// A task cannot fit even alone.
    #[error("`{name}` can never fit: {reason}")]
    NeverFits {
        /// The task's name.
        name: String,
        /// What is missing, with the numbers.
        reason: String,
    },
    /// The adapter directory of the name exists.
    #[error("an adapter `{name}` already exists in `{}`", path.display())]
    NameUsed {
        /// The name.
        name: String,
        /// Its directory.
        path: PathBuf,
    },
    /// The settings of a clone are invalid.
    #[error("{}", of_clone(error))]
    Clone {
        /// The error.
        error: ConfigError,
    },
    /// `--set name=...` on a clone, whose name is an argument.
    #[error("--set {setting}: set the name of the new adapter with `--name`")]
    TwoNames {
        /// The setting.
        setting: String,
    },
    /// A stored text of the server cannot be read.
    #[error("the queue's record `{key}` cannot be read: {problem}")]
    Record {
        /// Its key.
        key: &'static str,
        /// The error.
        problem: String,
    },
    /// A path cannot be created or resolved.
    #[error("cannot use `{}`: {source}", path.display())]
    Path {
        /// The path.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
}

/// The setting that names a clone, before a string of JSON.
pub(crate) const NAME: &str = "adapters.0.name=";

/// What `clone --set` takes.
const CLONE_KEYS: &str =
    "keys start at the adapter, e.g. `--set lora.r=8` or `--set train.learning_rate=1e-4`";

/// The message in terms of `clone`: without the list of adapters, and with `--name`.
fn of_clone(error: &ConfigError) -> String {
    let mut text = error.to_string();
    if let Some(rest) = text.strip_prefix(&format!("--set {NAME}")) {
        let mut names = serde_json::Deserializer::from_str(rest).into_iter::<String>();
        if let Some(Ok(name)) = names.next() {
            text = format!("--name {}{}", quoted(name), &rest[names.byte_offset()..]);
        }
    }
    text.replace("--set adapters.0.", "--set ")
        .replace("adapters[0].", "")
}

impl ServerError {
    /// Advice, if known and not part of the message.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Queue(error) => return error.hint(),
            Self::Clone {
                error: ConfigError::Override { .. },
            } => CLONE_KEYS,
            Self::Clone {
                error: ConfigError::UnknownKey { key, .. },
            } if matches!(key.as_str(), "adapters" | "defaults") => CLONE_KEYS,
            Self::Config(error) | Self::Clone { error } => return error.hint(),
            Self::Trainer(TrainerError::ConfigChanged { key, run, .. }) => {
                return Some(format!(
                    "`loraloom serve {}` continues with the server's own configuration; for another \
                     `{key}`, start a server in another directory",
                    quoted(run)
                ));
            }
            Self::OtherModel { .. } | Self::Trainer(TrainerError::OtherModel { .. }) => {
                "a server trains over one model: leave `model` out, or start another server for it"
            }
            Self::Trainer(error) => return error.hint(),
            Self::NotServed { path } if path.join(LOCK_NAME).exists() => {
                "a server ran here: restore its queue.sqlite, or serve another directory, where `init_from` \
                 starts from an adapter of this one"
            }
            Self::NotServed { .. } => "run `loraloom serve` in another directory",
            Self::Unserved { directory, .. } => {
                return Some(format!(
                    "resume it with `loraloom serve {}`",
                    quoted(directory)
                ));
            }
            Self::NoConfiguration { path } => {
                let run = quoted(path);
                let command = format!("`loraloom serve {run} --config CONFIG`");
                return Some(if path.join(FILE_NAME).exists() {
                    format!(
                        "a server ran here: restore {CONFIG_FILE}, or recreate it from the original \
                         configuration with {command}"
                    )
                } else {
                    format!("start it with {command}: model, device, pipeline and scheduler")
                });
            }
            Self::QueueGone { path } if path.ends_with(LOCK_NAME) => {
                "start the server again; two servers would train the same tasks"
            }
            Self::QueueGone { .. } => {
                "restore it and start the server again; without it, only adapters and checkpoints are left"
            }
            Self::CheckpointsGone { .. } => {
                "restore the checkpoints and start the server again; nothing was changed. To start over, \
                 submit the tasks to another directory"
            }
            Self::NeverFits { .. } => {
                "lower `train.batch_size`, `train.max_seq_len` or `lora.r`, or give the server more \
                 memory (`scheduler.memory_limit`)"
            }
            Self::NameUsed { .. } => "choose another name, or move that directory away",
            Self::Scheduler(_)
            | Self::TwoNames { .. }
            | Self::Record { .. }
            | Self::Path { .. } => return None,
        };
        Some(hint.to_owned())
    }
}

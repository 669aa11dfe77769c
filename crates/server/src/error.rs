use std::{io, path::PathBuf};

use loraloom_config::ConfigError;
use loraloom_queue::{LOCK_NAME, QueueError};
use loraloom_scheduler::SchedulerError;
use loraloom_trainer::TrainerError;

/// What keeps a server from training, or a client from being heard.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The queue.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// A configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Training, or what a task would train on.
    #[error(transparent)]
    Trainer(#[from] TrainerError),
    /// Numbers of a device that are none.
    #[error(transparent)]
    Scheduler(#[from] SchedulerError),
    /// The directory holds a run of `train`.
    #[error("`{}` holds a run without a queue", path.display())]
    NotServed {
        /// The directory.
        path: PathBuf,
    },
    /// There is no server's configuration in the directory, and none was given.
    #[error("`{}` holds no server's configuration", path.display())]
    NoConfiguration {
        /// The directory.
        path: PathBuf,
    },
    /// The queue knows of steps that no checkpoint has.
    #[error(
        "`{}` has no checkpoint, and the queue knows of {} with steps that were saved: {}",
        path.display(),
        match tasks.len() { 1 => "a task".to_owned(), count => format!("{count} tasks") },
        tasks.join(", ")
    )]
    CheckpointsGone {
        /// Where they should be.
        path: PathBuf,
        /// The tasks, with their steps.
        tasks: Vec<String>,
    },
    /// A task that only a server goes on with is to be resumed.
    #[error("`{name}` is not paused: it is interrupted, and no server runs")]
    Unserved {
        /// The task's name.
        name: String,
        /// The server's directory.
        directory: PathBuf,
    },
    /// The queue of a server that runs, or its lock, is not where it was.
    #[error(
        "`{}` was removed, moved or replaced while the server ran: nobody can reach it any more; the \
         tasks are saved", path.display()
    )]
    QueueGone {
        /// Where it was.
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
    /// A task that no place could ever be found for.
    #[error("`{name}` can never fit: {reason}")]
    NeverFits {
        /// The task's name.
        name: String,
        /// What is missing, with the numbers.
        reason: String,
    },
    /// Another task's adapter has the name.
    #[error("an adapter `{name}` is there already, in `{}`", path.display())]
    NameUsed {
        /// The name.
        name: String,
        /// Its directory.
        path: PathBuf,
    },
    /// Settings of a clone that cannot be.
    #[error("{}", of_clone(error))]
    Clone {
        /// What is wrong with them.
        error: ConfigError,
    },
    /// A clone with a second name.
    #[error("--set {setting}: `--name` names the new adapter")]
    TwoNames {
        /// The setting.
        setting: String,
    },
    /// What the queue keeps for the server cannot be read.
    #[error("the queue's record `{key}` cannot be read: {problem}")]
    Record {
        /// Which one.
        key: &'static str,
        /// Why not.
        problem: String,
    },
    /// A path of this machine cannot be told.
    #[error("cannot use `{}`: {source}", path.display())]
    Path {
        /// The path.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// The message in the words of `clone`: its one adapter stands for no list, and its name has an option.
fn of_clone(error: &ConfigError) -> String {
    let text = error.to_string();
    let text = text.replace("--set adapters.0.name=", "--name ");
    text.replace("--set adapters.0.", "--set ")
        .replace("adapters[0].", "")
}

impl ServerError {
    /// What to do about it, where that is known and not in the message already.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Queue(error) => return error.hint(),
            Self::Clone {
                error: ConfigError::Override { .. },
            } => "keys are those of an adapter, e.g. `--set train.learning_rate=1e-4`",
            Self::Config(error) | Self::Clone { error } => return error.hint(),
            Self::Trainer(error) => return error.hint(),
            Self::NotServed { path } if path.join(LOCK_NAME).exists() => {
                "a server was here: put its queue.sqlite back, or serve another directory, where \
                 `init_from` begins from an adapter of this one"
            }
            Self::NotServed { .. } => "`loraloom serve` needs a directory of its own",
            Self::Unserved { directory, .. } => {
                return Some(format!(
                    "`loraloom serve {}` goes on with it",
                    directory.display()
                ));
            }
            Self::NoConfiguration { .. } => {
                "begin with `loraloom serve RUNDIR --config CONFIG`: model, device, pipeline, scheduler"
            }
            Self::QueueGone { path } if path.ends_with(LOCK_NAME) => {
                "start the server again; two of them would train the same tasks"
            }
            Self::QueueGone { .. } => {
                "put it back and start the server again; without it, adapters and checkpoints are \
                 what is left"
            }
            Self::CheckpointsGone { .. } => {
                "put the checkpoints back and start the server again; nothing was changed. To begin \
                 anew, submit the tasks to another directory"
            }
            Self::OtherModel { .. } => {
                "a server trains over one model: leave `model` out, or start a server for the other one"
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

//! Arguments of a server and of the commands that speak to it.

use std::path::PathBuf;

use clap::{Args, ValueHint};

/// Arguments of `serve`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
RUN keeps the queue (queue.sqlite), the configuration, checkpoints, events and adapters. A second server \
in the same directory is refused. Begin with `loraloom serve RUN --config CONFIG`, where CONFIG says what \
model is trained, on what and by which scheduler; adapters in it are the first tasks. After that \
`loraloom serve RUN` is enough, and --config may give other devices or another scheduler.

Ctrl-C, SIGTERM, or SIGHUP unless it is ignored, finishes the step (one of more than 5 seconds is \
dropped, and taken again later), saves every task and exits with 130, or with 0 if no task was left to \
train; SIGUSR1 saves every task, and the server goes on. After that, or after kill -9, the next \
`serve` goes on from what was saved. There is no network: whoever can write in RUN can submit.")]
pub(crate) struct ServeArguments {
    /// The run directory; it is made where it is missing.
    #[arg(value_name = "RUN", value_hint = ValueHint::DirPath)]
    pub(crate) directory: PathBuf,
    /// The configuration: model, device, pipeline, scheduler and perhaps first adapters.
    #[arg(long, value_name = "CONFIG", value_hint = ValueHint::FilePath)]
    pub(crate) config: Option<PathBuf>,
    /// Set any key of the configuration by its dotted path, such as `scheduler.policy=fair`; can be
    /// given several times.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) overrides: Vec<String>,
    /// End once nothing is left to train, instead of waiting for tasks: with 1 if a task failed, or waits
    /// for a file that cannot be read.
    #[arg(long)]
    pub(crate) drain: bool,
}

/// Arguments of `submit`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Data is read and checked here, so that mistakes are found before a task is accepted; a task that can never \
fit in the server's memory is refused with the numbers (exit code 4). Once this has returned, the tasks \
are on the disk. `device`, `dtype`, `pipeline` and `scheduler` in CONFIG are not used: the server has its own.")]
pub(crate) struct SubmitArguments {
    /// The server's run directory.
    #[arg(value_name = "RUN", value_hint = ValueHint::DirPath)]
    pub(crate) directory: PathBuf,
    /// The configuration whose adapters are to be trained; `model` may be left out.
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) config: PathBuf,
    /// Set any key by its dotted path; can be given several times.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) overrides: Vec<String>,
    /// A name for this submission: submitted again with it, the same tasks are accepted once.
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Option<String>,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `status`.
#[derive(Debug, Args)]
pub(crate) struct StatusArguments {
    /// The server's run directory.
    #[arg(value_name = "RUN", value_hint = ValueHint::DirPath)]
    pub(crate) directory: PathBuf,
    /// Print again whenever something has changed, until every task has ended; on a screen, in its place.
    #[arg(long)]
    pub(crate) watch: bool,
    /// Leave out tasks that have ended.
    #[arg(long)]
    pub(crate) live: bool,
    /// Print one JSON object; with --watch, one a line.
    #[arg(long)]
    pub(crate) json: bool,
}

/// A server's run directory and one of its tasks.
#[derive(Debug, Args)]
pub(crate) struct TaskArguments {
    /// The server's run directory.
    #[arg(value_name = "RUN", value_hint = ValueHint::DirPath)]
    pub(crate) directory: PathBuf,
    /// The task, by the adapter's name or by its number.
    pub(crate) task: String,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `clone`.
#[derive(Debug, Args)]
pub(crate) struct CloneArguments {
    #[command(flatten)]
    pub(crate) of: TaskArguments,
    /// Name of the new adapter.
    #[arg(long)]
    pub(crate) name: String,
    /// Set a key of the adapter, such as `train.learning_rate=1e-4`; can be given several times.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) overrides: Vec<String>,
    /// A name for this submission: submitted again with it, the same task is accepted once.
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Option<String>,
}

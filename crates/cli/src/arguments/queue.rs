//! Arguments of `serve` and of the commands that talk to a server.

use std::{net::SocketAddr, path::PathBuf};

use clap::{ArgGroup, Args, ValueHint};
use loraloom_config::{DeviceChoice, DtypeChoice, MemoryLimit};

use super::{
    source::QuantizationArgument,
    values::{
        model_parser, parse_address, parse_count, parse_dtype, parse_memory, parse_named,
        parse_served_name, parse_share,
    },
};

/// Arguments of `serve`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
RUN holds the queue (queue.sqlite), the configuration, checkpoints, events and adapters. A second server \
in the same directory is refused. Start with `loraloom serve RUN --config CONFIG`: CONFIG sets the model, \
devices and scheduler, and its adapters become the first tasks. Later `loraloom serve RUN` is enough; \
--config then changes devices or the scheduler.

Ctrl-C, SIGTERM and SIGHUP (unless ignored) finish the current step, save every task and exit with 130, \
or with 0 if no task was left to train. A step that takes more than 5 seconds longer is dropped and \
repeated later. SIGUSR1 saves every task without stopping the server. The next `serve` continues from the \
last save, also after kill -9. Anyone who can write to RUN can submit. Without --listen the server does not \
listen on the network.

With --listen it also answers OpenAI's requests over HTTP while it trains: `model` is an adapter (NAME, its best \
save or else its last), NAME@live for its weights after the last step, or NAME@STEP for a save. \
With --inference-only it trains nothing and answers OpenAI's requests over HTTP for the adapters of RUN, or \
of --model and --adapter. It says where it listens when it is ready. Ctrl-C ends it when running answers \
are complete, or after 30 seconds.")]
pub(crate) struct ServeArguments {
    /// Run directory, created if missing.
    #[arg(
        value_name = "RUN",
        required_unless_present = "model",
        value_hint = ValueHint::DirPath
    )]
    pub(crate) directory: Option<PathBuf>,
    /// Configuration with model, device, pipeline, scheduler and optionally the first adapters.
    #[arg(long, value_name = "CONFIG", value_hint = ValueHint::FilePath)]
    pub(crate) config: Option<PathBuf>,
    /// Override a key of the configuration by its dotted path, such as `scheduler.policy=fair`.
    /// Repeatable.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) overrides: Vec<String>,
    /// Exit when nothing is left to train, instead of waiting for tasks. The exit code is 1 if a task
    /// failed or waits for a file that cannot be read, and 4 if no task fits in memory.
    #[arg(long)]
    pub(crate) drain: bool,
    /// Shell command that receives new events on its standard input, one JSON line each, as in
    /// events.jsonl.
    #[arg(long, value_name = "COMMAND", value_hint = ValueHint::CommandString)]
    pub(crate) events_to: Option<String>,
    /// Show a dashboard in the terminal instead of bars; `loraloom watch` shows it for any run.
    #[cfg(unix)]
    #[arg(long, conflicts_with = "quiet")]
    pub(crate) tui: bool,
    #[command(flatten)]
    pub(crate) inference: InferenceArguments,
}

/// Options of a server that trains. Clap ignores `requires = "inference_only"` if one of these is given, because they
/// conflict with `--inference-only`; so they conflict with every option that requires it.
const TRAINING: [&str; 6] = [
    "config",
    "overrides",
    "drain",
    "events_to",
    "inference_share",
    "tui",
];

/// Arguments of `serve` for answering requests.
#[derive(Debug, Args)]
#[command(
    next_help_heading = "Inference",
    group = ArgGroup::new("answers").args(["inference_only", "listen"]).multiple(true)
)]
pub(crate) struct InferenceArguments {
    /// Answer OpenAI's requests over HTTP, and train nothing.
    #[arg(
        long,
        conflicts_with_all = TRAINING
    )]
    pub(crate) inference_only: bool,
    /// Model directory, or a name in the Hugging Face cache, instead of RUN's.
    #[arg(
        long,
        value_name = "MODEL",
        requires = "inference_only",
        conflicts_with_all = TRAINING,
        value_parser = model_parser(),
        value_hint = ValueHint::DirPath
    )]
    pub(crate) model: Option<PathBuf>,
    /// An adapter that requests can name: its name and its PEFT directory. Repeatable; added to those of RUN.
    #[arg(long = "adapter", value_name = "NAME=DIR", requires = "inference_only", conflicts_with_all = TRAINING, value_parser = parse_named)]
    pub(crate) adapters: Vec<(String, PathBuf)>,
    /// Name of the base model in requests [default: the model's directory].
    #[arg(long, value_name = "NAME", requires = "answers", value_parser = parse_served_name)]
    pub(crate) served_model_name: Option<String>,
    /// Answer OpenAI's requests over HTTP at this address, also beside training [default with --inference-only:
    /// 127.0.0.1:8000]. Port 0 takes a free one. Other machines reach only addresses that are not of loopback.
    #[arg(long, value_name = "HOST:PORT", value_parser = parse_address)]
    pub(crate) listen: Option<SocketAddr>,
    /// File with the keys that requests need, each on a line:
    /// `KEY [TENANT [admin] [weight=N] [requests_per_minute=N] [tokens_per_minute=N]]`.
    #[arg(long, value_name = "FILE", requires = "answers", value_hint = ValueHint::FilePath)]
    pub(crate) api_keys: Option<PathBuf>,
    /// Memory for the model, its adapters, and keys and values: a size such as 20GiB, or a fraction of the device's
    /// [default: 0.9]. Beside training it is without the model [default: 0.1], and training gets so much less.
    #[arg(long, value_name = "SIZE", requires = "answers", value_parser = parse_memory)]
    pub(crate) memory_limit: Option<MemoryLimit>,
    /// Most of the time that answers may take from training, as a fraction. A request's first token may borrow a second.
    #[arg(long, value_name = "FRACTION", default_value_t = 0.5, requires = "listen", value_parser = parse_share)]
    pub(crate) inference_share: f64,
    /// Most requests that run at a time; others wait.
    #[arg(long, value_name = "N", default_value_t = 64, requires = "answers", value_parser = parse_count)]
    pub(crate) max_num_seqs: usize,
    /// Most tokens in a step. Longer prompts are computed in parts.
    #[arg(long, value_name = "N", default_value_t = 1024, requires = "answers", value_parser = parse_count)]
    pub(crate) max_num_batched_tokens: usize,
    /// Device to compute on: auto, cpu, wgpu, wgpu:INDEX, cuda or cuda:INDEX.
    #[arg(long, default_value_t = DeviceChoice::Auto, requires = "inference_only", conflicts_with_all = TRAINING)]
    pub(crate) device: DeviceChoice,
    /// Type of the model's weights and activations: auto, float32, bfloat16 or float16.
    #[arg(long, default_value = "auto", requires = "inference_only", conflicts_with_all = TRAINING, value_parser = parse_dtype)]
    pub(crate) dtype: DtypeChoice,
    /// Storage of the model's linear layers: nf4, or none for that of the checkpoint [default: the run's, if there is one,
    /// or none].
    #[arg(long, value_name = "TYPE", requires = "inference_only", conflicts_with_all = TRAINING)]
    pub(crate) quantization: Option<QuantizationArgument>,
}

/// Arguments of `submit`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Data is read and checked before a task is accepted. A task that can never fit in the server's memory is \
refused with the numbers (exit code 4). When the command returns, its tasks are on disk. `device`, `dtype`, \
`gradient_checkpointing`, `output_dir`, `pipeline` and `scheduler` in CONFIG are ignored, and refused with \
`--set`: the server has its own. The name of \
a sweep must be new to the server.")]
pub(crate) struct SubmitArguments {
    /// Run directory of the server.
    #[arg(value_name = "RUN", value_hint = ValueHint::DirPath)]
    pub(crate) directory: PathBuf,
    /// Configuration with the adapters to train; `model` is optional.
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) config: PathBuf,
    /// Override a key by its dotted path. Repeatable.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) overrides: Vec<String>,
    /// Idempotency key: a submission that is repeated with the same key is accepted once.
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Option<String>,
    /// Check everything and print the tasks, but submit nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `status`.
#[derive(Debug, Args)]
pub(crate) struct StatusArguments {
    /// Run directory of the server.
    #[arg(value_name = "RUN", value_hint = ValueHint::DirPath)]
    pub(crate) directory: PathBuf,
    /// Print again on every change, until every task has ended; redraws in place on a terminal.
    #[arg(long)]
    pub(crate) watch: bool,
    /// Show only tasks that have not ended.
    #[arg(long)]
    pub(crate) live: bool,
    /// Print one JSON object; with --watch, one per line.
    #[arg(long)]
    pub(crate) json: bool,
}

/// A server's run directory and one of its tasks.
#[derive(Debug, Args)]
pub(crate) struct TaskArguments {
    /// Run directory of the server.
    #[arg(value_name = "RUN", value_hint = ValueHint::DirPath)]
    pub(crate) directory: PathBuf,
    /// Name of the adapter, or number of the task; digits are always a number.
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
    /// Change a setting of the adapter, such as `train.learning_rate=1e-4`. Repeatable.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) overrides: Vec<String>,
    /// Idempotency key: a clone that is repeated with the same key is accepted once.
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Option<String>,
}

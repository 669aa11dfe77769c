//! Arguments of `plan`, `train` and `worker`.

use std::{net::SocketAddr, path::PathBuf};

use clap::{Args, ValueHint};
use loraloom_config::DeviceChoice;

use super::{
    ConfigArguments,
    values::{model_parser, parse_positive},
};

/// Arguments of `plan`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Bytes of weights, adapters, moments and gradients are exact for the printed type. Activations, work, \
idle time and bytes between stages are estimates for the average step of the data, marked with *. The \
notes below the tables list what each estimate leaves out.")]
pub(crate) struct PlanArguments {
    #[command(flatten)]
    pub(crate) config: ConfigArguments,
    /// Also draw the first iterations as SVG.
    #[arg(long, value_name = "FILE.svg", value_hint = ValueHint::FilePath)]
    pub(crate) gantt: Option<PathBuf>,
    /// Speed of a stage in TFLOP/s, as printed by `loraloom bench`; predicts times.
    #[arg(long, value_name = "T", value_parser = parse_positive)]
    pub(crate) tflops: Option<f64>,
    /// Speed of the links between stages in Gbit/s, with --tflops [default: transfers take no time].
    #[arg(long, value_name = "G", value_parser = parse_positive)]
    pub(crate) link_gbits: Option<f64>,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `train`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
The loss of a step is the mean cross-entropy of its target tokens, over the whole step of that adapter, \
however it is batched.

Ctrl-C finishes the step, saves every adapter and exits with 130; a second Ctrl-C exits at once. A step \
that takes more than 5 seconds longer is dropped; `--resume` repeats it, and up to a minute of steps \
before it. SIGTERM does the same, and so does SIGHUP unless it is ignored, as under nohup. SIGUSR1 saves \
every adapter and a checkpoint after the step, and the run continues.

To continue a run that was interrupted, was killed or lost a worker:

  loraloom train CONFIG --resume       in the run directory of CONFIG
  loraloom train --resume RUN          with the configuration in the run directory RUN

It continues from the newest complete checkpoint in RUN/checkpoints. On the CPU every adapter ends with \
the same bits as in an uninterrupted run. You may change devices, stages, micro-batches (which round otherwise), gradient \
checkpointing, the scheduler's settings, priorities, tenants and the settings of save, and add adapters; other \
changes are refused. Finished adapters are not trained again.")]
pub(crate) struct TrainArguments {
    #[command(flatten)]
    pub(crate) config: ConfigArguments,
    /// Continue the run in the run directory; CONFIG may be that directory.
    #[arg(long, aliases = ["resume_from_checkpoint", "resume-from-checkpoint"])]
    pub(crate) resume: bool,
    /// Run directory, instead of the configuration's. Must not hold a run, except with
    /// --resume, nor other files.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) output_dir: Option<PathBuf>,
    /// Device, instead of the configuration's: auto, cpu, wgpu, wgpu:INDEX, cuda or cuda:INDEX. Not
    /// with several stages.
    #[arg(long)]
    pub(crate) device: Option<DeviceChoice>,
    /// Rows that each adapter answers before and after training, for the report; 0 for none [default: 2
    /// for each of the first 4 adapters]. Rows with completions above 64 tokens are skipped.
    #[arg(long, value_name = "N")]
    pub(crate) samples: Option<usize>,
    /// Shell command that receives new events on its standard input, one JSON line each, as in
    /// events.jsonl.
    #[arg(long, value_name = "COMMAND", value_hint = ValueHint::CommandString)]
    pub(crate) events_to: Option<String>,
    /// Show a dashboard in the terminal instead of bars; `loraloom watch` shows it for any run.
    #[cfg(unix)]
    #[arg(long, conflicts_with_all = ["json", "quiet"])]
    pub(crate) tui: bool,
    /// Print the report as one JSON object on stdout.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `worker`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Prints one line on stdout when it is ready: remote:ID@HOST:PORT, the entry for this stage in \
`pipeline.stages`. Serves one run after another until it is stopped. The other workers and the machine of \
`train` must reach HOST over UDP.")]
pub(crate) struct WorkerArguments {
    /// Address and port to listen on, such as 10.0.0.7:4433; port 0 takes any free port.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: SocketAddr,
    /// File with the worker's secret key, from which ID is derived; created if missing.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) identity: PathBuf,
    /// File with the same token as the controller's `pipeline.token_file`.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) token_file: PathBuf,
    /// Model directory, or a name in the Hugging Face cache, with the same files as on the machine of `train`.
    #[arg(long, value_name = "MODEL", value_parser = model_parser(), value_hint = ValueHint::DirPath)]
    pub(crate) model: PathBuf,
    /// Device to compute on: auto, cpu, wgpu, wgpu:INDEX, cuda or cuda:INDEX.
    #[arg(long, default_value = "auto")]
    pub(crate) device: DeviceChoice,
}

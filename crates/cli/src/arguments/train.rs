//! Arguments of `plan`, `train` and `worker`.

use std::{net::SocketAddr, path::PathBuf};

use clap::{Args, ValueHint};
use loraloom_config::DeviceChoice;

use super::{ConfigArguments, values::parse_positive};

/// Arguments of `plan`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Bytes of weights, adapters, moments and gradients are exact for the type that is printed. Activations, \
work, idle time and bytes between stages are estimates for the data's average step, and are marked; the \
notes below the tables say what each leaves out.")]
pub(crate) struct PlanArguments {
    /// What to plan.
    #[command(flatten)]
    pub(crate) config: ConfigArguments,
    /// Also draw the first iterations, as an SVG image.
    #[arg(long, value_name = "FILE.svg", value_hint = ValueHint::FilePath)]
    pub(crate) gantt: Option<PathBuf>,
    /// Speed of a stage in 10^12 operations a second, as `loraloom bench` prints it, to predict time.
    #[arg(long, value_name = "T", value_parser = parse_positive)]
    pub(crate) tflops: Option<f64>,
    /// Speed of the links between stages in 10^9 bits a second; left out, transfers take no time.
    #[arg(long, value_name = "G", value_parser = parse_positive, requires = "tflops")]
    pub(crate) link_gbits: Option<f64>,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `train`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
The loss of a step is the sum of its target tokens' cross-entropies divided by their number, over the \
whole step of that adapter, however it is batched.

Ctrl-C finishes the step, saves every adapter and exits with 130; a second one quits at once. A step \
that takes more than 5 seconds is dropped: `--resume` takes it again, with at most a minute of steps \
before it. SIGTERM does the same, and SIGHUP unless it is ignored, as under nohup. SIGUSR1 saves every adapter and a \
checkpoint after the step, and the run goes on.

A run that was interrupted, killed, or lost a worker goes on with

  loraloom train CONFIG --resume       in the configuration's run directory
  loraloom train --resume RUN          with the configuration that the run directory RUN keeps

from its newest whole checkpoint in RUN/checkpoints. On the CPU every adapter ends with the bits of a \
run that was never interrupted. Devices, stages, micro-batches, gradient checkpointing, the scheduler's \
settings, priorities and save.steps may change, adapters may be added, and nothing else. Adapters that have ended stay as they are; if all have, nothing is done.")]
pub(crate) struct TrainArguments {
    /// What to train.
    #[command(flatten)]
    pub(crate) config: ConfigArguments,
    /// Go on with the run in the run directory; CONFIG may be that directory.
    #[arg(long, aliases = ["resume_from_checkpoint", "resume-from-checkpoint"])]
    pub(crate) resume: bool,
    /// The run directory, instead of the configuration's; must not hold a run already, unless with
    /// --resume.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) output_dir: Option<PathBuf>,
    /// Where to compute, instead of the configuration's: auto, cpu, wgpu, wgpu:INDEX, cuda or cuda:INDEX.
    /// Not with several stages.
    #[arg(long)]
    pub(crate) device: Option<DeviceChoice>,
    /// Rows of its dataset that each adapter answers before and after training, as the report shows;
    /// 0 for none. Left out, the first 4 adapters answer 2. Longer completions than 64 tokens are skipped.
    #[arg(long, value_name = "N")]
    pub(crate) samples: Option<usize>,
    /// Print the report as one JSON object to stdout at the end.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `worker`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Prints one line, remote:ID@HOST:PORT, once it can be reached: what `pipeline.stages` has for this stage. \
Serves one run after another until it is stopped. HOST must be the address that the other workers and \
the machine of `train` reach this machine at; the network between them must let UDP through.")]
pub(crate) struct WorkerArguments {
    /// Address and port to listen on, such as 10.0.0.7:4433; port 0 takes any that is free.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: SocketAddr,
    /// File with the worker's secret key, which ID follows from; made if it does not exist.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) identity: PathBuf,
    /// File with the token that `pipeline.token_file` has, too.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) token_file: PathBuf,
    /// The model directory; the same files as where `train` runs.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) model: PathBuf,
    /// What to compute on: auto, cpu, wgpu, wgpu:INDEX, cuda or cuda:INDEX.
    #[arg(long, default_value = "auto")]
    pub(crate) device: DeviceChoice,
}

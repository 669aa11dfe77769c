//! The command line. These comments are the help text, and the help text is the documentation.
#![expect(clippy::doc_markdown, reason = "help is read without Markdown")]

use std::{net::SocketAddr, path::PathBuf};

use clap::{
    ArgGroup, Args, Parser, Subcommand, ValueHint,
    builder::{PossibleValuesParser, TypedValueParser},
};
use clap_complete::Shell;
use loraloom_config::{DeviceChoice, DtypeChoice};
use loraloom_model::LlamaConfig;
use loraloom_scheduler::{Padding, simulate::SimulatedPolicy};

use crate::exit::Exit;

/// How to begin.
const START: &str = "Start with: loraloom init my-run && loraloom train my-run/loraloom.yaml";

/// Fine-tune many LoRA adapters at once over one frozen Llama-family model.
///
/// A configuration names a model, datasets and adapters; `loraloom train` trains all adapters in one
/// run, sharing the model. Results are plain PEFT directories.
#[derive(Debug, Parser)]
#[command(
    name = "loraloom",
    version,
    disable_help_subcommand = true,
    max_term_width = 100,
    after_help = START,
    after_long_help = format!("{START}\n\n{}", Exit::table())
)]
pub(crate) struct Arguments {
    /// What is printed besides the data.
    #[command(flatten)]
    pub(crate) output: OutputArguments,
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What is printed besides the data.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct OutputArguments {
    /// Print nothing but data and errors.
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    /// Print plain lines instead of progress bars, as is done anyway if stderr is no terminal.
    #[arg(long, global = true)]
    pub(crate) no_progress: bool,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Write a configuration, small datasets and a tiny model to try everything with.
    Init(InitArguments),
    /// Check a configuration, its model, tokenizer, data and directories; needs no device.
    Check(CheckArguments),
    /// Say what a run would take before it starts: memory, groups, balance, idle time; needs no device.
    Plan(PlanArguments),
    /// Train every adapter of a configuration to its end.
    Train(TrainArguments),
    /// Train what is submitted to a run directory, for as long as it runs.
    Serve(ServeArguments),
    /// Give a server the adapters of a configuration to train; it need not run just now.
    Submit(SubmitArguments),
    /// Show how the tasks of a server stand.
    Status(StatusArguments),
    /// Have a task leave its place, and keep all of it.
    Pause(TaskArguments),
    /// Have a paused task go on.
    Resume(TaskArguments),
    /// End a task for good; what it has saved stays.
    Cancel(TaskArguments),
    /// Submit a task like another, with other settings.
    Clone(CloneArguments),
    /// Say why a task trains or waits, and what happened to it.
    Explain(TaskArguments),
    /// Complete a prompt with adapters, side by side, and with the base model to compare.
    Generate(GenerateArguments),
    /// Hold a stage of a model for a `train` on another machine, on this machine's device.
    Worker(WorkerArguments),
    /// Replay a job trace on a virtual clock with the scheduler that training has; needs no device.
    Simulate(SimulateArguments),
    /// Measure this machine: the operator alone, and training steps over random weights.
    Bench(BenchArguments),
    /// Look over this machine: backends, devices, disk, model files.
    Doctor(DoctorArguments),
    /// Show, describe or import configurations.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print a completion script for a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
}

/// Arguments of `init`.
#[derive(Debug, Args)]
pub(crate) struct InitArguments {
    /// Directory to write to; it is created if it does not exist.
    #[arg(default_value = ".", value_hint = ValueHint::DirPath)]
    pub(crate) directory: PathBuf,
    /// Overwrite files that exist.
    #[arg(long)]
    pub(crate) force: bool,
}

/// A configuration file and what the command line changes of it.
#[derive(Debug, Clone, Args)]
pub(crate) struct ConfigArguments {
    /// The configuration: YAML, TOML or JSON by its extension, or an mLoRA YAML.
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) config: PathBuf,
    /// Set any key by its dotted path, such as `defaults.train.learning_rate=1e-4` or
    /// `adapters.NAME.lora.r=8`; can be given several times.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) overrides: Vec<String>,
    /// The model directory, instead of the configuration's; an mLoRA YAML has none.
    #[arg(long, alias = "base_model", value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) base_model: Option<PathBuf>,
}

/// Arguments of `check`.
#[derive(Debug, Args)]
pub(crate) struct CheckArguments {
    /// What to check.
    #[command(flatten)]
    pub(crate) config: ConfigArguments,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

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

fn parse_positive(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(number) if number > 0.0 && f64::is_finite(number) => Ok(number),
        _ => Err("expected a number above 0".to_owned()),
    }
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

/// Arguments of `train`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
The loss of a step is the sum of its target tokens' cross-entropies divided by their number, over the \
whole step of that adapter, however it is batched.

Ctrl-C finishes the step, saves every adapter and exits with 130; a second one quits at once.

A run that was interrupted, killed, or lost a worker goes on with

  loraloom train CONFIG --resume       in the configuration's run directory
  loraloom train --resume RUN          with the configuration that the run directory RUN keeps

from its newest whole checkpoint in RUN/checkpoints. On the CPU every adapter ends with the bits of a \
run that was never interrupted. Devices, stages, priorities and save.steps may change, adapters may be \
added, and nothing else. Adapters that have ended stay as they are; if all have, nothing is done.")]
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
    /// Print the report as one JSON object to stdout at the end.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `serve`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
RUN keeps the queue (queue.sqlite), the configuration, checkpoints, events and adapters. A second server \
in the same directory is refused. Begin with `loraloom serve RUN --config CONFIG`, where CONFIG says what \
model is trained, on what and by which scheduler; adapters in it are the first tasks. After that \
`loraloom serve RUN` is enough, and --config may give other devices or another scheduler.

Ctrl-C finishes the step, saves every task and exits with 130. After that, or after kill -9, the next \
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
    /// End once nothing is left to train, instead of waiting for tasks.
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
    /// Print again whenever something has changed, until every task has ended.
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
    /// The server's run directory.
    #[arg(value_name = "RUN", value_hint = ValueHint::DirPath)]
    pub(crate) directory: PathBuf,
    /// The task, by the adapter's name or by its number.
    pub(crate) task: String,
    /// Name of the new adapter.
    #[arg(long)]
    pub(crate) name: String,
    /// Set a key of the adapter, such as `train.learning_rate=1e-4`; can be given several times.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) overrides: Vec<String>,
    /// A name for this submission: submitted again with it, the same task is accepted once.
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Option<String>,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `generate`.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("source").required(true).multiple(true).args(["run", "model"])))]
pub(crate) struct GenerateArguments {
    /// The prompt; `-` reads it from stdin.
    pub(crate) prompt: String,
    /// A run directory; its model, and its adapters by their names.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) run: Option<PathBuf>,
    /// The model directory; with `--run`, instead of the run's.
    #[arg(long, value_name = "DIR", alias = "base-model", value_hint = ValueHint::DirPath)]
    pub(crate) model: Option<PathBuf>,
    /// Adapters, separated by commas: names in the run (the best state if there is one; `NAME@last`
    /// is the last) or PEFT directories. Left out, it is every adapter of the run.
    #[arg(long = "adapter", value_name = "ADAPTER", value_delimiter = ',')]
    pub(crate) adapters: Vec<String>,
    /// Complete the prompt without an adapter too.
    #[arg(long)]
    pub(crate) compare_base: bool,
    /// Stop after this many tokens.
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub(crate) max_new_tokens: usize,
    /// Divide logits by this before drawing; 0 always takes the most likely token.
    #[arg(
        long,
        value_name = "T",
        default_value_t = 0.0,
        allow_negative_numbers = true
    )]
    pub(crate) temperature: f64,
    /// Draw from this many most likely tokens only.
    #[arg(long, value_name = "K")]
    pub(crate) top_k: Option<usize>,
    /// Draw from the fewest most likely tokens that together have this probability.
    #[arg(long, value_name = "P")]
    pub(crate) top_p: Option<f64>,
    /// Seed of the draws.
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Put the prompt into the tokenizer's chat template as the user's message.
    #[arg(long)]
    pub(crate) chat: bool,
    /// Where to compute: auto, cpu, wgpu, wgpu:INDEX, cuda or cuda:INDEX.
    #[arg(long, default_value_t = DeviceChoice::Auto)]
    pub(crate) device: DeviceChoice,
    /// Type of the model's weights: auto, float32, bfloat16 or float16.
    #[arg(long, default_value = "auto", value_parser = parse_dtype)]
    pub(crate) dtype: DtypeChoice,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

fn parse_dtype(text: &str) -> Result<DtypeChoice, String> {
    match text {
        "auto" => Ok(DtypeChoice::Auto),
        "float32" => Ok(DtypeChoice::Float32),
        "bfloat16" => Ok(DtypeChoice::Bfloat16),
        "float16" => Ok(DtypeChoice::Float16),
        _ => Err("expected auto, float32, bfloat16 or float16".to_owned()),
    }
}

/// Arguments of `simulate`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
TRACE is CSV with the columns timestamp (YYYY-MM-DD HH:MM:SS), duration (seconds), num_gpus and cluster, \
as in Microsoft's Philly traces. A job is one adapter of one tenant, its cluster; it takes as many steps \
as fill its duration with a device to itself. Rank (2, 4, 8, 16), batch size (1, 2, 4, 8) and length \
(128, 256, 512, 1024) are drawn from the seed. num_gpus is not used.

Each device has the whole model and trains one group, as the groups of a pipeline of so many stages do \
that is never idle. Iterations take what the costs say; the scheduler does not know them and fits its \
own. Everything but the time of a decision is the same for the same seed.

Policies: one_task_per_device (first come, first served), naive_grouping (first come, first served, \
all that fits), and strict_fifo, best_effort_fifo and fair with grouping under --max-slowdown.")]
pub(crate) struct SimulateArguments {
    /// The trace.
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) trace: PathBuf,
    /// The policy.
    #[arg(long, default_value = "best_effort_fifo", value_parser = policies(), conflicts_with = "compare")]
    pub(crate) policy: SimulatedPolicy,
    /// Replay under every policy.
    #[arg(long)]
    pub(crate) compare: bool,
    /// Number of jobs, one after another in order of arrival.
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = parse_count)]
    pub(crate) jobs: usize,
    /// The first of them, counted from 0 in order of arrival; left out, it is drawn from the seed.
    #[arg(long, value_name = "N")]
    pub(crate) start: Option<usize>,
    /// Number of devices.
    #[arg(long, value_name = "D", default_value_t = 8, value_parser = parse_count)]
    pub(crate) devices: usize,
    /// Spread arrivals so that devices with one task each would have this many times too much to do.
    #[arg(long, value_name = "X", default_value_t = 2.0, value_parser = parse_positive)]
    pub(crate) load: f64,
    /// Leave arrivals as they are in the trace.
    #[arg(long, conflicts_with = "load")]
    pub(crate) as_recorded: bool,
    /// Seed of all draws.
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// JSON file with what iterations take, instead of the built-in costs.
    #[arg(long, value_name = "FILE.json", value_hint = ValueHint::FilePath)]
    pub(crate) costs: Option<PathBuf>,
    /// Largest slowdown of a task by its group.
    #[arg(long, value_name = "X", default_value_t = 1.2, value_parser = parse_positive)]
    pub(crate) max_slowdown: f64,
    /// Whether naive_grouping pads its batches: longest, as mLoRA's, or none, as loraloom's and those of
    /// all other policies.
    #[arg(long, value_name = "PADDING", default_value = "longest", value_parser = paddings())]
    pub(crate) naive_padding: Padding,
    /// Standard deviation of the seconds that the scheduler measures, relative to the true ones.
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = parse_not_negative)]
    pub(crate) noise: f64,
    /// Also draw completion times, and running and waiting jobs over time, as an SVG image.
    #[arg(long, value_name = "FILE.svg", value_hint = ValueHint::FilePath)]
    pub(crate) chart: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

fn policies() -> impl TypedValueParser<Value = SimulatedPolicy> {
    let names = SimulatedPolicy::ALL.map(SimulatedPolicy::name);
    PossibleValuesParser::new(names).try_map(|name| name.parse())
}

fn paddings() -> impl TypedValueParser<Value = Padding> {
    PossibleValuesParser::new(["longest", "none"]).map(|name| match name.as_str() {
        "none" => Padding::None,
        _ => Padding::ToLongest,
    })
}

fn parse_not_negative(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(number) if number >= 0.0 && f64::is_finite(number) => Ok(number),
        _ => Err("expected a number of at least 0".to_owned()),
    }
}

/// Arguments of `bench`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Kernels: one layer, forward and backward, in three ways. `frozen` is the products with the frozen \
weight alone; `composed` is Burn's operations, one adapter after another; `fused` is the operator that \
training uses, and `shrink`, `expand_add`, `weight_grad` and `output_grads` are its kernels, once each. \
Adapters share the rows evenly: rank 16 each, then ranks 4, 8, 16 and 64 mixed.

End to end: forward, loss, backward, clipping and AdamW of adapters of one rank on q, k, v and o, over \
random tokens. Dropout is 0.05 in both. TFLOP/s counts 4 operations a token and frozen weight plus \
attention, not the adapters.")]
pub(crate) struct BenchArguments {
    /// Measure the operator alone only.
    #[arg(long, conflicts_with = "end_to_end_only")]
    pub(crate) kernels_only: bool,
    /// Measure whole training steps only.
    #[arg(long)]
    pub(crate) end_to_end_only: bool,
    /// Numbers of adapters, separated by commas. Left out: for kernels 1 to 64, end to end two of them.
    #[arg(long, value_name = "K", value_delimiter = ',', value_parser = parse_count)]
    pub(crate) adapters: Vec<usize>,
    /// Rows of a kernel's batch [default: 8192 on a GPU, else 256].
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub(crate) rows: Option<usize>,
    /// Width of the layer's input [default: 4096 on a GPU, else 512].
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub(crate) d_in: Option<usize>,
    /// Width of the layer's output [default: 4096 on a GPU, else 512].
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub(crate) d_out: Option<usize>,
    /// Shape of the model [default: tinyllama-1.1b on a GPU, else micro].
    #[arg(long, value_parser = PossibleValuesParser::new(LlamaConfig::names()))]
    pub(crate) shape: Option<String>,
    /// Rank of the adapters of whole training steps.
    #[arg(long, value_name = "R", default_value_t = 16, value_parser = parse_count)]
    pub(crate) rank: usize,
    /// Sequences of each adapter in a step [default: 8 on a GPU, else 2].
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub(crate) batch: Option<usize>,
    /// Tokens of a sequence [default: 512 on a GPU, else 128].
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub(crate) length: Option<usize>,
    /// Steps that are timed, in each of three runs.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = parse_count)]
    pub(crate) steps: usize,
    /// Keep the inputs of layers only and compute the rest again in the backward pass.
    #[arg(long)]
    pub(crate) gradient_checkpointing: bool,
    /// Also train the same adapters one after another.
    #[arg(long, conflicts_with = "kernels_only")]
    pub(crate) vs_sequential: bool,
    /// Where to compute: auto, cpu, wgpu, wgpu:INDEX, cuda or cuda:INDEX.
    #[arg(long, default_value_t = DeviceChoice::Auto)]
    pub(crate) device: DeviceChoice,
    /// Type of frozen weights and activations: auto, float32, bfloat16 or float16.
    #[arg(long, default_value = "auto", value_parser = parse_dtype)]
    pub(crate) dtype: DtypeChoice,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

fn parse_count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("expected a number above 0".to_owned()),
        Ok(count) => Ok(count),
    }
}

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArguments {
    /// Look at this model directory too.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) model: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// The commands below `config`.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print a configuration with every default filled in, as it would be run.
    Show {
        /// What to show.
        #[command(flatten)]
        config: ConfigArguments,
        /// Print JSON instead of YAML.
        #[arg(long)]
        json: bool,
    },
    /// Print the JSON schema of a configuration file, for editors.
    Schema,
    /// Print an mLoRA YAML as a configuration of loraloom.
    Import {
        /// The mLoRA YAML.
        #[arg(value_name = "MLORA", value_hint = ValueHint::FilePath)]
        path: PathBuf,
        /// The model directory, which an mLoRA YAML does not name.
        #[arg(long, alias = "base_model", value_name = "DIR", value_hint = ValueHint::DirPath)]
        base_model: Option<PathBuf>,
    },
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::Arguments;

    #[test]
    fn the_definition_is_consistent() {
        Arguments::command().debug_assert();
    }
}

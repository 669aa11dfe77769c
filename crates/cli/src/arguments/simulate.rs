#![expect(clippy::doc_markdown, reason = "help is read without Markdown")]

use std::path::PathBuf;

use clap::{
    Args, ValueHint,
    builder::{PossibleValuesParser, TypedValueParser},
};
use loraloom_simulator::{Padding, SimulatedPolicy};

use super::values::{
    parse_count, parse_index, parse_not_negative, parse_positive, parse_slowdown, parse_whole,
};

/// Arguments of `simulate`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
TRACE is CSV with the columns timestamp (YYYY-MM-DD HH:MM:SS), duration (seconds), num_gpus and cluster, \
as in Microsoft's Philly traces. Each job becomes one adapter; its cluster is the tenant. It has as \
many steps as fill its duration alone on a device. Rank (2, 4, 8, 16), batch size (1, 2, 4, 8) and length \
(128, 256, 512, 1024) are drawn from the seed. num_gpus is ignored.

Each device holds the whole model and trains one group, which models a pipeline with as many stages as \
devices and no idle time. The costs determine how long iterations take; the scheduler does not know them \
and fits its own. The same seed gives the same results, except for the time of a decision.

Policies: one_task_per_device, naive_grouping (the first device with room, as mLoRA) and least_loaded (the \
device with room and the fewest tokens per step), all first come, first served; rpm (strict_fifo with \
--rate-limit) and lcf (fair without the lift of a tenant that returns), the baselines of VTC; and \
strict_fifo, best_effort_fifo and fair. The last five group under --max-slowdown.")]
pub(crate) struct SimulateArguments {
    /// Job trace.
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) trace: PathBuf,
    /// Policy to simulate.
    #[arg(long, default_value = "best_effort_fifo", value_parser = policies(), conflicts_with = "compare")]
    pub(crate) policy: SimulatedPolicy,
    /// Simulate every policy.
    #[arg(long)]
    pub(crate) compare: bool,
    /// Number of jobs, consecutive in order of arrival [default: 2000, or all that the trace has].
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub(crate) jobs: Option<usize>,
    /// Index of the first job, from 0 in order of arrival [default: drawn from the seed].
    #[arg(long, value_name = "N", value_parser = parse_index)]
    pub(crate) start: Option<usize>,
    /// Number of devices, at most 1024.
    #[arg(long, value_name = "D", default_value_t = 8, value_parser = parse_count)]
    pub(crate) devices: usize,
    /// Scale arrivals so that devices with one task each would be loaded X times over.
    #[arg(long, value_name = "X", default_value_t = 2.0, value_parser = parse_positive)]
    pub(crate) load: f64,
    /// Keep the arrival times of the trace.
    #[arg(long, conflicts_with = "load")]
    pub(crate) as_recorded: bool,
    /// Seed of all random choices.
    #[arg(long, default_value_t = 0, value_parser = parse_whole)]
    pub(crate) seed: u64,
    /// JSON file with the costs of iterations, instead of the built-in ones.
    #[arg(long, value_name = "FILE.json", value_hint = ValueHint::FilePath)]
    pub(crate) costs: Option<PathBuf>,
    /// Largest slowdown of a task by the other tasks of its group [default: 1.2].
    #[arg(long, value_name = "X", value_parser = parse_slowdown)]
    pub(crate) max_slowdown: Option<f64>,
    /// Padding of naive_grouping's batches: longest, as in mLoRA, or none, as in all other policies [default: longest].
    #[arg(long, value_name = "PADDING", value_parser = paddings())]
    pub(crate) naive_padding: Option<Padding>,
    /// Tasks that rpm lets a tenant submit within 24 hours; others wait [default: 64].
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub(crate) rate_limit: Option<usize>,
    /// Standard deviation of the seconds that the scheduler measures, relative to the true ones.
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = parse_not_negative)]
    pub(crate) noise: f64,
    /// Also draw completion times, and running and waiting jobs over time, as SVG.
    #[arg(long, value_name = "FILE.svg", value_hint = ValueHint::FilePath)]
    pub(crate) chart: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

fn policies() -> impl TypedValueParser<Value = SimulatedPolicy> {
    let names = SimulatedPolicy::ALL.map(SimulatedPolicy::name);
    PossibleValuesParser::new(names)
        .try_map(|name| SimulatedPolicy::named(&name).ok_or("no such policy"))
}

fn paddings() -> impl TypedValueParser<Value = Padding> {
    PossibleValuesParser::new(["longest", "none"]).map(|name| match name.as_str() {
        "none" => Padding::None,
        _ => Padding::ToLongest,
    })
}

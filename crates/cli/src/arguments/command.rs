//! The commands.
#![expect(clippy::doc_markdown, reason = "help is read without Markdown")]

use std::{ffi::OsString, path::PathBuf};

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueHint};
use clap_complete::Shell;

use super::{
    BenchArguments, CheckArguments, CloneArguments, ConfigCommand, DataCommand, DoctorArguments,
    EvalArguments, ExportArguments, GenerateArguments, InitArguments, MergeArguments,
    PlanArguments, ReportArguments, ServeArguments, SimulateArguments, StatusArguments,
    SubmitArguments, TaskArguments, TrainArguments, VerifyArguments, WatchArguments,
    WorkerArguments,
};
use crate::exit::Exit;

const START: &str = "Start with: loraloom init my-run && loraloom train my-run/loraloom.yaml";

/// Fine-tune many LoRA adapters at once over one frozen Llama-family model.
///
/// A configuration names a model, datasets and adapters. `loraloom train` trains all adapters in
/// one run over one copy of the model and writes each as a PEFT directory.
#[derive(Debug, Parser)]
#[command(
    name = "loraloom",
    version,
    max_term_width = 100,
    after_help = START,
    after_long_help = format!("{START}\n\n{}", Exit::table())
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) output: OutputArguments,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Options for everything printed besides data.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct OutputArguments {
    /// Print only data and errors.
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    /// Print plain lines instead of progress bars; the default if stderr is not a terminal.
    #[arg(long, global = true)]
    pub(crate) no_progress: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Write a starter configuration with small datasets and a tiny model.
    Init(InitArguments),
    /// Check a configuration, its model, tokenizer, data, plan and directories. Needs no device.
    Check(CheckArguments),
    /// Inspect the rows of a configuration as they are trained on.
    #[command(subcommand)]
    Data(DataCommand),
    /// Estimate a run's memory, grouping, stage balance and idle time. Needs no device.
    Plan(PlanArguments),
    /// Train every adapter of a configuration.
    Train(TrainArguments),
    /// Start a server that trains the tasks submitted to its run directory.
    Serve(ServeArguments),
    /// Submit the adapters of a configuration to a server, which need not be running.
    Submit(SubmitArguments),
    /// Show the tasks of a server and their progress.
    Status(StatusArguments),
    /// Pause a task, keeping its progress.
    Pause(TaskArguments),
    /// Resume a paused or failed task.
    Resume(TaskArguments),
    /// Cancel a task for good, keeping the files it has saved.
    Cancel(TaskArguments),
    /// Submit a copy of a task with some settings changed.
    Clone(CloneArguments),
    /// Explain why a task trains or waits, with its history.
    Explain(TaskArguments),
    /// Complete a prompt with several adapters side by side, and with the base model.
    Generate(GenerateArguments),
    /// Fold adapters into their base and write it as a Hugging Face model directory.
    Merge(MergeArguments),
    /// Export an adapter for other programs: PEFT, a merged model, or llama.cpp.
    Export(ExportArguments),
    /// Verify the files, base and logits of an adapter or a merged model.
    Verify(VerifyArguments),
    /// Evaluate adapters side by side on a dataset, with the base model: loss, perplexity, accuracy, exact
    /// match.
    Eval(EvalArguments),
    /// Write a page of charts of a run: losses, speed, memory, decisions, sweeps, answers.
    Report(ReportArguments),
    /// Follow a run or a server on a dashboard in the terminal.
    Watch(WatchArguments),
    /// Serve a stage of a model on this machine to a `train` on another machine.
    Worker(WorkerArguments),
    /// Replay a job trace on a virtual clock with the scheduler of training. Needs no device.
    Simulate(SimulateArguments),
    /// Benchmark this machine: the operator, training steps and answers over random weights.
    Bench(BenchArguments),
    /// Check this machine: backends, devices, limits, disk, Hugging Face cache, model files.
    Doctor(DoctorArguments),
    /// Show a configuration, print the schema, or import from mLoRA.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print a completion script for a shell.
    Completions {
        /// Shell to print the script for.
        shell: Shell,
    },
    /// Write man pages: one of loraloom and one of each command.
    Man {
        /// Directory to write to, created if missing.
        #[arg(value_hint = ValueHint::DirPath)]
        directory: PathBuf,
    },
}

impl Arguments {
    /// Parses a command line. Negative numbers are taken as values, so that an option refuses them with
    /// its range.
    ///
    /// # Errors
    /// A usage error, or a request for help or the version.
    pub(crate) fn parse_from(
        line: impl IntoIterator<Item = impl Into<OsString> + Clone>,
    ) -> Result<Self, clap::Error> {
        let mut command = with_negative_numbers(Self::command());
        let matches = command.try_get_matches_from_mut(line)?;
        Self::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
    }
}

fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|argument| {
        let takes = argument.get_action().takes_values();
        argument.allow_negative_numbers(takes)
    });
    let names = command
        .get_subcommands()
        .map(|command| command.get_name().to_owned());
    let names: Vec<String> = names.collect();
    names.into_iter().fold(command, |command, name| {
        command.mut_subcommand(name, with_negative_numbers)
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::{Arguments, with_negative_numbers};

    #[test]
    fn the_definition_is_consistent() {
        with_negative_numbers(Arguments::command()).debug_assert();
    }
}

//! The commands.
#![expect(clippy::doc_markdown, reason = "help is read without Markdown")]

use std::ffi::OsString;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;

use super::{
    BenchArguments, CheckArguments, CloneArguments, ConfigCommand, DoctorArguments,
    GenerateArguments, InitArguments, PlanArguments, ServeArguments, SimulateArguments,
    StatusArguments, SubmitArguments, TaskArguments, TrainArguments, WorkerArguments,
};
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

impl Arguments {
    /// Parses a command line. A negative number is a value there: its option refuses it with the range.
    ///
    /// # Errors
    ///
    /// A mistake, or a wish for help.
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

//! The commands, one file each.

mod answering;
mod bench;
mod check;
mod completions;
mod config;
mod doctor;
mod eval;
mod findings;
mod generate;
mod init;
mod man;
mod merge;
mod plan;
mod preview;
mod queue;
mod report;
mod serve;
mod serve_beside;
mod serve_inference;
mod simulate;
mod source;
mod stages;
mod status;
mod submit;
mod train;
mod verify;
mod watch;
mod worker;

use loraloom_server::queue::Request;

use crate::{
    arguments::{Command, DataCommand},
    exit::Exit,
    printer::Printer,
};

/// Runs a command.
///
/// # Errors
/// Any failure of the command; [`failure::report`](crate::failure::report) prints it.
pub(crate) fn run(command: Command, printer: &Printer) -> anyhow::Result<Exit> {
    match command {
        Command::Init(arguments) => init::run(&arguments, printer),
        Command::Check(arguments) => check::run(&arguments, printer),
        Command::Data(DataCommand::Preview(arguments)) => preview::run(&arguments, printer),
        Command::Plan(arguments) => plan::run(&arguments, printer),
        Command::Train(arguments) => train::run(arguments, printer),
        Command::Serve(arguments) => serve::run(&arguments, printer),
        Command::Submit(arguments) => submit::submit(&arguments, printer),
        Command::Clone(arguments) => submit::clone(&arguments, printer),
        Command::Status(arguments) => status::run(&arguments, printer),
        Command::Pause(arguments) => queue::ask(&arguments, Request::Pause, printer),
        Command::Resume(arguments) => queue::ask(&arguments, Request::Resume, printer),
        Command::Cancel(arguments) => queue::ask(&arguments, Request::Cancel, printer),
        Command::Explain(arguments) => queue::explain(&arguments, printer),
        Command::Generate(arguments) => generate::run(&arguments, printer),
        Command::Merge(arguments) => merge::run(&arguments, printer),
        Command::Export(arguments) => merge::export(&arguments, printer),
        Command::Verify(arguments) => verify::run(&arguments, printer),
        Command::Eval(arguments) => eval::run(&arguments, printer),
        Command::Worker(arguments) => worker::run(&arguments, printer),
        Command::Report(arguments) => report::run(&arguments, printer),
        Command::Watch(arguments) => watch::run(&arguments),
        Command::Simulate(arguments) => simulate::run(&arguments, printer),
        Command::Bench(arguments) => bench::run(&arguments, printer),
        Command::Doctor(arguments) => doctor::run(&arguments, printer),
        Command::Config(command) => config::run(&command, printer),
        Command::Completions { shell } => completions::run(shell, printer),
        Command::Man { directory } => man::run(&directory),
    }
}

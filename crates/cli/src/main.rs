//! `loraloom`: fine-tune many `LoRA` adapters at once over one frozen backbone.
//!
//! This crate parses arguments, calls the library crates and prints; it contains no training logic.
//! stdout carries data, stderr everything else. Flags, `--json`, the files of a run and the exit
//! codes ([`exit::Exit`]) are public API; messages may change.

mod allocations;
mod arguments;
mod commands;
#[cfg(unix)]
mod dashboard;
mod device;
mod event_pipe;
mod exit;
mod failure;
mod frame;
mod history;
mod hub;
mod interrupt;
mod panics;
mod printer;
mod progress;
mod run_directory;
mod screen;
mod summary;
mod table;
mod usage;

use std::process::ExitCode;

use arguments::Arguments;
#[cfg(feature = "cuda")]
use arguments::Command;
use exit::Exit;
use printer::Printer;

fn main() -> ExitCode {
    device::silence_wayland();
    panics::install();
    allocations::count();
    let arguments = match Arguments::parse_from(std::env::args_os()) {
        Ok(arguments) => arguments,
        Err(error) => return usage::explain(&error).into(),
    };
    // `doctor` tests the compilation of kernels.
    #[cfg(feature = "cuda")]
    device::keep_kernels(
        !matches!(&arguments.command, Command::Doctor(doctor) if doctor.thorough.is_none()),
    );
    let printer = Printer::new(&arguments.output);
    let exit = match panics::catch(|| commands::run(arguments.command, &printer)) {
        Ok(Ok(exit)) => exit,
        Ok(Err(error)) => failure::report(&printer, &error),
        Err(message) => {
            printer.error(&format!("internal error: {message}"));
            for message in panics::elsewhere() {
                printer.note(&format!("another thread: {message}"));
            }
            printer.hint("this is a bug in loraloom; please report it with the command you ran");
            printer.hint_way_back();
            Exit::Internal
        }
    };
    exit.into()
}

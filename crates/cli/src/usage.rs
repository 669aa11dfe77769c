//! Help, and errors of the command line.

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::{arguments::OutputArguments, exit::Exit, printer::Printer};

/// Prints a usage error or the requested help, and returns the exit code.
pub(crate) fn explain(error: &clap::Error) -> Exit {
    let hint = run_to_resume(error);
    // Help may go into a closed pipe; clap chooses the stream.
    let _ = error.print();
    if let Some(hint) = hint {
        Printer::new(&OutputArguments::default()).hint(hint);
    }
    if error.use_stderr() {
        Exit::Usage
    } else {
        Exit::Success
    }
}

/// `resume` takes a task; without one the user may mean a run.
fn run_to_resume(error: &clap::Error) -> Option<&'static str> {
    let Some(ContextValue::StyledStr(usage)) = error.get(ContextKind::Usage) else {
        return None;
    };
    let lacks = error.kind() == ErrorKind::MissingRequiredArgument;
    let of_tasks = lacks && usage.to_string().contains("loraloom resume ");
    of_tasks.then_some(
        "TASK is a paused task of a server; continue a run of `train` with `loraloom train --resume RUN`",
    )
}

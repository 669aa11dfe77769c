//! `completions SHELL`.

use clap::CommandFactory;
use clap_complete::Shell;

use crate::{arguments::Arguments, exit::Exit, printer::Printer};

pub(super) fn run(shell: Shell, printer: &Printer) -> anyhow::Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "loraloom", &mut script);
    printer.data(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Success)
}

//! `man DIR`.

use std::{fs, io, path::Path};

use clap::{Command, CommandFactory};
use clap_mangen::Man;

use crate::{arguments::Arguments, exit::Exit, failure};

pub(super) fn run(directory: &Path) -> anyhow::Result<Exit> {
    let mut root = Arguments::command();
    root.build();
    let made = fs::create_dir_all(directory).and_then(|()| write(&root, directory));
    failure::written(directory, made)?;
    Ok(Exit::Success)
}

/// Writes the pages of a command and of those below it.
fn write(command: &Command, directory: &Path) -> io::Result<()> {
    for below in command.get_subcommands() {
        if below.get_name() != "help" {
            write(below, directory)?;
        }
    }
    let page = Man::new(command.clone()).source(concat!("loraloom ", env!("CARGO_PKG_VERSION")));
    page.generate_to(directory).map(drop)
}

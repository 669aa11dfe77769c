//! `watch RUN`: the dashboard of a run or a server.

use crate::{
    arguments::WatchArguments, exit::Exit, failure::Failure, printer::is_screen, run_directory,
};

pub(super) fn run(arguments: &WatchArguments) -> anyhow::Result<Exit> {
    let directory = &arguments.directory;
    run_directory::config(directory)?;
    if !is_screen() {
        let hint = format!(
            "`loraloom report {} --watch` writes a page instead",
            loraloom_trainer::quoted(directory)
        );
        let message = "the dashboard needs stdout to be a terminal";
        return Err(Failure::usage(message).hint(hint).into());
    }
    #[cfg(unix)]
    crate::dashboard::watch(directory)?;
    #[cfg(not(unix))]
    return Err(Failure::usage("the dashboard needs a Unix terminal").into());
    #[cfg(unix)]
    Ok(Exit::Success)
}

//! Arguments of `report` and `watch`.

use std::path::PathBuf;

use clap::{Args, ValueHint};

/// Arguments of `report`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
The page is one file that needs no network. It has the curves of all adapters by steps, tokens or time, \
speed and memory, when each adapter trained and why, leaderboards of sweeps, answers before and after \
training, warnings and the configuration. Steps that were repeated after an interruption appear once. \
`train` writes the page at its end; an active run or server can be reported at any time.

With --csv, --tensorboard or --json the page is written only if OUT.html is given.")]
pub(crate) struct ReportArguments {
    /// Directory of a run or a server.
    #[arg(value_name = "RUN", value_hint = ValueHint::DirPath)]
    pub(crate) directory: PathBuf,
    /// The page [default: report.html in RUN].
    #[arg(value_name = "OUT.html", value_hint = ValueHint::FilePath)]
    pub(crate) page: Option<PathBuf>,
    /// Write a table with a line for every step of every adapter; `-` prints it.
    #[arg(long, value_name = "OUT.csv", value_hint = ValueHint::FilePath)]
    pub(crate) csv: Option<PathBuf>,
    /// Write event files for TensorBoard: a folder for each adapter, with the tags of Hugging Face's
    /// trainer. A later call adds the new steps.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) tensorboard: Option<PathBuf>,
    /// Print what the page shows as one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
    /// Rewrite the output every 10 seconds if there are new events, until the run ends.
    #[arg(long)]
    pub(crate) watch: bool,
}

/// Arguments of `watch`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Shows the adapters with their steps and losses, curves of losses, speed, memory and the scheduler's last \
decisions, and follows the run. Up and down select an adapter, whose validation losses are shown, too. \
Closing it does not affect the run. `train --tui` and `serve --tui` show the same.")]
pub(crate) struct WatchArguments {
    /// Directory of a run or a server.
    #[arg(value_name = "RUN", value_hint = ValueHint::DirPath)]
    pub(crate) directory: PathBuf,
}

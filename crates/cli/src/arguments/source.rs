use std::path::PathBuf;

use clap::{Args, ValueHint};

/// Where a command takes a model and adapters from.
#[derive(Debug, Args)]
#[group(id = "source", required = true, multiple = true)]
pub(crate) struct SourceArguments {
    /// Run directory to take the model and adapters from.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) run: Option<PathBuf>,
    /// Model directory; with `--run`, instead of the run's.
    #[arg(long, value_name = "DIR", alias = "base-model", value_hint = ValueHint::DirPath)]
    pub(crate) model: Option<PathBuf>,
}

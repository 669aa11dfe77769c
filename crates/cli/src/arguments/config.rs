//! Arguments of the commands around a configuration.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint, builder::PossibleValuesParser};
use loraloom_model::LlamaConfig;

/// Arguments of `init`.
#[derive(Debug, Args)]
pub(crate) struct InitArguments {
    /// Directory to write to; it is created if it does not exist.
    #[arg(default_value = ".", value_hint = ValueHint::DirPath)]
    pub(crate) directory: PathBuf,
    /// Overwrite files that exist.
    #[arg(long)]
    pub(crate) force: bool,
}

/// A configuration file and what the command line changes of it.
#[derive(Debug, Clone, Args)]
pub(crate) struct ConfigArguments {
    /// The configuration: YAML, TOML or JSON by its extension, or an mLoRA YAML.
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) config: PathBuf,
    /// Set any key by its dotted path, such as `defaults.train.learning_rate=1e-4` or
    /// `adapters.NAME.lora.r=8`; can be given several times.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) overrides: Vec<String>,
    /// The model directory, instead of the configuration's; an mLoRA YAML has none.
    #[arg(long, alias = "base_model", value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) base_model: Option<PathBuf>,
}

/// Arguments of `check`.
#[derive(Debug, Args)]
pub(crate) struct CheckArguments {
    /// What to check.
    #[command(flatten)]
    pub(crate) config: ConfigArguments,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// The commands below `config`.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print a configuration with every default filled in, as it would be run.
    Show {
        /// What to show.
        #[command(flatten)]
        config: ConfigArguments,
        /// Print JSON instead of YAML.
        #[arg(long)]
        json: bool,
    },
    /// Print the JSON schema of a configuration file, for editors.
    Schema,
    /// Print an mLoRA YAML as a configuration of loraloom.
    Import {
        /// The mLoRA YAML.
        #[arg(value_name = "MLORA", value_hint = ValueHint::FilePath)]
        path: PathBuf,
        /// The model directory, which an mLoRA YAML does not name.
        #[arg(long, alias = "base_model", value_name = "DIR", value_hint = ValueHint::DirPath)]
        base_model: Option<PathBuf>,
    },
}

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArguments {
    /// Look at this model directory too.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) model: Option<PathBuf>,
    /// Compare every operation of GPUs with the CPU, and products of the sizes of a model of this shape.
    /// Takes a minute.
    #[arg(long, value_name = "SHAPE", num_args = 0..=1, default_missing_value = "llama-3.1-8b",
        value_parser = PossibleValuesParser::new(LlamaConfig::names()))]
    pub(crate) thorough: Option<String>,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

//! Arguments of the commands that read a configuration.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint, builder::PossibleValuesParser};
use loraloom_model::LlamaConfig;

/// Arguments of `init`.
#[derive(Debug, Args)]
pub(crate) struct InitArguments {
    /// Directory to write to, created if missing.
    #[arg(default_value = ".", value_hint = ValueHint::DirPath)]
    pub(crate) directory: PathBuf,
    /// Overwrite existing files.
    #[arg(long)]
    pub(crate) force: bool,
}

/// A configuration file and its overrides.
#[derive(Debug, Clone, Args)]
pub(crate) struct ConfigArguments {
    /// Configuration file: YAML, TOML or JSON, by its extension, or an mLoRA YAML.
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) config: PathBuf,
    /// Override a key by its dotted path, such as `defaults.train.learning_rate=1e-4` or
    /// `adapters.NAME.lora.r=8`. Repeatable.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) overrides: Vec<String>,
    /// Model directory, instead of the configuration's. Required with an mLoRA YAML.
    #[arg(long, alias = "base_model", value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) base_model: Option<PathBuf>,
}

/// Arguments of `check`.
#[derive(Debug, Args)]
pub(crate) struct CheckArguments {
    #[command(flatten)]
    pub(crate) config: ConfigArguments,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print a configuration with every default filled in.
    Show {
        #[command(flatten)]
        config: ConfigArguments,
        /// Print JSON instead of YAML.
        #[arg(long)]
        json: bool,
    },
    /// Print the JSON schema of configurations, for editors.
    Schema,
    /// Convert an mLoRA YAML to a loraloom configuration.
    Import {
        /// mLoRA YAML to convert.
        #[arg(value_name = "MLORA", value_hint = ValueHint::FilePath)]
        path: PathBuf,
        /// Model directory, which an mLoRA YAML does not name.
        #[arg(long, alias = "base_model", value_name = "DIR", value_hint = ValueHint::DirPath)]
        base_model: Option<PathBuf>,
    },
}

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArguments {
    /// Also check this model directory.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) model: Option<PathBuf>,
    /// Compare every GPU operation with the CPU, and matrix products of this model shape. Takes a
    /// minute.
    #[arg(long, value_name = "SHAPE", num_args = 0..=1, default_missing_value = "llama-3.1-8b",
        value_parser = PossibleValuesParser::new(LlamaConfig::names()))]
    pub(crate) thorough: Option<String>,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

use std::path::PathBuf;

use clap::{Args, ValueEnum, ValueHint};
use loraloom_config::{DeviceChoice, DtypeChoice, QuantizationConfig, QuantizationType};

use super::values::{model_parser, parse_dtype, parse_name};

/// Where a command takes a model and adapters from.
#[derive(Debug, Args)]
#[group(id = "source", required = true, multiple = true)]
pub(crate) struct SourceArguments {
    /// Run directory to take the model and adapters from.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) run: Option<PathBuf>,
    /// Model directory, or a name in the Hugging Face cache; with `--run`, instead of the run's.
    #[arg(
        long,
        value_name = "MODEL",
        alias = "base-model",
        value_parser = model_parser(),
        value_hint = ValueHint::DirPath
    )]
    pub(crate) model: Option<PathBuf>,
}

/// The model and adapters that a command computes with.
#[derive(Debug, Args)]
pub(crate) struct AdapterArguments {
    #[command(flatten)]
    pub(crate) source: SourceArguments,
    /// Adapters, separated by commas: names in the run or PEFT directories. NAME is the adapter's best
    /// state if it was saved, or its last; `NAME@best` and `NAME@last` are those [default: every adapter of
    /// the run].
    #[arg(long = "adapter", value_name = "ADAPTER", value_delimiter = ',', value_parser = parse_name)]
    pub(crate) adapters: Vec<String>,
    /// Also run the model without an adapter.
    #[arg(long)]
    pub(crate) compare_base: bool,
}

/// The device and type that a command computes with.
#[derive(Debug, Args)]
pub(crate) struct ComputeArguments {
    /// Device to compute on: auto, cpu, wgpu, wgpu:INDEX, cuda or cuda:INDEX.
    #[arg(long, default_value_t = DeviceChoice::Auto)]
    pub(crate) device: DeviceChoice,
    /// Type of the model's weights and activations: auto, float32, bfloat16 or float16.
    #[arg(long, default_value = "auto", value_parser = parse_dtype)]
    pub(crate) dtype: DtypeChoice,
    /// Storage of the model's linear layers: nf4, or none for that of the checkpoint [default: the run's, if there is one,
    /// or none].
    #[arg(long, value_name = "TYPE")]
    pub(crate) quantization: Option<QuantizationArgument>,
}

/// How to store the model's linear layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum QuantizationArgument {
    /// In NF4 as in the run, if there is one in NF4; otherwise as `quantization: {type: nf4}`, where the output projection
    /// is not in NF4.
    Nf4,
    /// As the checkpoint has them.
    None,
}

impl QuantizationArgument {
    pub(crate) fn settings(self) -> Option<QuantizationConfig> {
        match self {
            Self::Nf4 => Some(QuantizationConfig::new(QuantizationType::Nf4)),
            Self::None => None,
        }
    }
}

//! Arguments of `merge`, `export` and `verify`.

use std::path::PathBuf;

use clap::{Args, ValueEnum, ValueHint};
use loraloom_config::DtypeChoice;

use super::{
    SourceArguments,
    values::{WeightedAdapter, model_parser, parse_dtype, parse_weighted},
};

/// Arguments of `merge`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Every weight becomes W + WEIGHT·scale·B·A, summed in float32 and rounded once to the type in which it is \
stored. With several adapters their products are added. OUT has the base's shards, configuration, \
tokenizer, chat template and licence, and loads in transformers and loraloom. A merge needs memory for one \
tensor.

`loraloom verify OUT` proves the result.")]
pub(crate) struct MergeArguments {
    #[command(flatten)]
    pub(crate) source: SourceArguments,
    /// Adapters to fold in, separated by commas: names in the run or PEFT directories. NAME is the adapter's
    /// best state if it was saved, or its last; `NAME@best` and `NAME@last` are those. NAME*0.5 adds half of
    /// its product.
    #[arg(long = "adapter", value_name = "ADAPTER[*WEIGHT]", value_delimiter = ',', required = true,
          value_parser = parse_weighted)]
    pub(crate) adapters: Vec<WeightedAdapter>,
    /// Directory to write; must not exist or be empty.
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) out: PathBuf,
    /// Type to store the weights in: float32, bfloat16, float16, or auto for the base's.
    #[arg(long, value_name = "TYPE", default_value = "auto", value_parser = parse_dtype)]
    pub(crate) dtype: DtypeChoice,
}

/// Arguments of `export`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
peft copies the adapter's two files to a directory that PEFT loads beside the base. merged is `loraloom \
merge`. gguf-lora is a file for llama.cpp's `--lora`, for the same base converted with llama.cpp; scales of \
rsLoRA and of rank and alpha patterns, which its format cannot store, are multiplied into B.")]
pub(crate) struct ExportArguments {
    /// Format of the output.
    #[arg(long, value_enum)]
    pub(crate) format: ExportFormat,
    #[command(flatten)]
    pub(crate) source: SourceArguments,
    /// Adapter: a name in the run or a PEFT directory. NAME is its best state if it was saved, or its
    /// last; `NAME@best` and `NAME@last` are those.
    #[arg(long, value_name = "ADAPTER")]
    pub(crate) adapter: String,
    /// Directory to write, or file with gguf-lora; must not exist.
    #[arg(value_hint = ValueHint::AnyPath)]
    pub(crate) out: PathBuf,
}

/// Formats of `export`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportFormat {
    /// A PEFT directory.
    Peft,
    /// A model directory with the adapter folded in.
    Merged,
    /// A file for llama.cpp.
    GgufLora,
}

/// Arguments of `verify`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
For an adapter: its files are complete and fit each other and the base; every module has an effect; factors \
and scales are those that were saved; the base is the one it was trained over; in a run directory, ranks, \
scales and modules are those of the run's configuration; and on three fixed prompts, on the CPU in float32, \
logits differ from the base's by more than rounding.

For a merged model: every weight is finite; the base is the one it was merged from; every weight equals base \
and adapters added up, to the bit; and logits differ from the base's and equal those of base and adapters \
within 1e-4 of the largest (float16 1e-2, bfloat16 5e-2: weights were rounded).

WARN marks what cannot be checked: if another program wrote the adapter or model, or if a base or an \
adapter was moved. FAIL exits with 3.")]
pub(crate) struct VerifyArguments {
    /// Adapter directory or merged model directory.
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) path: PathBuf,
    /// Base model's directory, or a name in the Hugging Face cache [default: that of the adapter's run, or the
    /// one that PATH names].
    #[arg(
        long,
        value_name = "MODEL",
        alias = "base-model",
        value_parser = model_parser(),
        value_hint = ValueHint::DirPath
    )]
    pub(crate) model: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

use std::path::PathBuf;

use clap::{ArgGroup, Args, ValueHint};
use loraloom_config::{DeviceChoice, DtypeChoice};

use super::values::{parse_count, parse_dtype, parse_not_negative, parse_probability, parse_whole};

/// Arguments of `generate`.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("source").required(true).multiple(true).args(["run", "model"])))]
pub(crate) struct GenerateArguments {
    /// The prompt; `-` reads it from stdin.
    pub(crate) prompt: String,
    /// A run directory; its model, and its adapters by their names.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) run: Option<PathBuf>,
    /// The model directory; with `--run`, instead of the run's.
    #[arg(long, value_name = "DIR", alias = "base-model", value_hint = ValueHint::DirPath)]
    pub(crate) model: Option<PathBuf>,
    /// Adapters, separated by commas: names in the run (the best state if there is one; `NAME@last`
    /// is the last) or PEFT directories. Left out, it is every adapter of the run.
    #[arg(long = "adapter", value_name = "ADAPTER", value_delimiter = ',')]
    pub(crate) adapters: Vec<String>,
    /// Complete the prompt without an adapter too.
    #[arg(long)]
    pub(crate) compare_base: bool,
    /// Stop after this many tokens.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = parse_count)]
    pub(crate) max_new_tokens: usize,
    /// Divide logits by this before drawing; 0 always takes the most likely token.
    #[arg(long, value_name = "T", default_value_t = 0.0, value_parser = parse_not_negative)]
    pub(crate) temperature: f64,
    /// Draw from this many most likely tokens only.
    #[arg(long, value_name = "K", value_parser = parse_count)]
    pub(crate) top_k: Option<usize>,
    /// Draw from the fewest most likely tokens that together have this probability.
    #[arg(long, value_name = "P", value_parser = parse_probability)]
    pub(crate) top_p: Option<f64>,
    /// Seed of the draws.
    #[arg(long, default_value_t = 0, value_parser = parse_whole)]
    pub(crate) seed: u64,
    /// Put the prompt into the tokenizer's chat template as the user's message.
    #[arg(long)]
    pub(crate) chat: bool,
    /// Where to compute: auto, cpu, wgpu, wgpu:INDEX, cuda or cuda:INDEX.
    #[arg(long, default_value_t = DeviceChoice::Auto)]
    pub(crate) device: DeviceChoice,
    /// Type of the model's weights: auto, float32, bfloat16 or float16.
    #[arg(long, default_value = "auto", value_parser = parse_dtype)]
    pub(crate) dtype: DtypeChoice,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

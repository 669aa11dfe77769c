use clap::Args;

use super::{
    AdapterArguments, ComputeArguments,
    values::{parse_count, parse_not_negative, parse_probability, parse_whole},
};

/// Arguments of `generate`.
#[derive(Debug, Args)]
pub(crate) struct GenerateArguments {
    /// Prompt to complete; `-` reads it from stdin.
    pub(crate) prompt: String,
    #[command(flatten)]
    pub(crate) chosen: AdapterArguments,
    /// Largest number of tokens to generate.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = parse_count)]
    pub(crate) max_new_tokens: usize,
    /// Sampling temperature; 0 always takes the most likely token.
    #[arg(long, value_name = "T", default_value_t = 0.0, value_parser = parse_not_negative)]
    pub(crate) temperature: f64,
    /// Sample only from the K most likely tokens.
    #[arg(long, value_name = "K", value_parser = parse_count)]
    pub(crate) top_k: Option<usize>,
    /// Sample only from the smallest set of most likely tokens with total probability P.
    #[arg(long, value_name = "P", value_parser = parse_probability)]
    pub(crate) top_p: Option<f64>,
    /// Seed of sampling.
    #[arg(long, default_value_t = 0, value_parser = parse_whole)]
    pub(crate) seed: u64,
    /// Wrap the prompt in the tokenizer's chat template as the user's message.
    #[arg(long)]
    pub(crate) chat: bool,
    #[command(flatten)]
    pub(crate) compute: ComputeArguments,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

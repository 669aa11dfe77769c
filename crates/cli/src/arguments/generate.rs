use std::path::PathBuf;

use clap::{Args, ValueHint};

use super::{
    AdapterArguments, ComputeArguments,
    values::{parse_count, parse_not_negative, parse_positive, parse_probability, parse_whole},
};

/// Arguments of `generate`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
A file of prompts is JSONL, JSON, CSV, TSV or Parquet with a column `prompt` or `messages`, or .txt with a \
prompt in every line. Messages are rendered with the chat template, without their last answer if they end \
with one. Prompts that fill the model's context are left out, with a warning. Prompts of one length are completed together. A completion does not depend on the other prompts, \
apart from rounding on a GPU.

  loraloom generate --run RUN --prompts prompts.jsonl --compare-base
  loraloom generate --run RUN --prompts prompts.txt --chat --json > answers.jsonl")]
pub(crate) struct GenerateArguments {
    /// Prompt to complete; `-` reads it from stdin.
    #[arg(required_unless_present = "prompts", conflicts_with = "prompts")]
    pub(crate) prompt: Option<String>,
    /// Complete every prompt of a file instead.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) prompts: Option<PathBuf>,
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
    /// Sample only from tokens with at least P times the probability of the most likely one.
    #[arg(long, value_name = "P", value_parser = parse_probability)]
    pub(crate) min_p: Option<f64>,
    /// Divide the positive logits of tokens in the prompt or the answer by X, and multiply negative ones.
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = parse_positive)]
    pub(crate) repetition_penalty: f64,
    /// Seed of sampling.
    #[arg(long, default_value_t = 0, value_parser = parse_whole)]
    pub(crate) seed: u64,
    /// Wrap the prompt in the tokenizer's chat template as the user's message.
    #[arg(long)]
    pub(crate) chat: bool,
    /// Sequences of one pass, of all adapters together [default: 16].
    #[arg(long, value_name = "N", value_parser = parse_count, requires = "prompts", conflicts_with = "prompt")]
    pub(crate) batch_size: Option<usize>,
    #[command(flatten)]
    pub(crate) compute: ComputeArguments,
    /// Print one JSON object; with --prompts, one per line for every prompt and adapter.
    #[arg(long)]
    pub(crate) json: bool,
}

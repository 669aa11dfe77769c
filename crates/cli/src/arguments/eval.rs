use std::path::PathBuf;

use clap::{Args, ValueHint};
use loraloom_config::ColumnMap;
use regex::Regex;

use super::{
    AdapterArguments, ComputeArguments,
    values::{parse_columns, parse_count},
};

/// Arguments of `eval`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
The loss is the mean cross-entropy in nats of all target tokens, as in the event `eval` of a run; \
perplexity is its exponential, and accuracy the share of target tokens that were the most likely ones. \
All adapters are evaluated in the same passes, on the same rows.

  loraloom eval --run RUN --dataset NAME --compare-base
  loraloom eval --run RUN --dataset test.jsonl --adapter math-r16 --exact-match '#### (\\S+)' --ignore ,

The second also generates an answer to every row with the most likely tokens, and compares what the \
expression extracts from it and from the row's own answer, its last trained turn.

Of rows with preferences, all these are of chosen completions. `logps/chosen` and `logps/rejected` are mean \
log-probabilities of completions. Rewards are log-probabilities less those of the base model: times `beta`, the \
margin is that of DPO with `reference: base`.")]
pub(crate) struct EvalArguments {
    #[command(flatten)]
    pub(crate) chosen: AdapterArguments,
    /// Data file; with `--run` also a dataset of the run: its validation rows or, without any, its
    /// training rows.
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub(crate) dataset: String,
    /// Columns of a data file, such as `prompt=question,completion=answer` [default: detected].
    #[arg(long, value_name = "ROLE=COLUMN,...", value_parser = parse_columns)]
    pub(crate) columns: Option<ColumnMap>,
    /// Jinja template over the columns of a data file, as in a configuration.
    #[arg(long, value_name = "TEMPLATE")]
    pub(crate) template: Option<String>,
    /// Evaluate only the first N rows.
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub(crate) limit: Option<usize>,
    /// Cut rows to N tokens [default: as the adapters of the run were trained, otherwise the model's
    /// context].
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub(crate) max_seq_len: Option<usize>,
    /// Score the tokens of prompts, too; the default if the adapters of the run were trained so.
    #[arg(long)]
    pub(crate) train_on_prompt: bool,
    /// Also generate answers, and compare the first match of REGEX in them with that in the reference:
    /// its first group, if there is one. Prompts and references are not cut.
    #[arg(long, value_name = "REGEX")]
    pub(crate) exact_match: Option<Regex>,
    /// Remove matches of REGEX from both answers before they are compared. Repeatable.
    #[arg(long, value_name = "REGEX", requires = "exact_match")]
    pub(crate) ignore: Vec<Regex>,
    /// Largest number of tokens of an answer [default: 256].
    #[arg(long, value_name = "N", value_parser = parse_count, requires = "exact_match")]
    pub(crate) max_new_tokens: Option<usize>,
    /// Also write every answer to this file, as JSON lines.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "exact_match")]
    pub(crate) answers: Option<PathBuf>,
    /// Sequences of one pass, of all adapters together.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = parse_count)]
    pub(crate) batch_size: usize,
    #[command(flatten)]
    pub(crate) compute: ComputeArguments,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

//! Arguments of `data`.

use clap::{Args, Subcommand};

use super::{
    ConfigArguments,
    values::{parse_count, parse_index},
};

#[derive(Debug, Subcommand)]
pub(crate) enum DataCommand {
    /// Show rows as they are trained on, with the trained tokens marked, and count all of them. Needs no
    /// device.
    Preview(PreviewArguments),
}

/// Arguments of `data preview`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Trained text is in ⟦ and ⟧, and in colour if the terminal supports it. Every dataset that adapters use is \
shown once for each `max_seq_len` and `train_on_prompt` that they use it with. The counts are those of \
`check` and `train`:

  dropped        rows without a target token
  fully masked   dropped rows without a target token at any `max_seq_len`
  cut            rows above `max_seq_len`, and the tokens that they lose
  duplicates     rows with the text of an earlier row
  shared         validation rows with the text of a training row
  EOS trained    samples that train an end-of-text token of the model, without which it may not learn to \
stop
  extra BOS      samples with a beginning-of-text token after their first token
  p50, p90, p99  tokens that 50, 90 and 99 % of the training rows do not exceed, before they are cut")]
pub(crate) struct PreviewArguments {
    #[command(flatten)]
    pub(crate) config: ConfigArguments,
    /// Show only this dataset.
    #[arg(long, value_name = "NAME")]
    pub(crate) dataset: Option<String>,
    /// Rows to show of each part of a dataset.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = parse_index)]
    pub(crate) rows: usize,
    /// Show only row K, in full: line K of a JSONL or CSV file, element K of a JSON list.
    #[arg(long, value_name = "K", value_parser = parse_count, conflicts_with = "rows")]
    pub(crate) row: Option<usize>,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

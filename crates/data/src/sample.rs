//! Token ids with their loss mask, and what became of the rows they came from.

use serde::Serialize;

/// One row as the model sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Per id, whether it is a label, predicted from the ids before it; never the first.
    pub is_target: Vec<bool>,
}

impl Sample {
    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Number of labels.
    pub fn num_targets(&self) -> usize {
        self.is_target.iter().filter(|target| **target).count()
    }
}

/// The samples of a dataset, in the order of its rows, and the report on them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedDataset {
    /// Samples with at least one target; never none.
    pub samples: Vec<Sample>,
    /// What became of the rows.
    pub report: EncodeReport,
}

/// What became of a dataset's rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EncodeReport {
    /// Rows there were.
    pub rows: usize,
    /// Rows that became samples.
    pub kept: usize,
    /// Rows whose first `max_seq_len` tokens hold no target.
    pub dropped_without_target: usize,
    /// Rows cut to `max_seq_len`, kept or dropped.
    pub truncated: usize,
    /// Samples that end a generation: one of their targets is an EOS token of the model.
    pub with_eos_target: usize,
    /// Tokens of all samples.
    pub tokens: usize,
    /// Targets of all samples.
    pub target_tokens: usize,
    /// Tokens of the longest row, before it was cut.
    pub longest: usize,
    /// The rows' format, as [`DetectedFormat`](crate::DetectedFormat) prints it.
    pub format: String,
}

//! Token ids with their loss mask, and counts of the rows that they come from.

use std::ops::Range;

use serde::Serialize;

use crate::{samples::Samples, warning::Warning};

/// One sequence as the model sees it: a row, or one side of a row with two completions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sample {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Per id, whether it is a label, predicted from the ids before it; never the first.
    pub is_target: Vec<bool>,
    /// True for a chosen or desirable completion; `None` in rows without preferences.
    pub preferred: Option<bool>,
}

impl Sample {
    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// True without tokens.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Number of labels.
    pub fn num_targets(&self) -> usize {
        self.is_target.iter().filter(|target| **target).count()
    }

    /// True if one of these tokens is a label.
    pub(crate) fn trains_any(&self, tokens: &[u32]) -> bool {
        let mut labels = self.ids.iter().zip(&self.is_target);
        labels.any(|(id, target)| *target && tokens.contains(id))
    }

    /// Its prompt with the completion of another sample, cut to `max_seq_len`, without a preference.
    #[must_use]
    pub fn with_completion(&self, other: &Self, max_seq_len: usize) -> Self {
        let first = |sample: &Self| sample.is_target.iter().position(|&target| target);
        let prompt = first(self).unwrap_or(self.len());
        let completion = first(other).unwrap_or(other.len())..;
        let mut ids = [&self.ids[..prompt], &other.ids[completion.clone()]].concat();
        let mut is_target = [&self.is_target[..prompt], &other.is_target[completion]].concat();
        ids.truncate(max_seq_len);
        is_target.truncate(max_seq_len);
        Self {
            ids,
            is_target,
            preferred: None,
        }
    }

    /// The last run of labels: the completion of a pair, or the last trained turn of a chat.
    pub fn last_targets(&self) -> Range<usize> {
        let end = self.is_target.iter().rposition(|&target| target);
        let end = end.map_or(0, |last| last + 1);
        let before = self.is_target[..end].iter().rposition(|&target| !target);
        before.map_or(0, |last| last + 1)..end
    }

    /// Number of tokens up to the one that predicts the last target; later tokens affect no prediction.
    pub fn predicting_len(&self) -> usize {
        let last = self.is_target.iter().rposition(|&target| target);
        last.unwrap_or(0)
    }
}

/// The samples of a dataset, in the order of its rows, and the report on them.
#[derive(Debug)]
pub struct EncodedDataset {
    /// Samples with at least one target; never none. Of a row with two completions the chosen one is first.
    pub samples: Samples,
    /// Counts of the rows.
    pub report: EncodeReport,
}

/// Counts of a dataset's rows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct EncodeReport {
    /// Rows read.
    pub rows: usize,
    /// Rows that became samples: one each, or two in rows with two completions.
    pub kept: usize,
    /// Rows whose first `max_seq_len` tokens hold no target.
    pub dropped_without_target: usize,
    /// Rows cut to `max_seq_len`, kept or dropped.
    pub truncated: usize,
    /// Tokens of these rows beyond `max_seq_len`; like `longest`, an estimate if some texts were so long that only
    /// their beginning was tokenised.
    pub tokens_cut: usize,
    /// Rows whose samples have an EOS token of the model among their targets.
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

impl EncodeReport {
    /// Warnings about the samples of a split, named by `about`.
    ///
    /// `uncut` is the number of tokens of the cut rows before they were cut.
    pub(crate) fn warnings(&self, about: &str, uncut: usize) -> Vec<Warning> {
        let (rows, kept, truncated) = (self.rows, self.kept, self.truncated);
        let mut warnings = Vec::new();
        if truncated > 0 {
            let share = share(self.tokens_cut, uncut);
            let message =
                format!("{truncated} of {rows} rows are cut and lose {share} of their tokens");
            let hint = "raise train.max_seq_len, or split the rows: cut tokens are not trained";
            warnings.push(Warning::new(about, message, hint));
        }
        let unended = kept.saturating_sub(self.with_eos_target);
        if unended > truncated {
            let message = format!("{unended} of {kept} samples do not train the end of text");
            let hint = "the model may not learn to stop; see the chat template's end of turn";
            warnings.push(Warning::new(about, message, hint));
        }
        warnings
    }
}

/// In percent; rounding gives neither 0 nor 100 unless that is exact.
fn share(part: usize, whole: usize) -> String {
    match (100.0 * part as f64 / whole as f64).round() as usize {
        0 => "less than 1 %".to_owned(),
        100.. => "more than 99 %".to_owned(),
        percent => format!("{percent} %"),
    }
}

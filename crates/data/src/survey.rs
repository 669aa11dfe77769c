//! Counts of a dataset's rows for those who prepare it.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::{error::DataError, row_counts::RowCounts, sample::EncodeReport, warning::Warning};

/// Counts of a dataset's rows.
#[derive(Debug)]
pub struct Survey {
    /// Rows to train on.
    pub train: SplitSurvey,
    /// Rows to evaluate on, if the dataset has any.
    pub validation: Option<SplitSurvey>,
    /// Validation rows with the text of a training row.
    pub shared: usize,
}

/// Counts of a split's rows.
#[derive(Debug)]
pub struct SplitSurvey {
    /// The counts that training reports.
    pub report: EncodeReport,
    /// Dropped rows without anything to train on, even uncut.
    pub masked: usize,
    /// Rows with the text of an earlier row.
    pub duplicates: usize,
    /// Samples with BOS after their first token.
    pub extra_bos: usize,
    /// Tokens of every row, or of its longer side, before it was cut, in the order of the rows.
    pub lengths: Vec<usize>,
    /// Warnings that training gives about the rows.
    pub warnings: Vec<Warning>,
    /// The error if nothing can be trained on them.
    pub refusal: Option<DataError>,
}

impl SplitSurvey {
    /// Completes the counts of rows, given digests of their texts in ascending order.
    pub(crate) fn new(
        counts: &RowCounts<'_>,
        texts: &[u64],
        lengths: Vec<usize>,
        extra_bos: usize,
    ) -> Self {
        Self {
            masked: counts.masked,
            duplicates: texts.windows(2).filter(|pair| pair[0] == pair[1]).count(),
            extra_bos,
            lengths,
            warnings: counts.warnings(),
            refusal: counts.refusal(),
            report: counts.report.clone(),
        }
    }
}

/// A number for a value: the same for the same value.
pub(crate) fn digest(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Number of validation rows with the digest of a training row; those are in ascending order.
pub(crate) fn shared(train: &[u64], validation: &[u64]) -> usize {
    let is_trained = |row: &&u64| train.binary_search(row).is_ok();
    validation.iter().filter(is_trained).count()
}

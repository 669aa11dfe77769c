//! Counts of a dataset's rows for those who prepare it.

use std::{
    collections::{HashSet, hash_map::DefaultHasher},
    hash::{Hash, Hasher},
};

use rayon::prelude::*;

use crate::{
    encoded_rows::EncodedRows, error::DataError, render::Renderer, row::Row, sample::EncodeReport,
    split::Split, tokenizer::Tokenizer, warning::Warning,
};

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
    /// Tokens of every row before it was cut, in the order of the rows.
    pub lengths: Vec<usize>,
    /// Warnings that training gives about the rows.
    pub warnings: Vec<Warning>,
    /// The error if nothing can be trained on them.
    pub refusal: Option<DataError>,
}

impl SplitSurvey {
    /// Counts encoded rows with these [`digests`].
    pub(crate) fn new(
        encoded: &EncodedRows<'_>,
        texts: &[u64],
        dataset: &str,
        split: Split,
        tokenizer: &Tokenizer,
    ) -> Self {
        let samples = encoded.samples.iter();
        let repeats = |ids: &[u32]| tokenizer.extra_bos(ids).next().is_some();
        let distinct: HashSet<u64> = texts.iter().copied().collect();
        Self {
            report: encoded.report.clone(),
            masked: encoded.masked().count(),
            duplicates: texts.len() - distinct.len(),
            extra_bos: samples.filter(|sample| repeats(&sample.ids)).count(),
            lengths: encoded.rows.iter().map(|(_, tokens)| *tokens).collect(),
            warnings: encoded.warnings(dataset, split),
            refusal: encoded.refusal(dataset, split),
        }
    }
}

/// A number for the text of each row: the same for the same text.
pub(crate) fn digests(rows: &[Row], renderer: &Renderer) -> Result<Vec<u64>, DataError> {
    let digest = |row: &Row| {
        let text = renderer.render(row).map_err(|problem| row.error(problem))?;
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        Ok(hasher.finish())
    };
    rows.par_iter().map(digest).collect()
}

/// Number of validation rows with the text of a training row.
pub(crate) fn shared(train: &[u64], validation: &[u64]) -> usize {
    let train: HashSet<u64> = train.iter().copied().collect();
    validation
        .iter()
        .filter(|text| train.contains(text))
        .count()
}

//! Samples as text, with the trained parts marked.

use crate::{
    encode::{EncodedRow, Encoder},
    error::{DataError, NoTarget},
    row::{Location, Row},
    sample::Sample,
    tokenizer::Tokenizer,
};

/// A row as it would be trained on, or one side of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preview {
    /// Place of the row.
    pub location: Location,
    /// Its tokens, after cutting.
    pub sample: Sample,
    /// Number of tokens before cutting.
    pub tokens: usize,
    /// The sample was cut.
    pub truncated: bool,
    /// It has no target left and would not be trained on.
    pub dropped: bool,
    /// The reason why it has no target, unless all were cut off.
    pub reason: Option<NoTarget>,
    /// One of its targets is an EOS token of the model.
    pub trains_eos: bool,
    /// Places of BOS after the first token.
    pub extra_bos: Vec<usize>,
    /// The text of every run of tokens that are all targets, or all none, special tokens included.
    pub runs: Vec<(String, bool)>,
}

/// The rows that a preview shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// The first N.
    First(usize),
    /// Those with this number in their file.
    Numbered(u64),
}

impl Preview {
    /// Its text, with every run of targets in `⟦` and `⟧`.
    pub fn text(&self) -> String {
        in_brackets(&self.runs)
    }
}

impl Shown {
    pub(crate) fn includes(self, location: &Location) -> bool {
        match self {
            Self::First(_) => true,
            Self::Numbered(number) => location.number() == number,
        }
    }

    pub(crate) fn most(self) -> usize {
        match self {
            Self::First(rows) => rows,
            Self::Numbered(_) => usize::MAX,
        }
    }
}

/// Previews a row: its sample, or those of both its completions.
pub(crate) fn row(
    row: &Row,
    encoder: &Encoder<'_>,
    tokenizer: &Tokenizer,
) -> Result<Vec<Preview>, DataError> {
    let EncodedRow {
        samples,
        tokens,
        targets,
        reason,
        ..
    } = encoder.encode(row)?;
    let previews = samples.into_iter().zip(tokens).map(|(sample, tokens)| {
        Ok(Preview {
            location: row.location.clone(),
            tokens,
            truncated: tokens > sample.len(),
            dropped: targets == 0,
            reason: reason.clone(),
            trains_eos: sample.trains_any(tokenizer.eos_ids()),
            extra_bos: tokenizer.extra_bos(&sample.ids).collect(),
            runs: runs(&sample, tokenizer)?,
            sample,
        })
    });
    previews.collect()
}

/// The sample's text, special tokens included, with every run of targets in `⟦` and `⟧`.
///
/// # Errors
/// [`DataError::Tokenize`] if the tokenizer's decoder fails.
pub fn render_masked(sample: &Sample, tokenizer: &Tokenizer) -> Result<String, DataError> {
    Ok(in_brackets(&runs(sample, tokenizer)?))
}

fn runs(sample: &Sample, tokenizer: &Tokenizer) -> Result<Vec<(String, bool)>, DataError> {
    let mut start = 0;
    let runs = sample.is_target.chunk_by(|left, right| left == right);
    let runs = runs.map(|run| {
        let ids = &sample.ids[start..start + run.len()];
        start += run.len();
        Ok((tokenizer.decode(ids, false)?, run[0]))
    });
    runs.collect()
}

fn in_brackets(runs: &[(String, bool)]) -> String {
    let mut text = String::new();
    for (run, is_target) in runs {
        if *is_target {
            text.extend(["⟦", run, "⟧"]);
        } else {
            text.push_str(run);
        }
    }
    text
}

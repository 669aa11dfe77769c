//! Samples as text, with the trained parts marked.

use crate::{error::DataError, row::Location, sample::Sample, tokenizer::Tokenizer};

/// A row as it would be trained on.
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
    /// Its text with targets in brackets, as [`render_masked`] writes it.
    pub text: String,
}

/// The sample's text, special tokens included, with every run of targets in `⟦` and `⟧`.
///
/// # Errors
///
/// [`DataError::Tokenize`] if the tokenizer's decoder fails.
pub fn render_masked(sample: &Sample, tokenizer: &Tokenizer) -> Result<String, DataError> {
    let mut text = String::new();
    let mut start = 0;
    for run in sample.is_target.chunk_by(|left, right| left == right) {
        let decoded = tokenizer.decode(&sample.ids[start..start + run.len()], false)?;
        start += run.len();
        if run[0] {
            text.extend(["⟦", &decoded, "⟧"]);
        } else {
            text.push_str(&decoded);
        }
    }
    Ok(text)
}

//! The rows of a split as samples, and the reasons of those without one.

use std::collections::BTreeSet;

use rayon::prelude::*;

use crate::{
    encode::{EncodedRow, Encoder},
    error::{DataError, NoTarget},
    message::Message,
    render::{Renderer, RowText},
    row::Row,
    sample::{EncodeReport, EncodedDataset, Sample},
    split::Split,
    tokenizer::Tokenizer,
    warning::Warning,
};

/// Results of encoding the rows of a split, before checks.
pub(crate) struct EncodedRows<'a> {
    pub(crate) samples: Vec<Sample>,
    pub(crate) report: EncodeReport,
    /// By row: whether it became a sample, and its tokens before it was cut.
    pub(crate) rows: Vec<(bool, usize)>,
    /// Rows without a target, with the reason unless all their targets were cut off.
    without_target: Vec<(&'a Row, Option<NoTarget>)>,
    max_seq_len: usize,
}

impl<'a> EncodedRows<'a> {
    /// Encodes rows, whose format is called `format`.
    ///
    /// # Errors
    /// The error of the first row that a template or the tokenizer fails on.
    pub(crate) fn new(
        rows: &'a [Row],
        tokenizer: &Tokenizer,
        renderer: &Renderer,
        encoder: &Encoder<'_>,
        format: String,
    ) -> Result<Self, DataError> {
        // Collected before looking at errors, so that the first row's error is the one reported.
        let all: Vec<_> = rows.par_iter().map(|row| encoder.encode(row)).collect();
        let mut encoded = Self {
            samples: Vec::with_capacity(rows.len()),
            report: EncodeReport {
                rows: rows.len(),
                format,
                ..EncodeReport::default()
            },
            rows: Vec::with_capacity(rows.len()),
            without_target: Vec::new(),
            max_seq_len: encoder.max_seq_len(),
        };
        let report = &mut encoded.report;
        for (row, result) in rows.iter().zip(all) {
            let EncodedRow { sample, tokens } = result?;
            let cut = tokens - sample.len();
            report.longest = report.longest.max(tokens);
            report.truncated += usize::from(cut > 0);
            report.tokens_cut += cut;
            let targets = sample.num_targets();
            encoded.rows.push((targets > 0, tokens));
            if targets == 0 {
                report.dropped_without_target += 1;
                let reason = no_target(row, renderer, cut > 0);
                encoded.without_target.push((row, reason));
                continue;
            }
            report.kept += 1;
            report.tokens += sample.len();
            report.target_tokens += targets;
            report.with_eos_target += usize::from(sample.trains_any(tokenizer.eos_ids()));
            encoded.samples.push(sample);
        }
        Ok(encoded)
    }

    /// Rows without anything to train on, even uncut.
    pub(crate) fn masked(&self) -> impl Iterator<Item = (&'a Row, &NoTarget)> {
        let rows = self.without_target.iter();
        rows.filter_map(|(row, reason)| Some((*row, reason.as_ref()?)))
    }

    /// The samples, unless there are none.
    ///
    /// # Errors
    /// [`DataError::NothingInRows`] or [`DataError::NoTargets`].
    pub(crate) fn into_dataset(
        self,
        dataset: &str,
        split: Split,
    ) -> Result<EncodedDataset, DataError> {
        match self.refusal(dataset, split) {
            Some(error) => Err(error),
            None => Ok(EncodedDataset {
                samples: self.samples,
                report: self.report,
            }),
        }
    }

    /// The error if nothing can be trained on these rows.
    pub(crate) fn refusal(&self, dataset: &str, split: Split) -> Option<DataError> {
        if !self.samples.is_empty() {
            return None;
        }
        let (dataset, rows) = (dataset.to_owned(), self.report.rows);
        let split = split.name();
        Some(match shared_reason(&self.without_target) {
            Some(reason) => DataError::NothingInRows {
                dataset,
                split,
                rows,
                reason,
            },
            None => DataError::NoTargets {
                dataset,
                split,
                rows,
                max_seq_len: self.max_seq_len,
                longest: self.report.longest,
            },
        })
    }

    /// Warnings about the rows.
    pub(crate) fn warnings(&self, dataset: &str, split: Split) -> Vec<Warning> {
        let max_seq_len = self.max_seq_len;
        let mut about = format!("dataset {dataset} at max_seq_len {max_seq_len}");
        if split == Split::Validation {
            about = format!("{about}, {}", split.name());
        }
        let mut warnings = self.report.warnings(&about, max_seq_len);
        let rows = self.report.rows;
        let masked = self.masked().count();
        let cut_off = self.without_target.len() - masked;
        if cut_off > 0 {
            let message =
                format!("{cut_off} of {rows} rows are dropped: all their targets are cut off");
            let hint = "raise train.max_seq_len to train on them";
            warnings.push(Warning::new(&about, message, hint));
        }
        if let Some((row, reason)) = self.masked().next() {
            let message = format!(
                "{masked} of {rows} rows have no target token and are dropped, the first at {}: \
                 {reason}",
                row.location
            );
            warnings.push(Warning::new(about, message, reason.hint()));
        }
        warnings
    }
}

/// The reason why a row has no target, unless its targets were cut off.
pub(crate) fn no_target(row: &Row, renderer: &Renderer, is_cut: bool) -> Option<NoTarget> {
    if let Ok(RowText::Chat(conversation)) = renderer.render(row) {
        let messages = &conversation.messages;
        if !messages.iter().any(Message::is_trained) {
            if messages.iter().any(Message::is_assistant) {
                return Some(NoTarget::NotTrained);
            }
            let roles = messages.iter().map(|message| message.role().to_owned());
            let roles = roles.collect::<BTreeSet<_>>().into_iter().collect();
            return Some(NoTarget::NoAssistant(roles));
        }
    }
    (!is_cut).then_some(NoTarget::NothingRendered)
}

/// Reason why no row has a target: that of the first row, with the roles of all.
fn shared_reason(rows: &[(&Row, Option<NoTarget>)]) -> Option<NoTarget> {
    let mut first = rows.first()?.1.clone()?;
    let mut all = BTreeSet::new();
    for (_, reason) in rows {
        if let NoTarget::NoAssistant(roles) = reason.as_ref()? {
            all.extend(roles.iter().cloned());
        }
    }
    if let NoTarget::NoAssistant(roles) = &mut first {
        *roles = all.into_iter().collect();
    }
    Some(first)
}

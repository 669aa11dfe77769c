//! Counts of the rows of a split, and the reasons of those without a sample.

use std::collections::BTreeSet;

use crate::{
    encode::EncodedRow,
    error::{DataError, NoTarget},
    row::Location,
    sample::EncodeReport,
    split::Split,
    warning::Warning,
};

/// Counts of the rows of a split of a dataset.
#[derive(Debug)]
pub(crate) struct RowCounts<'a> {
    dataset: &'a str,
    split: Split,
    max_seq_len: usize,
    pub(crate) report: EncodeReport,
    /// Rows without anything to train on, even uncut.
    pub(crate) masked: usize,
    first_masked: Option<(Location, NoTarget)>,
    /// Roles of the rows without an assistant.
    roles: BTreeSet<String>,
}

impl<'a> RowCounts<'a> {
    pub(crate) fn new(dataset: &'a str, split: Split, max_seq_len: usize, format: String) -> Self {
        Self {
            dataset,
            split,
            max_seq_len,
            report: EncodeReport {
                format,
                ..EncodeReport::default()
            },
            masked: 0,
            first_masked: None,
            roles: BTreeSet::new(),
        }
    }

    /// Counts a row.
    pub(crate) fn count(&mut self, row: &EncodedRow, location: &Location) {
        let report = &mut self.report;
        let cut = row.tokens - row.sample.len();
        report.rows += 1;
        report.longest = report.longest.max(row.tokens);
        report.truncated += usize::from(cut > 0);
        report.tokens_cut += cut;
        if row.targets > 0 {
            report.kept += 1;
            report.tokens += row.sample.len();
            report.target_tokens += row.targets;
            report.with_eos_target += usize::from(row.trains_eos);
            return;
        }
        report.dropped_without_target += 1;
        let Some(reason) = &row.reason else { return };
        self.masked += 1;
        if let NoTarget::NoAssistant(roles) = reason {
            self.roles.extend(roles.iter().cloned());
        }
        let first = || (location.clone(), reason.clone());
        self.first_masked.get_or_insert_with(first);
    }

    /// The error if nothing can be trained on these rows: [`DataError::NothingInRows`] or [`DataError::NoTargets`].
    pub(crate) fn refusal(&self) -> Option<DataError> {
        let report = &self.report;
        if report.kept > 0 {
            return None;
        }
        let (dataset, rows) = (self.dataset.to_owned(), report.rows);
        let split = self.split.name();
        let first = self.first_masked.as_ref();
        Some(match first.filter(|_| self.masked == rows) {
            Some((_, reason)) => DataError::NothingInRows {
                dataset,
                split,
                rows,
                // Of the first row, with the roles of all.
                reason: match reason {
                    NoTarget::NoAssistant(_) => {
                        NoTarget::NoAssistant(self.roles.iter().cloned().collect())
                    }
                    reason => reason.clone(),
                },
            },
            None => DataError::NoTargets {
                dataset,
                split,
                rows,
                max_seq_len: self.max_seq_len,
                longest: report.longest,
            },
        })
    }

    /// Warnings about the rows.
    pub(crate) fn warnings(&self) -> Vec<Warning> {
        let max_seq_len = self.max_seq_len;
        let mut about = format!("dataset {} at max_seq_len {max_seq_len}", self.dataset);
        if self.split == Split::Validation {
            about = format!("{about}, {}", self.split.name());
        }
        let mut warnings = self.report.warnings(&about, max_seq_len);
        let (rows, masked) = (self.report.rows, self.masked);
        let cut_off = self.report.dropped_without_target - masked;
        if cut_off > 0 {
            let message =
                format!("{cut_off} of {rows} rows are dropped: all their targets are cut off");
            let hint = "raise train.max_seq_len to train on them";
            warnings.push(Warning::new(&about, message, hint));
        }
        if let Some((location, reason)) = &self.first_masked {
            let message = format!(
                "{masked} of {rows} rows have no target token and are dropped, the first at \
                 {location}: {reason}"
            );
            warnings.push(Warning::new(about, message, reason.hint()));
        }
        warnings
    }
}

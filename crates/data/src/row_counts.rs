//! Counts of the rows of a split, and the reasons of those without a sample.

use std::collections::BTreeSet;

use crate::{
    encode::EncodedRow,
    error::{DataError, NoTarget},
    preference::Faults,
    row::Location,
    sample::{EncodeReport, Sample},
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
    faults: Faults,
    /// Tokens of the rows that are cut, before the cut.
    uncut: usize,
    /// Rows whose prompt alone has other tokens than before a completion, and the first.
    other_prompts: usize,
    first_other: Option<Location>,
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
            faults: Faults::default(),
            uncut: 0,
            other_prompts: 0,
            first_other: None,
        }
    }

    /// Counts a row.
    pub(crate) fn count(&mut self, row: &EncodedRow, location: &Location) {
        let report = &mut self.report;
        let uncut: usize = row.tokens.iter().sum();
        let tokens: usize = row.samples.iter().map(Sample::len).sum();
        report.rows += 1;
        report.longest = report.longest.max(row.longest());
        if uncut > tokens {
            report.truncated += 1;
            report.tokens_cut += uncut - tokens;
            self.uncut += uncut;
        }
        if row.other_prompt {
            self.other_prompts += 1;
            self.first_other.get_or_insert_with(|| location.clone());
        }
        if row.targets > 0 {
            report.kept += 1;
            report.tokens += tokens;
            report.target_tokens += row.targets;
            report.with_eos_target += usize::from(row.trains_eos);
            return;
        }
        report.dropped_without_target += 1;
        let Some(reason) = &row.reason else { return };
        if let NoTarget::Preference(fault) = reason {
            self.faults.count(fault, location);
            return;
        }
        self.masked += 1;
        if let NoTarget::NoAssistant(roles) = reason {
            self.roles.extend(roles.iter().cloned());
        }
        let first = || (location.clone(), reason.clone());
        self.first_masked.get_or_insert_with(first);
    }

    /// The error if a pair cannot be used, [`DataError::Preferences`], or nothing can be trained on these rows:
    /// [`DataError::NothingInRows`] or [`DataError::NoTargets`].
    pub(crate) fn refusal(&self) -> Option<DataError> {
        let report = &self.report;
        let what = format!("{} rows", self.split.name());
        let faulty = self.faults.refusal(self.dataset, &what, report.rows);
        if faulty.is_some() {
            return faulty;
        }
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
        let mut warnings = self.report.warnings(&about, self.uncut);
        let (rows, masked) = (self.report.rows, self.masked);
        let cut_off = self.report.dropped_without_target - masked - self.faults.rows();
        if cut_off > 0 {
            let message =
                format!("{cut_off} of {rows} rows are dropped: all their targets are cut off");
            let hint = "raise train.max_seq_len to train on them";
            warnings.push(Warning::new(&about, message, hint));
        }
        if let Some(location) = &self.first_other {
            let message = format!(
                "the prompts of {} of {rows} rows have other tokens before an answer than alone, the first at \
                 {location}: the completion begins where they differ",
                self.other_prompts
            );
            let hint = "the chat template writes another prompt for an answer than before one";
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

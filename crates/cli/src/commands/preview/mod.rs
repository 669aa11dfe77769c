//! `data preview CONFIG`: rows as they are trained on, and counts of all rows.

mod histogram;
mod text;

use std::fmt::Write;

use loraloom_config::RunConfig;
use loraloom_data::{DataError, Dataset, Preview, Shown, Split, SplitSurvey, Survey, Tokenizer};
use serde::Serialize;

use self::histogram::{Bin, Percentiles, bars, bins};
use super::{check, config};
use crate::{
    arguments::PreviewArguments,
    exit::Exit,
    failure::Failure,
    printer::Printer,
    table::{self, or_dash},
};

#[derive(Debug, Serialize)]
struct PreviewOutput {
    datasets: Vec<WrittenDataset>,
}

#[derive(Debug, Serialize)]
struct WrittenDataset {
    name: String,
    format: String,
    max_seq_len: usize,
    train_on_prompt: bool,
    /// Adapters that use the dataset like this.
    adapters: Vec<String>,
    /// The rows to train on.
    #[serde(flatten)]
    train: WrittenSplit,
    validation: Option<WrittenSplit>,
    /// Validation rows with the text of a training row.
    shared_with_validation: usize,
    warnings: Vec<String>,
}

#[derive(Debug, Serialize)]
struct WrittenSplit {
    rows: Vec<WrittenRow>,
    total_rows: usize,
    dropped: usize,
    /// Dropped rows without a target, even uncut.
    fully_masked: usize,
    truncated: usize,
    tokens_cut: usize,
    duplicates: usize,
    tokens: usize,
    target_tokens: usize,
    /// Tokens of the longest row, before it was cut.
    longest: usize,
    with_eos_target: usize,
    extra_bos: usize,
    /// Tokens of rows before they were cut.
    lengths: Vec<Bin>,
    length_percentiles: Percentiles,
}

#[derive(Debug, Serialize)]
struct WrittenRow {
    location: String,
    /// Before the row was cut.
    tokens: usize,
    truncated: bool,
    dropped: bool,
    reason: Option<String>,
    with_eos_target: bool,
    /// Of rows with preferences; pairs are two rows here, the preferred completion first.
    preferred: Option<bool>,
    extra_bos: Vec<usize>,
    ids: Vec<u32>,
    targets: Vec<bool>,
    text: String,
}

/// A dataset as some adapters use it.
struct Use<'a> {
    dataset: &'a Dataset,
    tokenizer: &'a Tokenizer,
    max_seq_len: usize,
    train_on_prompt: bool,
    adapters: Vec<String>,
}

pub(super) fn run(arguments: &PreviewArguments, printer: &Printer) -> anyhow::Result<Exit> {
    let options = config::options(&arguments.config);
    let config = config::load(&options, &arguments.config, printer)?;
    let mut uses = check::uses(&config);
    if let Some(name) = arguments.dataset.as_deref() {
        if !uses.contains_key(name) {
            let known = uses.keys().copied().collect::<Vec<_>>().join(", ");
            let failure = Failure::usage(format!("no adapter uses a dataset `{name}`"));
            return Err(failure.hint(format!("datasets in use: {known}")).into());
        }
        uses.retain(|other, _| *other == name);
    }
    let tokenizer = Tokenizer::load(&config.model)?;
    let row = arguments.row.map(|row| row as u64);
    let shown = row.map_or(Shown::First(arguments.rows), Shown::Numbered);
    let mut written = Vec::new();
    let mut refusal = None;
    let mut found = false;
    let mut before = "";
    let names: Vec<&str> = uses.keys().copied().collect();
    for (name, ways) in uses {
        let settings = &config.datasets[name];
        let read = || Dataset::load(name, settings, config.seed);
        let dataset = printer.while_busy("reading data", read)?;
        for (max_seq_len, train_on_prompt) in ways {
            let used = Use {
                dataset: &dataset,
                tokenizer: &tokenizer,
                max_seq_len,
                train_on_prompt,
                adapters: adapters(&config, name, max_seq_len, train_on_prompt),
            };
            let rows = [Split::Training, Split::Validation].map(|split| used.rows(split, shown));
            let [train, validation] = rows;
            let rows = [train?, validation?];
            found |= rows.iter().any(|rows| !rows.is_empty());
            if arguments.json {
                let survey = used.survey(printer)?;
                refusal = refusal.or(used.write(survey, rows, &mut written));
                continue;
            }
            let text = used.text(&rows, row.is_some(), printer);
            printer.data(&format!("{before}{text}"))?;
            before = "\n";
            if row.is_none() {
                let survey = used.survey(printer)?;
                printer.data(&counts(&survey, max_seq_len))?;
                for warning in warnings(&dataset, &survey) {
                    printer.warning(&warning);
                }
                refusal = refusal.or(refused(survey));
            }
        }
    }
    if arguments.json {
        printer.json(&PreviewOutput { datasets: written })?;
    }
    match (refusal, row.filter(|_| !found)) {
        (Some(refusal), _) => Err(refusal.into()),
        (None, Some(row)) => {
            let names = names.join(", ");
            let failure = Failure::usage(format!("no row {row} in dataset {names}"));
            let hint = "the number of a row is its first line in JSONL and CSV files, its element in \
                        JSON lists";
            Err(failure.hint(hint).into())
        }
        (None, None) => Ok(Exit::Success),
    }
}

/// Names of the adapters that use a dataset in one way.
fn adapters(
    config: &RunConfig,
    dataset: &str,
    max_seq_len: usize,
    train_on_prompt: bool,
) -> Vec<String> {
    let adapters = config.adapters.iter().filter(|adapter| {
        let train = &adapter.train;
        let way = (train.max_seq_len, train.train_on_prompt);
        adapter.dataset == dataset && way == (max_seq_len, train_on_prompt)
    });
    adapters.map(|adapter| adapter.name.clone()).collect()
}

/// The warnings that training gives.
fn warnings(dataset: &Dataset, survey: &Survey) -> Vec<String> {
    let validation = survey.validation.iter().flat_map(|split| &split.warnings);
    let of_rows = survey.train.warnings.iter().chain(validation);
    let all = dataset.warnings().iter().chain(of_rows);
    all.map(ToString::to_string).collect()
}

/// The error with which training refuses a dataset.
fn refused(survey: Survey) -> Option<DataError> {
    let validation = survey.validation.and_then(|split| split.refusal);
    survey.train.refusal.or(validation)
}

impl Use<'_> {
    fn rows(&self, split: Split, shown: Shown) -> Result<Vec<Preview>, DataError> {
        let (length, all) = (self.max_seq_len, self.train_on_prompt);
        let dataset = self.dataset;
        dataset.preview(split, shown, self.tokenizer, length, all)
    }

    fn survey(&self, printer: &Printer) -> Result<Survey, DataError> {
        let (length, all) = (self.max_seq_len, self.train_on_prompt);
        let survey = || self.dataset.survey(self.tokenizer, length, all);
        printer.while_busy("counting rows", survey)
    }

    /// Adds the JSON output. Returns the error with which training refuses the dataset, if it does.
    fn write(
        &self,
        survey: Survey,
        [train, validation]: [Vec<Preview>; 2],
        written: &mut Vec<WrittenDataset>,
    ) -> Option<DataError> {
        let split = |survey: &SplitSurvey, rows| WrittenSplit::new(survey, rows, self.max_seq_len);
        written.push(WrittenDataset {
            name: self.dataset.name().to_owned(),
            format: self.dataset.format().to_string(),
            max_seq_len: self.max_seq_len,
            train_on_prompt: self.train_on_prompt,
            adapters: self.adapters.clone(),
            train: split(&survey.train, train),
            validation: survey.validation.as_ref().map(|of| split(of, validation)),
            shared_with_validation: survey.shared,
            warnings: warnings(self.dataset, &survey),
        });
        refused(survey)
    }

    /// The rows, below the dataset's name.
    fn text(&self, rows: &[Vec<Preview>; 2], in_full: bool, printer: &Printer) -> String {
        let prompts = if self.train_on_prompt {
            ", trained on prompts, too"
        } else {
            ""
        };
        let mut text = format!(
            "dataset {}: {}, max_seq_len {}{prompts}, for {}\n",
            self.dataset.name(),
            self.dataset.format(),
            self.max_seq_len,
            self.adapters.join(", "),
        );
        for (split, rows) in [Split::Training, Split::Validation].into_iter().zip(rows) {
            for row in rows {
                let _ = write!(
                    text,
                    "\n{}",
                    text::row(row, split, self.max_seq_len, in_full, printer)
                );
            }
        }
        text
    }
}

impl WrittenSplit {
    fn new(survey: &SplitSurvey, rows: Vec<Preview>, max_seq_len: usize) -> Self {
        let report = &survey.report;
        Self {
            rows: rows.into_iter().map(WrittenRow::from).collect(),
            total_rows: report.rows,
            dropped: report.dropped_without_target,
            fully_masked: survey.masked,
            truncated: report.truncated,
            tokens_cut: report.tokens_cut,
            duplicates: survey.duplicates,
            tokens: report.tokens,
            target_tokens: report.target_tokens,
            longest: report.longest,
            with_eos_target: report.with_eos_target,
            extra_bos: survey.extra_bos,
            lengths: bins(&survey.lengths, max_seq_len),
            length_percentiles: Percentiles::of(&survey.lengths),
        }
    }
}

impl From<Preview> for WrittenRow {
    fn from(row: Preview) -> Self {
        Self {
            location: row.location.to_string(),
            tokens: row.tokens,
            truncated: row.truncated,
            dropped: row.dropped,
            reason: row.reason.as_ref().map(ToString::to_string),
            with_eos_target: row.trains_eos,
            preferred: row.sample.preferred,
            text: row.text(),
            extra_bos: row.extra_bos,
            ids: row.sample.ids,
            targets: row.sample.is_target,
        }
    }
}

/// The counts of all rows, and a histogram of their lengths.
fn counts(survey: &Survey, max_seq_len: usize) -> String {
    let splits = [Some(&survey.train), survey.validation.as_ref()];
    let row = |name: &str, of: fn(&SplitSurvey) -> String| {
        let [train, validation] = splits.map(|split| split.map(of));
        [name.to_owned(), or_dash(train), or_dash(validation)]
    };
    let mut rows = vec![
        row("rows", |split| split.report.rows.to_string()),
        row("dropped", |split| {
            split.report.dropped_without_target.to_string()
        }),
        row("  fully masked", |split| split.masked.to_string()),
        row("cut", |split| split.report.truncated.to_string()),
        row("  tokens lost", |split| split.report.tokens_cut.to_string()),
        row("duplicates", |split| split.duplicates.to_string()),
        row("samples", |split| split.report.kept.to_string()),
        row("  tokens", |split| split.report.tokens.to_string()),
        row("  trained", |split| split.report.target_tokens.to_string()),
        row("  EOS trained", |split| {
            split.report.with_eos_target.to_string()
        }),
        row("  extra BOS", |split| split.extra_bos.to_string()),
    ];
    let shared = survey.validation.as_ref().map(|_| survey.shared);
    let shared = ["shared".to_owned(), or_dash(None::<usize>), or_dash(shared)];
    rows.insert(6, shared);
    let counts = table::aligned(["<", "training", "validation"], &rows);
    let bins = bins(&survey.train.lengths, max_seq_len);
    format!(
        "\n{counts}\ntokens of training rows: {}, longest {}\n{}",
        Percentiles::of(&survey.train.lengths),
        survey.train.report.longest,
        bars(&bins, max_seq_len)
    )
}

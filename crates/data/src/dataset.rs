//! A dataset: the rows of its files, split, and their encoding for a tokenizer.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use loraloom_config::{ColumnMap, DatasetConfig, Validation};
use rayon::prelude::*;

use crate::{
    encode::{EncodedRow, Encoder},
    error::{DataError, NoTarget, RowError, TemplateError},
    format::DetectedFormat,
    message::Message,
    oddities::Oddities,
    preview::{Preview, render_masked},
    reader,
    render::{Renderer, RowText},
    row::Row,
    sample::{EncodeReport, EncodedDataset},
    split,
    tokenizer::Tokenizer,
    warning::Warning,
};

/// The rows of a dataset, read and checked but not tokenised.
#[derive(Debug)]
pub struct Dataset {
    name: String,
    format: DetectedFormat,
    renderer: Renderer,
    train: Vec<Row>,
    validation: Option<Vec<Row>>,
    warnings: Vec<Warning>,
}

/// A dataset's samples.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoded {
    /// Samples to train on.
    pub train: EncodedDataset,
    /// Samples to evaluate on, if the dataset has any.
    pub validation: Option<EncodedDataset>,
    /// Warnings about the samples.
    pub warnings: Vec<Warning>,
}

impl Dataset {
    /// Reads the files of `config` as one table, settles its format and checks every row against it.
    ///
    /// With neither `columns` nor `template` the format is detected per file and must be the same.
    /// `seed` and `name` choose the rows that a validation fraction holds out.
    ///
    /// # Errors
    ///
    /// A file that cannot be read or parsed, an unknown or mixed format, a row that does not fit it,
    /// a template that does not compile, rows without text, a split that leaves nothing to train on.
    pub fn load(name: &str, config: &DatasetConfig, seed: u64) -> Result<Self, DataError> {
        let mut warnings = Vec::new();
        let files = config
            .path
            .iter()
            .map(|path| Ok((path.as_path(), reader::read(path, &mut warnings)?)))
            .collect::<Result<Vec<_>, DataError>>()?;
        let template = config.template.as_deref();
        let detected = config.columns.is_none() && template.is_none();
        let columns = if detected {
            Some(detect(name, &files)?)
        } else {
            config.columns.clone()
        };
        let renderer = match (&columns, template) {
            (_, Some(template)) if template.trim().is_empty() => Err(TemplateError::Empty),
            (Some(columns), template) => Renderer::from_columns(columns, template),
            (None, template) => Renderer::from_template(template.unwrap_or_default()),
        };
        let renderer = renderer.map_err(|source| DataError::Template {
            origin: format!("datasets.{name}.template"),
            source,
        })?;
        let format = DetectedFormat {
            columns,
            template: template.is_some(),
        };

        let rows: Vec<Row> = files.into_iter().flat_map(|(_, rows)| rows).collect();
        if rows.is_empty() {
            return Err(DataError::NoPath(name.to_owned()));
        }
        let oddities = check(&renderer, &rows, detected)?;
        if oddities.empty == rows.len() && !matches!(renderer, Renderer::Chat { .. }) {
            let empty = |column: &str| NoTarget::Empty(column.to_owned());
            let column = renderer.target_column();
            return Err(DataError::NothingInRows {
                dataset: name.to_owned(),
                split: "training",
                rows: rows.len(),
                reason: column.map_or(NoTarget::NothingRendered, empty),
            });
        }
        let about = format!("dataset {name}");
        warnings.extend(oddities.warnings(&about, rows.len(), &renderer));
        warnings.extend(odd_settings(&about, config, &renderer));
        let (train, validation) = match &config.validation {
            Validation::File(path) => {
                let validation = reader::read(path, &mut warnings)?;
                let oddities = check(&renderer, &validation, detected)?;
                let about = format!("{about}, validation");
                warnings.extend(oddities.warnings(&about, validation.len(), &renderer));
                (rows, Some(validation))
            }
            Validation::Fraction(fraction) => {
                let is_held_out = split::held_out(name, rows.len(), *fraction, seed)?;
                let mut is_held_out = is_held_out.into_iter();
                let (validation, train): (Vec<_>, Vec<_>) = rows
                    .into_iter()
                    .partition(|_| is_held_out.next().unwrap_or(false));
                (train, (!validation.is_empty()).then_some(validation))
            }
        };
        Ok(Self {
            name: name.to_owned(),
            format,
            renderer,
            train,
            validation,
            warnings,
        })
    }

    /// Warnings about the rows, independent of their encoding.
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// The dataset's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The format of its rows.
    pub fn format(&self) -> &DetectedFormat {
        &self.format
    }

    /// Rows to train on.
    pub fn num_train_rows(&self) -> usize {
        self.train.len()
    }

    /// Rows held out for validation.
    pub fn num_validation_rows(&self) -> usize {
        self.validation.as_ref().map_or(0, Vec::len)
    }

    /// The samples of all rows, cut to `max_seq_len` tokens, in the order of the files.
    ///
    /// # Errors
    ///
    /// A tokenizer without EOS or, for messages, without a chat template; a row that a template or
    /// the tokenizer fails on; [`DataError::NoTargets`] if no row of a split has a target left,
    /// [`DataError::NothingInRows`] if none ever had one.
    pub fn encode(
        &self,
        tokenizer: &Tokenizer,
        max_seq_len: usize,
        train_on_prompt: bool,
    ) -> Result<Encoded, DataError> {
        let encoder = self.encoder(tokenizer, max_seq_len, train_on_prompt)?;
        let mut warnings = Vec::new();
        let mut encode =
            |rows: &_, split| self.encode_rows(rows, split, tokenizer, &encoder, &mut warnings);
        let train = encode(&self.train, "training")?;
        let validation = self.validation.as_ref();
        let validation = validation.map(|rows| encode(rows, "validation"));
        Ok(Encoded {
            train,
            validation: validation.transpose()?,
            warnings,
        })
    }

    /// The first `rows` rows to train on, as they would be encoded, with their targets in brackets.
    ///
    /// # Errors
    ///
    /// Same as [`encode`](Self::encode), but shows rows without a target as dropped.
    pub fn preview(
        &self,
        tokenizer: &Tokenizer,
        max_seq_len: usize,
        train_on_prompt: bool,
        rows: usize,
    ) -> Result<Vec<Preview>, DataError> {
        let encoder = self.encoder(tokenizer, max_seq_len, train_on_prompt)?;
        let preview = |row: &Row| {
            let EncodedRow { sample, tokens } = encoder.encode(row)?;
            Ok(Preview {
                location: row.location.clone(),
                tokens,
                truncated: tokens > sample.len(),
                dropped: sample.num_targets() == 0,
                text: render_masked(&sample, tokenizer)?,
                sample,
            })
        };
        self.train.iter().take(rows).map(preview).collect()
    }

    fn encoder<'a>(
        &'a self,
        tokenizer: &'a Tokenizer,
        max_seq_len: usize,
        train_on_prompt: bool,
    ) -> Result<Encoder<'a>, DataError> {
        let (name, renderer) = (&self.name, &self.renderer);
        Encoder::new(name, tokenizer, renderer, max_seq_len, train_on_prompt)
    }

    fn encode_rows(
        &self,
        rows: &[Row],
        split: &'static str,
        tokenizer: &Tokenizer,
        encoder: &Encoder<'_>,
        warnings: &mut Vec<Warning>,
    ) -> Result<EncodedDataset, DataError> {
        // Collected before looking at errors, so that the first row's error is the one reported.
        let encoded: Vec<_> = rows.par_iter().map(|row| encoder.encode(row)).collect();
        let mut samples = Vec::with_capacity(rows.len());
        let mut report = EncodeReport {
            rows: rows.len(),
            format: self.format.to_string(),
            ..EncodeReport::default()
        };
        let mut without_target = Vec::new();
        for (row, encoded) in rows.iter().zip(encoded) {
            let EncodedRow { sample, tokens } = encoded?;
            let cut = tokens - sample.len();
            report.longest = report.longest.max(tokens);
            report.truncated += usize::from(cut > 0);
            report.tokens_cut += cut;
            let targets = sample.num_targets();
            if targets == 0 {
                report.dropped_without_target += 1;
                without_target.push((row, self.no_target(row, cut > 0)));
                continue;
            }
            report.kept += 1;
            report.tokens += sample.len();
            report.target_tokens += targets;
            let mut labels = sample.ids.iter().zip(&sample.is_target);
            let ends = labels.any(|(id, target)| *target && tokenizer.eos_ids().contains(id));
            report.with_eos_target += usize::from(ends);
            samples.push(sample);
        }
        let max_seq_len = encoder.max_seq_len();
        if samples.is_empty() {
            let (dataset, rows) = (self.name.clone(), rows.len());
            return Err(match shared_reason(&without_target) {
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
                    max_seq_len,
                    longest: report.longest,
                },
            });
        }
        let mut about = format!("dataset {} at max_seq_len {max_seq_len}", self.name);
        if split != "training" {
            about = format!("{about}, {split}");
        }
        warnings.extend(report.warnings(&about, max_seq_len));
        let rows = rows.len();
        let void: Vec<_> = without_target
            .iter()
            .filter_map(|(row, reason)| Some((row, reason.as_ref()?)))
            .collect();
        let cut_off = without_target.len() - void.len();
        if cut_off > 0 {
            let message =
                format!("{cut_off} of {rows} rows are dropped: all their targets are cut off");
            let hint = "raise train.max_seq_len to train on them";
            warnings.push(Warning::new(&about, message, hint));
        }
        if let Some((row, reason)) = void.first() {
            let message = format!(
                "{} of {rows} rows have nothing to train on and are dropped, the first of them at \
                 {}: {reason}",
                void.len(),
                row.location
            );
            warnings.push(Warning::new(about, message, reason.hint()));
        }
        Ok(EncodedDataset { samples, report })
    }

    /// Why a row without a target has none, if that is not for its having been cut.
    fn no_target(&self, row: &Row, is_cut: bool) -> Option<NoTarget> {
        if let Ok(RowText::Chat(conversation)) = self.renderer.render(row) {
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

/// Warnings about the settings of a dataset.
fn odd_settings(about: &str, config: &DatasetConfig, renderer: &Renderer) -> Vec<Warning> {
    // Of two names for one file neither need be the real one.
    let real = |path: &PathBuf| path.canonicalize().unwrap_or_else(|_| path.clone());
    let paths: Vec<PathBuf> = config.path.iter().map(real).collect();
    let mut odd = Vec::new();
    for (index, path) in paths.iter().enumerate() {
        if paths[..index].contains(path) {
            let shown = config.path[index].display();
            odd.push(Warning {
                about: about.to_owned(),
                message: format!("{shown} is listed more than once, and its rows count as often"),
                hint: None,
            });
        }
    }
    if let Validation::File(path) = &config.validation
        && paths.contains(&real(path))
    {
        let path = path.display();
        let message = format!(
            "{path} is trained on and validated on: its loss tells nothing about other rows"
        );
        let hint = "name another file, or hold rows out, for example with `validation: 0.1`";
        odd.push(Warning::new(about, message, hint));
    }
    if let Some(column) = renderer.column_used_twice() {
        let message = format!("column `{column}` is both prompt and completion");
        odd.push(Warning::new(
            about,
            message,
            "name the two columns in `columns`",
        ));
    }
    odd
}

/// The format that all files have.
fn detect(name: &str, files: &[(&Path, Vec<Row>)]) -> Result<ColumnMap, DataError> {
    let mut files = files.iter();
    let (first, rows) = files
        .next()
        .ok_or_else(|| DataError::NoPath(name.to_owned()))?;
    let expected = DetectedFormat::detect(first, rows)?;
    for (path, rows) in files {
        let columns = DetectedFormat::detect(path, rows)?;
        if columns != expected {
            let show = |columns| {
                let format = DetectedFormat {
                    columns: Some(columns),
                    template: false,
                };
                format.to_string()
            };
            return Err(DataError::MixedFormats {
                first: first.to_path_buf(),
                first_format: show(expected),
                path: path.to_path_buf(),
                format: show(columns),
            });
        }
    }
    Ok(expected)
}

/// Renders every row once, so that a bad one is found before anything is trained. Returns the oddities
/// of the rows.
fn check(renderer: &Renderer, rows: &[Row], detected: bool) -> Result<Oddities, DataError> {
    let mut oddities = Oddities::default();
    for row in rows {
        let text = renderer.render(row).map_err(|problem| row.error(problem))?;
        oddities.count(&text);
    }
    // A configured column that no row has is a typo, however optional.
    if let (Some(column), Some(first), false) = (renderer.optional_column(), rows.first(), detected)
        && rows.iter().all(|row| row.get(column).is_none())
    {
        let (column, available) = (column.to_owned(), first.names());
        return Err(first.error(RowError::MissingColumn { column, available }));
    }
    Ok(oddities)
}

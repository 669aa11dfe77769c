//! A dataset: the rows of its files, split, and their encoding for a tokenizer.

use std::path::Path;

use loraloom_config::{ColumnMap, DatasetConfig, Validation};
use rayon::prelude::*;

use crate::{
    encode::Encoder,
    error::{DataError, RowError},
    format::DetectedFormat,
    preview::{self, Preview},
    reader,
    render::Renderer,
    row::Row,
    sample::{EncodeReport, EncodedDataset},
    split,
    tokenizer::Tokenizer,
};

/// The rows of a dataset, read and checked but not tokenised.
#[derive(Debug)]
pub struct Dataset {
    name: String,
    format: DetectedFormat,
    renderer: Renderer,
    train: Vec<Row>,
    validation: Option<Vec<Row>>,
}

/// A dataset's samples.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoded {
    /// Samples to train on.
    pub train: EncodedDataset,
    /// Samples to evaluate on, if the dataset has any.
    pub validation: Option<EncodedDataset>,
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
    /// a template that does not compile, a split that leaves nothing to train on.
    pub fn load(name: &str, config: &DatasetConfig, seed: u64) -> Result<Self, DataError> {
        let files = config
            .path
            .iter()
            .map(|path| Ok((path.as_path(), reader::read(path)?)))
            .collect::<Result<Vec<_>, DataError>>()?;
        let template = config.template.as_deref();
        let detected = config.columns.is_none() && template.is_none();
        let columns = if detected {
            Some(detect(name, &files)?)
        } else {
            config.columns.clone()
        };
        let renderer = match (&columns, template) {
            (Some(columns), template) => Renderer::from_columns(columns, template),
            (None, template) => Renderer::from_template(template.unwrap_or_default()),
        };
        let renderer = renderer.map_err(|source| DataError::Template {
            origin: format!("datasets.{name}.template"),
            source,
        })?;
        let format = DetectedFormat {
            columns,
            detected,
            template: template.is_some(),
        };

        let rows: Vec<Row> = files.into_iter().flat_map(|(_, rows)| rows).collect();
        if rows.is_empty() {
            return Err(DataError::NoPath {
                dataset: name.to_owned(),
            });
        }
        check(&renderer, &rows, detected)?;
        let (train, validation) = match &config.validation {
            Validation::File(path) => {
                let validation = reader::read(path)?;
                check(&renderer, &validation, detected)?;
                (rows, Some(validation))
            }
            Validation::Fraction(fraction) => {
                let is_held_out = split::held_out(name, rows.len(), *fraction, seed)?;
                let (validation, train): (Vec<_>, Vec<_>) = is_held_out
                    .into_iter()
                    .zip(rows)
                    .partition(|(held_out, _)| *held_out);
                let rows =
                    |split: Vec<(bool, Row)>| split.into_iter().map(|(_, row)| row).collect();
                let validation = (!validation.is_empty()).then(|| rows(validation));
                (rows(train), validation)
            }
        };
        Ok(Self {
            name: name.to_owned(),
            format,
            renderer,
            train,
            validation,
        })
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
    /// the tokenizer fails on; [`DataError::NoTargets`] if no row of a split has a target left.
    pub fn encode(
        &self,
        tokenizer: &Tokenizer,
        max_seq_len: usize,
        train_on_prompt: bool,
    ) -> Result<Encoded, DataError> {
        let encoder = self.encoder(tokenizer, max_seq_len, train_on_prompt)?;
        let encode = |rows: &[Row], split| self.encode_rows(rows, split, tokenizer, &encoder);
        Ok(Encoded {
            train: encode(&self.train, "training")?,
            validation: self
                .validation
                .as_ref()
                .map(|rows| encode(rows, "validation"))
                .transpose()?,
        })
    }

    /// The first `rows` rows to train on, as they would be encoded, with their targets in brackets.
    ///
    /// # Errors
    ///
    /// As [`encode`](Self::encode), except that rows without a target are shown as dropped.
    pub fn preview(
        &self,
        tokenizer: &Tokenizer,
        max_seq_len: usize,
        train_on_prompt: bool,
        rows: usize,
    ) -> Result<Vec<Preview>, DataError> {
        let encoder = self.encoder(tokenizer, max_seq_len, train_on_prompt)?;
        self.train
            .iter()
            .take(rows)
            .map(|row| preview::preview(row.location.clone(), encoder.encode(row)?, tokenizer))
            .collect()
    }

    fn encoder<'a>(
        &'a self,
        tokenizer: &'a Tokenizer,
        max_seq_len: usize,
        train_on_prompt: bool,
    ) -> Result<Encoder<'a>, DataError> {
        Encoder::new(
            &self.name,
            tokenizer,
            &self.renderer,
            max_seq_len,
            train_on_prompt,
        )
    }

    fn encode_rows(
        &self,
        rows: &[Row],
        split: &'static str,
        tokenizer: &Tokenizer,
        encoder: &Encoder<'_>,
    ) -> Result<EncodedDataset, DataError> {
        // Collected before looking at errors, so that the first row's error is the one reported.
        let encoded: Vec<_> = rows.par_iter().map(|row| encoder.encode(row)).collect();
        let mut samples = Vec::with_capacity(rows.len());
        let mut report = EncodeReport {
            rows: rows.len(),
            kept: 0,
            dropped_without_target: 0,
            truncated: 0,
            with_eos_target: 0,
            tokens: 0,
            target_tokens: 0,
            longest: 0,
            format: self.format.to_string(),
        };
        for row in encoded {
            let row = row?;
            report.longest = report.longest.max(row.tokens);
            report.truncated += usize::from(row.tokens > row.sample.len());
            let targets = row.sample.num_targets();
            if targets == 0 {
                report.dropped_without_target += 1;
                continue;
            }
            report.kept += 1;
            report.tokens += row.sample.len();
            report.target_tokens += targets;
            let mut labels = row.sample.ids.iter().zip(&row.sample.is_target);
            let ends = labels.any(|(id, target)| *target && tokenizer.eos_ids().contains(id));
            report.with_eos_target += usize::from(ends);
            samples.push(row.sample);
        }
        if samples.is_empty() {
            return Err(DataError::NoTargets {
                dataset: self.name.clone(),
                split,
                rows: rows.len(),
                max_seq_len: encoder.max_seq_len(),
                longest: report.longest,
            });
        }
        Ok(EncodedDataset { samples, report })
    }
}

/// The format that all files have.
fn detect(name: &str, files: &[(&Path, Vec<Row>)]) -> Result<ColumnMap, DataError> {
    let mut first: Option<(&Path, ColumnMap)> = None;
    for (path, rows) in files {
        let columns = DetectedFormat::detect(path, rows)?;
        match &first {
            None => first = Some((path, columns)),
            Some((_, expected)) if *expected == columns => {}
            Some((first, expected)) => {
                let show = |columns: &ColumnMap| {
                    let columns = Some(columns.clone());
                    DetectedFormat {
                        columns,
                        detected: true,
                        template: false,
                    }
                    .to_string()
                };
                return Err(DataError::MixedFormats {
                    first: first.to_path_buf(),
                    first_format: show(expected),
                    path: path.to_path_buf(),
                    format: show(&columns),
                });
            }
        }
    }
    first
        .map(|(_, columns)| columns)
        .ok_or_else(|| DataError::NoPath {
            dataset: name.to_owned(),
        })
}

/// Renders every row once, so that a bad one is found before anything is trained.
fn check(renderer: &Renderer, rows: &[Row], detected: bool) -> Result<(), DataError> {
    for row in rows {
        renderer.render(row).map_err(|problem| row.error(problem))?;
    }
    // A configured column that no row has is a typo, however optional.
    if let (Some(column), Some(first), false) = (renderer.optional_column(), rows.first(), detected)
        && rows.iter().all(|row| row.get(column).is_none())
    {
        let (column, available) = (column.to_owned(), first.names());
        return Err(first.error(RowError::MissingColumn { column, available }));
    }
    Ok(())
}

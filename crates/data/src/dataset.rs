//! A dataset: the rows of its files, split, and their encoding for a tokenizer.

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
};

use loraloom_config::{ColumnMap, DatasetConfig, Validation};

use crate::{
    encode::Encoder,
    encoded_rows::EncodedRows,
    error::{DataError, NoTarget, RowError, TemplateError},
    format::DetectedFormat,
    preview::{self, Preview, Shown},
    reader,
    render::Renderer,
    row::{Location, Row},
    row_warnings::{RowWarnings, unused_columns},
    sample::EncodedDataset,
    split::{self, Split},
    survey::{self, SplitSurvey, Survey},
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
    /// Reads the files of `config` as one table, determines its format and checks every row against it.
    ///
    /// With neither `columns` nor `template` the format is detected per file and must be the same.
    /// `seed` and `name` choose the rows that a validation fraction holds out.
    ///
    /// # Errors
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
        let counts = check(&renderer, &rows, detected)?;
        if counts.empty == rows.len() && !matches!(renderer, Renderer::Chat { .. }) {
            let empty = |column: &str| NoTarget::Empty(column.to_owned());
            let column = renderer.target_column();
            return Err(DataError::NothingInRows {
                dataset: name.to_owned(),
                split: Split::Training.name(),
                rows: rows.len(),
                reason: column.map_or(NoTarget::NothingRendered, empty),
            });
        }
        let about = format!("dataset {name}");
        warnings.extend(counts.warnings(&about, rows.len(), &renderer));
        warnings.extend(counts.template_warning(&about, &rows, &renderer));
        warnings.extend(unused_columns(&about, &rows, &renderer));
        warnings.extend(setting_warnings(&about, config, &renderer));
        let (train, validation) = match &config.validation {
            Validation::File(path) => {
                let validation = reader::read(path, &mut warnings)?;
                let counts = check(&renderer, &validation, detected)?;
                let about = format!("{about}, validation");
                warnings.extend(counts.warnings(&about, validation.len(), &renderer));
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
    /// A tokenizer without EOS or, for messages, without a chat template; a row that a template or
    /// the tokenizer fails on; [`DataError::NoTargets`] if no row of a split has a target left,
    /// [`DataError::NothingInRows`] if none ever had one.
    pub fn encode(
        &self,
        tokenizer: &Tokenizer,
        max_seq_len: usize,
        train_on_prompt: bool,
    ) -> Result<Encoded, DataError> {
        let mut warnings = Vec::new();
        let mut encode = |split| {
            let rows = self.rows(split).unwrap_or_default();
            let encoded = self.encode_rows(rows, tokenizer, max_seq_len, train_on_prompt)?;
            let of_split = encoded.warnings(&self.name, split);
            let encoded = encoded.into_dataset(&self.name, split)?;
            warnings.extend(of_split);
            Ok::<_, DataError>(encoded)
        };
        let train = encode(Split::Training)?;
        let validation = self.validation.as_ref();
        let validation = validation.map(|_| encode(Split::Validation));
        let validation = validation.transpose()?;
        if let Some(validation) = &validation {
            warnings.extend(mostly_shared(&self.name, &train, validation));
        }
        Ok(Encoded {
            train,
            validation,
            warnings,
        })
    }

    /// The samples of the first `limit` rows of a split, and where each comes from.
    ///
    /// # Errors
    /// Same as [`encode`](Self::encode).
    pub fn encode_split(
        &self,
        split: Split,
        limit: usize,
        tokenizer: &Tokenizer,
        max_seq_len: usize,
        train_on_prompt: bool,
    ) -> Result<(EncodedDataset, Vec<Location>), DataError> {
        let rows = self.rows(split).unwrap_or_default();
        let rows = &rows[..rows.len().min(limit)];
        let encoded = self.encode_rows(rows, tokenizer, max_seq_len, train_on_prompt)?;
        let kept = rows.iter().zip(&encoded.rows).filter(|(_, row)| row.0);
        let locations = kept.map(|(row, _)| row.location.clone()).collect();
        Ok((encoded.into_dataset(&self.name, split)?, locations))
    }

    /// Rows of a split as they would be encoded, with their targets.
    ///
    /// # Errors
    /// Same as [`encode`](Self::encode), but rows without a target are shown as dropped.
    pub fn preview(
        &self,
        split: Split,
        shown: Shown,
        tokenizer: &Tokenizer,
        max_seq_len: usize,
        train_on_prompt: bool,
    ) -> Result<Vec<Preview>, DataError> {
        let encoder = self.encoder(tokenizer, max_seq_len, train_on_prompt)?;
        let rows = self.rows(split).unwrap_or_default().iter();
        let rows = rows.filter(|row| shown.includes(&row.location));
        let preview = |row| preview::row(row, &encoder, &self.renderer, tokenizer);
        rows.take(shown.most()).map(preview).collect()
    }

    /// Counts of the rows of every split, as [`encode`](Self::encode) counts them.
    ///
    /// # Errors
    /// As [`encode`](Self::encode), but a split without any target is still surveyed.
    pub fn survey(
        &self,
        tokenizer: &Tokenizer,
        max_seq_len: usize,
        train_on_prompt: bool,
    ) -> Result<Survey, DataError> {
        let survey = |split, rows: &_| {
            let encoded = self.encode_rows(rows, tokenizer, max_seq_len, train_on_prompt)?;
            let texts = survey::digests(rows, &self.renderer)?;
            Ok(SplitSurvey::new(
                &encoded, &texts, &self.name, split, tokenizer,
            ))
            .map(|survey| (survey, texts))
        };
        let (train, trained) = survey(Split::Training, &self.train)?;
        let validation = self.validation.as_deref();
        let validation = validation.map(|rows| survey(Split::Validation, rows));
        let (validation, validated) = validation.transpose()?.unzip();
        Ok(Survey {
            train,
            validation,
            shared: survey::shared(&trained, validated.as_deref().unwrap_or_default()),
        })
    }

    fn rows(&self, split: Split) -> Option<&[Row]> {
        match split {
            Split::Training => Some(&self.train),
            Split::Validation => self.validation.as_deref(),
        }
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

    fn encode_rows<'a>(
        &self,
        rows: &'a [Row],
        tokenizer: &Tokenizer,
        max_seq_len: usize,
        train_on_prompt: bool,
    ) -> Result<EncodedRows<'a>, DataError> {
        let encoder = self.encoder(tokenizer, max_seq_len, train_on_prompt)?;
        let format = self.format.to_string();
        EncodedRows::new(rows, tokenizer, &self.renderer, &encoder, format)
    }
}

/// Warnings about the settings of a dataset.
fn setting_warnings(about: &str, config: &DatasetConfig, renderer: &Renderer) -> Vec<Warning> {
    // If a file has two names, neither need be the real path.
    let real = |path: &PathBuf| path.canonicalize().unwrap_or_else(|_| path.clone());
    let paths: Vec<PathBuf> = config.path.iter().map(real).collect();
    let mut warnings = Vec::new();
    for (index, path) in paths.iter().enumerate() {
        if paths[..index].contains(path) {
            let shown = config.path[index].display();
            warnings.push(Warning {
                about: about.to_owned(),
                message: format!("{shown} is listed more than once, so its rows are repeated"),
                hint: None,
            });
        }
    }
    if let Some(column) = renderer.column_used_twice() {
        let message = format!("column `{column}` is both prompt and completion");
        let hint = if config.template.is_some() {
            "with `columns` the template is only the prompt: remove the completion from it"
        } else {
            "name the two columns in `columns`"
        };
        warnings.push(Warning::new(about, message, hint));
    }
    warnings
}

/// A warning if more than half of the validation rows are training rows as well. A few are common, because files
/// contain duplicate rows.
fn mostly_shared(
    dataset: &str,
    train: &EncodedDataset,
    validation: &EncodedDataset,
) -> Option<Warning> {
    let trained: HashSet<&[u32]> = train.samples.iter().map(|sample| &*sample.ids).collect();
    let samples = validation.samples.iter();
    let shared = samples.filter(|sample| trained.contains(&*sample.ids));
    let (shared, all) = (shared.count(), validation.samples.len());
    (2 * shared > all).then(|| {
        let message = format!(
            "{shared} of {all} validation rows are also training rows: their loss says nothing about \
             unseen rows"
        );
        let hint = "use another file, or hold out rows, for example with `validation: 0.1`";
        Warning::new(format!("dataset {dataset}, validation"), message, hint)
    })
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

/// Renders every row once, so that an invalid one is found before training. Returns warnings about the rows.
fn check(renderer: &Renderer, rows: &[Row], detected: bool) -> Result<RowWarnings, DataError> {
    let mut counts = RowWarnings::default();
    for row in rows {
        let text = renderer.render(row).map_err(|problem| row.error(problem))?;
        counts.count(&text);
    }
    // A configured column that no row has is a typo, even if it is optional.
    if let (Some(column), Some(first), false) = (renderer.optional_column(), rows.first(), detected)
        && rows.iter().all(|row| row.get(column).is_none())
    {
        let (column, available) = (column.to_owned(), first.names());
        return Err(first.error(RowError::MissingColumn { column, available }));
    }
    Ok(counts)
}

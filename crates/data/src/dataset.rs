//! A dataset: the rows of its files, split, and their encoding for a tokenizer.

use std::{iter, path::PathBuf, slice, sync::atomic::AtomicBool};

use loraloom_config::{ColumnMap, DatasetConfig, Preference, Validation};

use crate::{
    encode::{EncodedRow, Encoder},
    error::{DataError, NoTarget, TemplateError},
    format::DetectedFormat,
    preview::{self, Preview, Shown},
    reader::{DataFile, LEFT_OUT, NEVER, RawRow, Rows, for_each},
    render::{Renderer, Switch},
    row::{Location, Row},
    row_counts::RowCounts,
    row_warnings::{CheckedRow, RowWarnings},
    sample::{EncodedDataset, Sample},
    samples::Samples,
    split::{self, Split},
    survey::{self, SplitSurvey, Survey},
    tokenizer::Tokenizer,
    warning::Warning,
};

/// The purpose of a pass over the rows, which progress lines name.
const CHECKING: &str = "checking rows";
const ENCODING: &str = "encoding rows";
const COUNTING: &str = "counting rows";

/// The rows of a dataset, checked but not tokenised. Each use reads them from their files.
#[derive(Debug)]
pub struct Dataset {
    name: String,
    format: DetectedFormat,
    renderer: Renderer,
    files: Vec<DataFile>,
    /// Per row of the files, true if it is held out for validation.
    is_held_out: Vec<bool>,
    /// The file with validation rows.
    validation: Option<DataFile>,
    num_train_rows: usize,
    num_validation_rows: usize,
    warnings: Vec<Warning>,
}

/// A dataset's samples.
#[derive(Debug)]
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
    /// a template that does not compile, rows without text, preferences that say nothing, a split that leaves
    /// nothing to train on.
    pub fn load(name: &str, config: &DatasetConfig, seed: u64) -> Result<Self, DataError> {
        Self::load_until(&NEVER, name, config, seed)
    }

    /// As [`load`](Self::load), until `stop` is set.
    ///
    /// # Errors
    /// As [`load`](Self::load), and [`DataError::Stopped`].
    pub fn load_until(
        stop: &AtomicBool,
        name: &str,
        config: &DatasetConfig,
        seed: u64,
    ) -> Result<Self, DataError> {
        let files = config.path.iter().map(|path| DataFile::find(path));
        let files = files.collect::<Result<Vec<_>, DataError>>()?;
        let Some((first, others)) = files.split_first() else {
            return Err(DataError::NoPath(name.to_owned()));
        };
        let template = config.template.as_deref();
        let detected = config.columns.is_none() && template.is_none();
        let columns = if detected {
            Some(detect(first, others)?)
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
            both: renderer.switch().map(Switch::preference),
        };

        let (counts, mut warnings) = check(&renderer, &files, detected, (name, "rows"), stop)?;
        if counts.empty == counts.rows && !matches!(renderer, Renderer::Chat { .. }) {
            let empty = |column: &str| NoTarget::Empty(column.to_owned());
            let column = renderer.target_column();
            return Err(DataError::NothingInRows {
                dataset: name.to_owned(),
                split: Split::Training.name(),
                rows: counts.rows,
                reason: column.map_or(NoTarget::NothingRendered, empty),
            });
        }
        let about = format!("dataset {name}");
        warnings.extend(counts.warnings(&about, &renderer));
        warnings.extend(counts.template_warning(&about, &renderer));
        warnings.extend(counts.unused_columns(&about, &renderer));
        warnings.extend(setting_warnings(&about, config, &renderer));
        let mut dataset = Self {
            name: name.to_owned(),
            format,
            renderer,
            files,
            is_held_out: Vec::new(),
            validation: None,
            num_train_rows: counts.rows,
            num_validation_rows: 0,
            warnings,
        };
        match &config.validation {
            Validation::File(path) => {
                let file = dataset.validation.insert(DataFile::find(path)?);
                let file = slice::from_ref(file);
                let what = (name, "validation rows");
                let (counts, of_file) = check(&dataset.renderer, file, detected, what, stop)?;
                let about = format!("{about}, validation");
                dataset.num_validation_rows = counts.rows;
                dataset.warnings.extend(of_file);
                let of_rows = counts.warnings(&about, &dataset.renderer);
                dataset.warnings.extend(of_rows);
            }
            Validation::Fraction(fraction) => {
                let is_held_out = split::held_out(name, counts.rows, *fraction, seed)?;
                let held_out = is_held_out.iter().filter(|held_out| **held_out).count();
                dataset.num_train_rows -= held_out;
                dataset.num_validation_rows = held_out;
                dataset.is_held_out = is_held_out;
            }
        }
        Ok(dataset)
    }

    /// True if its files are as they were when it was loaded.
    pub fn is_unchanged(&self) -> bool {
        let mut files = self.files.iter().chain(&self.validation);
        files.all(DataFile::is_unchanged)
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
        self.num_train_rows
    }

    /// Rows held out for validation.
    pub fn num_validation_rows(&self) -> usize {
        self.num_validation_rows
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
        self.encode_until(&NEVER, tokenizer, max_seq_len, train_on_prompt)
    }

    /// As [`encode`](Self::encode), until `stop` is set.
    ///
    /// # Errors
    /// As [`encode`](Self::encode), and [`DataError::Stopped`].
    pub fn encode_until(
        &self,
        stop: &AtomicBool,
        tokenizer: &Tokenizer,
        max_seq_len: usize,
        train_on_prompt: bool,
    ) -> Result<Encoded, DataError> {
        let encoder = self.encoder(tokenizer, max_seq_len, train_on_prompt)?;
        let mut warnings = Vec::new();
        // Of the ids, to find rows of both splits without holding them.
        let mut digests = [Vec::new(), Vec::new()];
        let has_both = self.num_validation_rows > 0;
        let mut encode = |split, digests: &mut Vec<u64>| {
            let visit = |row: &EncodedRow, _| {
                if has_both {
                    digests.push(survey::digest(&ids(row)));
                }
            };
            let rows = (split, usize::MAX);
            self.encode_rows(rows, stop, &encoder, &mut warnings, visit)
        };
        let [trained, validated] = &mut digests;
        let train = encode(Split::Training, trained)?;
        let validation = has_both.then(|| encode(Split::Validation, validated));
        let validation = validation.transpose()?;
        trained.sort_unstable();
        let shared = survey::shared(trained, validated);
        warnings.extend(mostly_shared(&self.name, shared, validated.len()));
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
        let encoder = self.encoder(tokenizer, max_seq_len, train_on_prompt)?;
        let mut locations = Vec::new();
        let visit = |row: &EncodedRow, location| {
            locations.extend(iter::repeat_n(location, row.samples.len()));
        };
        let encoded = self.encode_rows((split, limit), &NEVER, &encoder, &mut Vec::new(), visit)?;
        Ok((encoded, locations))
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
        let is_shown = |row: &RawRow| shown.includes(&row.location);
        let rows = self.rows(split, CHECKING);
        let rows = rows.filter(|row| row.as_ref().map_or(true, is_shown));
        let preview = |row| preview::row(&row, &encoder, tokenizer);
        let mut previews = Vec::new();
        for_each(rows.take(shown.most()), &NEVER, preview, |row| {
            previews.extend(row);
            Ok(())
        })?;
        Ok(previews)
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
        let encoder = self.encoder(tokenizer, max_seq_len, train_on_prompt)?;
        let survey = |split| {
            let mut counts = self.counts(split, &encoder);
            let (mut texts, mut lengths, mut extra_bos) = (Vec::new(), Vec::new(), 0);
            let work = |row: Row| {
                let text = self.renderer.render(&row);
                let text = survey::digest(&text.map_err(|problem| row.error(problem))?);
                let encoded = encoder.encode(&row)?;
                let repeats = |sample: &Sample| tokenizer.extra_bos(&sample.ids).next().is_some();
                let repeats = encoded.samples.iter().any(repeats);
                Ok((encoded, row.location, text, repeats))
            };
            for_each(
                self.rows(split, COUNTING),
                &NEVER,
                work,
                |(row, location, text, repeats)| {
                    counts.count(&row, &location);
                    texts.push(text);
                    lengths.push(row.longest());
                    extra_bos += usize::from(repeats && row.targets > 0);
                    Ok(())
                },
            )?;
            texts.sort_unstable();
            let survey = SplitSurvey::new(&counts, &texts, lengths, extra_bos);
            Ok::<_, DataError>((survey, texts))
        };
        let (train, trained) = survey(Split::Training)?;
        let validation = (self.num_validation_rows > 0).then(|| survey(Split::Validation));
        let (validation, validated) = validation.transpose()?.unzip();
        Ok(Survey {
            train,
            validation,
            shared: survey::shared(&trained, validated.as_deref().unwrap_or_default()),
        })
    }

    /// The rows of a split, for a pass called `what`.
    fn rows(
        &self,
        split: Split,
        what: &'static str,
    ) -> impl Iterator<Item = Result<RawRow, DataError>> {
        let is_validation = split == Split::Validation;
        let (files, held_out): (_, &[bool]) = match &self.validation {
            Some(file) if is_validation => (slice::from_ref(file), &[]),
            _ => (self.files.as_slice(), &self.is_held_out),
        };
        let is_in_file = is_validation && self.validation.is_some();
        let rows = Rows::of(files, what).enumerate();
        rows.filter_map(move |(index, row)| {
            let is_held_out = held_out.get(index).copied().unwrap_or(is_in_file);
            (is_held_out == is_validation || row.is_err()).then_some(row)
        })
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

    fn counts(&self, split: Split, encoder: &Encoder<'_>) -> RowCounts<'_> {
        let format = self.format.to_string();
        RowCounts::new(&self.name, split, encoder.max_seq_len(), format)
    }

    /// The samples of the first `limit` rows of a split; `visit` sees them with their locations.
    fn encode_rows(
        &self,
        (split, limit): (Split, usize),
        stop: &AtomicBool,
        encoder: &Encoder<'_>,
        warnings: &mut Vec<Warning>,
        mut visit: impl FnMut(&EncodedRow, Location),
    ) -> Result<EncodedDataset, DataError> {
        let mut counts = self.counts(split, encoder);
        let preference = self.format.preference();
        let are_two = matches!(
            preference,
            Some(Preference::Pairs | Preference::Paraphrases)
        );
        let mut samples = Samples::default().with_per_row(1 + usize::from(are_two));
        let rows = self.rows(split, ENCODING).take(limit);
        let work = |row: Row| Ok((encoder.encode(&row)?, row.location));
        for_each(rows, stop, work, |(row, location)| {
            counts.count(&row, &location);
            if row.targets > 0 {
                for sample in &row.samples {
                    samples.push(sample)?;
                }
                visit(&row, location);
            }
            Ok(())
        })?;
        warnings.extend(counts.warnings());
        if let Some(refusal) = counts.refusal() {
            return Err(refusal);
        }
        samples.shrink();
        Ok(EncodedDataset {
            samples,
            report: counts.report,
        })
    }
}

/// The tokens of a row.
fn ids(row: &EncodedRow) -> Vec<&[u32]> {
    row.samples.iter().map(|sample| &*sample.ids).collect()
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
fn mostly_shared(dataset: &str, shared: usize, all: usize) -> Option<Warning> {
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
fn detect(first: &DataFile, others: &[DataFile]) -> Result<ColumnMap, DataError> {
    let detect = |file| {
        let mut rows = Rows::of(slice::from_ref(file), CHECKING);
        let first = rows.by_ref().take(DetectedFormat::ROWS_LOOKED_AT);
        let first = first.map(|row| row?.parse());
        let first = first.collect::<Result<Vec<_>, _>>()?;
        let mut detected = DetectedFormat::detect(DataFile::path(file), &first);
        if let Err(DataError::UnknownFormat { left_out, .. }) = &mut detected {
            let mut warnings = rows.into_warnings().into_iter();
            let about = warnings.find(|warning| warning.message.starts_with(LEFT_OUT));
            *left_out = about.map_or_else(String::new, |about| format!("; {}", about.message));
        }
        detected
    };
    let expected = detect(first)?;
    for file in others {
        let columns = detect(file)?;
        if columns != expected {
            let show = |columns| {
                let format = DetectedFormat {
                    columns: Some(columns),
                    template: false,
                    both: None,
                };
                format.to_string()
            };
            return Err(DataError::MixedFormats {
                first: first.path().to_path_buf(),
                first_format: show(expected),
                path: file.path().to_path_buf(),
                format: show(columns),
            });
        }
    }
    Ok(expected)
}

/// Renders every row once, so that an invalid one is found before training; errors use the dataset's name, and what its
/// rows are called. Returns warnings about the files, too.
fn check(
    renderer: &Renderer,
    files: &[DataFile],
    detected: bool,
    (dataset, what): (&str, &str),
    stop: &AtomicBool,
) -> Result<(RowWarnings, Vec<Warning>), DataError> {
    let mut counts = RowWarnings::default();
    let mut rows = Rows::of(files, CHECKING);
    let work = |row| CheckedRow::new(row, renderer);
    for_each(rows.by_ref(), stop, work, |row| {
        counts.count(row, renderer);
        Ok(())
    })?;
    // A configured column that no row has is a typo, even if it is optional.
    let missing = counts.missing_column(renderer).filter(|_| !detected);
    match missing.or_else(|| counts.refusal(dataset, what)) {
        Some(error) => Err(error),
        None => Ok((counts, rows.into_warnings())),
    }
}

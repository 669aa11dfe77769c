use std::{collections::BTreeSet, path::Path};

use loraloom_config::{AdapterConfig, DatasetConfig, RunConfig, Validation};
use loraloom_data::{DataError, Dataset, EncodedDataset, Location, Sample, Split, Tokenizer};
use loraloom_model::LlamaConfig;

use super::refused;
use crate::{arguments::EvalArguments, exit::Exit, failure::Failure, printer::Printer};

/// More tokens than a row can have.
const UNCUT: usize = 1 << 40;

/// The rows to evaluate.
pub(super) struct Rows {
    dataset: Dataset,
    /// The name in the run, or the path.
    pub(super) name: String,
    of_run: bool,
    limit: usize,
    pub(super) max_seq_len: usize,
    pub(super) train_on_prompt: bool,
}

impl Rows {
    /// Reads the dataset. Unless options say otherwise, its rows are encoded as for the training of the named
    /// adapters of the run.
    pub(super) fn open(
        arguments: &EvalArguments,
        runs: &[RunConfig],
        adapters: &[&str],
        model: &LlamaConfig,
        printer: &Printer,
    ) -> anyhow::Result<Self> {
        let name = &arguments.dataset;
        let trained = trained(runs, name, adapters);
        let settings = of_runs(runs, &trained, name)?;
        let of_run = settings.is_some();
        let (settings, seed) = match settings {
            Some(_) if arguments.columns.is_some() || arguments.template.is_some() => {
                let message = format!("`{name}` is a dataset of the run, with its own columns");
                let hint = "leave out --columns and --template, or name a file";
                return Err(Failure::usage(message).hint(hint).into());
            }
            Some(found) => found,
            None if !runs.is_empty() && !Path::new(name).exists() => {
                let known = runs.iter().flat_map(|run| run.datasets.keys());
                let known: BTreeSet<&str> = known.map(String::as_str).collect();
                let message = format!("`{name}` is neither a dataset of the run nor a file");
                let hint = format!("datasets of the run: {}", Vec::from_iter(known).join(", "));
                return Err(Failure::new(Exit::Data, message).hint(hint).into());
            }
            None => {
                let file = DatasetConfig {
                    path: vec![name.into()],
                    columns: arguments.columns.clone(),
                    template: arguments.template.clone(),
                    validation: Validation::Fraction(0.0),
                };
                note_other_rendering(&file, &trained, printer);
                (file, 0)
            }
        };
        let load = || Dataset::load(name, &settings, seed);
        let dataset = printer.while_busy("reading data", load);
        let dataset = dataset.map_err(|error| refused(error, of_run))?;
        for warning in dataset.warnings() {
            printer.warning(&warning.to_string());
        }
        let trained: Vec<&AdapterConfig> =
            trained.into_iter().map(|(_, adapter)| adapter).collect();
        let longest = trained
            .iter()
            .map(|adapter| adapter.train.max_seq_len)
            .max();
        let max_seq_len = arguments.max_seq_len.or(longest);
        let max_seq_len = max_seq_len.unwrap_or(model.max_position_embeddings);
        let on_prompts = |adapter: &&AdapterConfig| adapter.train.train_on_prompt;
        let all_on_prompts = !trained.is_empty() && trained.iter().all(on_prompts);
        let rows = Self {
            dataset,
            name: name.clone(),
            of_run,
            limit: arguments.limit.unwrap_or(usize::MAX),
            max_seq_len,
            train_on_prompt: arguments.train_on_prompt || all_on_prompts,
        };
        for adapter in trained {
            let train = &adapter.train;
            let ways = [
                (train.max_seq_len != max_seq_len)
                    .then(|| format!("at max_seq_len {}", train.max_seq_len)),
                (train.train_on_prompt != rows.train_on_prompt)
                    .then(|| format!("with train_on_prompt: {}", train.train_on_prompt)),
            ];
            let ways: Vec<String> = ways.into_iter().flatten().collect();
            if !ways.is_empty() {
                printer.note(&format!(
                    "{} was trained {}; this evaluates at max_seq_len {max_seq_len}, with train_on_prompt: {}",
                    adapter.name,
                    ways.join(" and "),
                    rows.train_on_prompt
                ));
            }
        }
        let most = model.max_position_embeddings;
        if max_seq_len > most {
            printer.warning(&format!(
                "rows may have {max_seq_len} tokens, but the model supports {most}"
            ));
        }
        Ok(rows)
    }

    /// The samples to score.
    pub(super) fn encode(&self, tokenizer: &Tokenizer) -> Result<EncodedDataset, DataError> {
        let (split, limit, max_seq_len) = (self.split(), self.limit, self.max_seq_len);
        let dataset = &self.dataset;
        let (encoded, _) =
            dataset.encode_split(split, limit, tokenizer, max_seq_len, self.train_on_prompt)?;
        Ok(encoded)
    }

    /// The rows to answer, with their locations. They are whole, since a cut reference is another answer, and have no
    /// targets in the prompt. A completion that is not preferred is no reference.
    pub(super) fn questions(
        &self,
        tokenizer: &Tokenizer,
    ) -> Result<(Vec<Sample>, Vec<Location>), DataError> {
        let (split, limit) = (self.split(), self.limit);
        let dataset = &self.dataset;
        let (encoded, locations) = dataset.encode_split(split, limit, tokenizer, UNCUT, false)?;
        let rows = encoded.samples.iter().zip(locations);
        let rows = rows.map(|(sample, location)| Ok::<_, DataError>((sample?, location)));
        let is_reference = |row: &Result<(Sample, Location), DataError>| {
            row.as_ref()
                .map_or(true, |(sample, _)| sample.preferred != Some(false))
        };
        rows.filter(is_reference).collect()
    }

    /// True if rows are text without a prompt.
    pub(super) fn are_plain_text(&self) -> bool {
        use loraloom_config::ColumnMap::Text;
        matches!(self.dataset.format().columns, None | Some(Text { .. }))
    }

    /// The evaluated part of a dataset of the run.
    pub(super) fn split_of_run(&self) -> Option<Split> {
        self.of_run.then(|| self.split())
    }

    pub(super) fn description(&self) -> String {
        match self.split_of_run() {
            Some(split) => format!("{} rows of {}", split.name(), self.name),
            None => self.name.clone(),
        }
    }

    fn split(&self) -> Split {
        if self.dataset.num_validation_rows() > 0 {
            Split::Validation
        } else {
            Split::Training
        }
    }
}

/// The named adapters, each with its run's configuration: only those trained with a dataset, if there are any.
fn trained<'a>(
    runs: &'a [RunConfig],
    dataset: &str,
    adapters: &[&str],
) -> Vec<(&'a RunConfig, &'a AdapterConfig)> {
    let named = adapters.iter().filter_map(|spec| {
        let kept = spec
            .rsplit_once('@')
            .filter(|(_, kept)| ["best", "last"].contains(kept));
        let name = kept.map_or(*spec, |(name, _)| name);
        runs.iter().find_map(|run| {
            let adapter = run.adapters.iter().find(|adapter| adapter.name == name)?;
            Some((run, adapter))
        })
    });
    let named: Vec<_> = named.collect();
    let with_it = named
        .iter()
        .filter(|(_, adapter)| adapter.dataset == dataset);
    let with_it: Vec<_> = with_it.copied().collect();
    if with_it.is_empty() { named } else { with_it }
}

/// A dataset of the run, with the seed of its validation split: as the named adapters use it, or else any. `None` if
/// no configuration has it.
///
/// # Errors
/// If tasks of a server use the name for different rows.
fn of_runs(
    runs: &[RunConfig],
    trained: &[(&RunConfig, &AdapterConfig)],
    name: &str,
) -> Result<Option<(DatasetConfig, u64)>, Failure> {
    let of = |run: &RunConfig| Some((run.datasets.get(name)?.clone(), run.seed));
    let mut found: Vec<_> = trained.iter().filter_map(|(run, _)| of(run)).collect();
    if found.is_empty() {
        found = runs.iter().filter_map(of).collect();
    }
    let first = found.pop();
    if found.iter().any(|other| Some(other) != first.as_ref()) {
        let message = format!("tasks of the server have different datasets `{name}`");
        let hint = "name tasks that share one with --adapter, or name the file";
        return Err(Failure::usage(message).hint(hint));
    }
    Ok(first)
}

/// Notes that rows of a file are read differently from those that adapters were trained with.
fn note_other_rendering(
    file: &DatasetConfig,
    trained: &[(&RunConfig, &AdapterConfig)],
    printer: &Printer,
) {
    let differs = |(run, adapter): &&(&RunConfig, &AdapterConfig)| {
        let dataset = run.datasets.get(&adapter.dataset);
        dataset.is_some_and(|dataset| dataset.template != file.template)
    };
    if let Some((run, adapter)) = trained.iter().find(differs) {
        let trained = run.datasets[&adapter.dataset].template.as_ref();
        let (trained, now) = match (trained, &file.template) {
            (None, _) => ("without a template".to_owned(), "with one"),
            (Some(_), now) => (
                format!("with the template of dataset `{}`", adapter.dataset),
                now.as_ref().map_or("without one", |_| "with another"),
            ),
        };
        printer.note(&format!(
            "{} was trained {trained}; this evaluates {now}",
            adapter.name
        ));
    }
}

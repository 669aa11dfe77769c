use std::path::Path;

use loraloom_config::{AdapterConfig, DatasetConfig, RunConfig, Validation};
use loraloom_data::{DataError, Dataset, EncodedDataset, Location, Split, Tokenizer};
use loraloom_model::LlamaConfig;

use crate::{arguments::EvalArguments, exit::Exit, failure::Failure, printer::Printer};

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
    /// Reads the dataset that is asked for. Where the options do not say how its rows are encoded, they
    /// are as for the training of the named adapters of the run.
    pub(super) fn open(
        arguments: &EvalArguments,
        run: Option<&RunConfig>,
        adapters: &[&str],
        model: &LlamaConfig,
        printer: &Printer,
    ) -> anyhow::Result<Self> {
        let name = &arguments.dataset;
        let of_run = run.and_then(|run| Some((run.datasets.get(name)?, run.seed)));
        let settings = match (of_run, run) {
            (Some(_), _) if arguments.columns.is_some() || arguments.template.is_some() => {
                let message = format!("`{name}` is a dataset of the run, with its own columns");
                let hint = "leave out --columns and --template, or name a file";
                return Err(Failure::usage(message).hint(hint).into());
            }
            (Some((settings, _)), _) => settings.clone(),
            (None, Some(run)) if !Path::new(name).exists() => {
                let known: Vec<&str> = run.datasets.keys().map(String::as_str).collect();
                let message = format!("`{name}` is neither a dataset of the run nor a file");
                let hint = format!("datasets of the run: {}", known.join(", "));
                return Err(Failure::new(Exit::Data, message).hint(hint).into());
            }
            (None, _) => DatasetConfig {
                path: vec![name.into()],
                columns: arguments.columns.clone(),
                template: arguments.template.clone(),
                validation: Validation::Fraction(0.0),
            },
        };
        let seed = of_run.map_or(0, |(_, seed)| seed);
        let load = || Dataset::load(name, &settings, seed);
        let dataset = printer.while_busy("reading data", load)?;
        for warning in dataset.warnings() {
            printer.warning(&warning.to_string());
        }
        let trained = run.map_or_else(Vec::new, |run| trained(run, name, adapters));
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
            of_run: of_run.is_some(),
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
                "rows may have {max_seq_len} tokens, but the model was made for {most}"
            ));
        }
        Ok(rows)
    }

    /// The samples, and where they come from.
    pub(super) fn encode(
        &self,
        tokenizer: &Tokenizer,
        train_on_prompt: bool,
    ) -> Result<(EncodedDataset, Vec<Location>), DataError> {
        let (split, limit) = (self.split(), self.limit);
        let dataset = &self.dataset;
        dataset.encode_split(split, limit, tokenizer, self.max_seq_len, train_on_prompt)
    }

    /// Whether rows are text without a prompt.
    pub(super) fn are_plain_text(&self) -> bool {
        use loraloom_config::ColumnMap::Text;
        matches!(self.dataset.format().columns, None | Some(Text { .. }))
    }

    /// The part of a dataset of the run that is evaluated.
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

/// The named adapters of the run: those trained with a dataset, if there are any.
fn trained<'a>(run: &'a RunConfig, dataset: &str, adapters: &[&str]) -> Vec<&'a AdapterConfig> {
    let is_named = |adapter: &&AdapterConfig| {
        let mut names = adapters.iter().map(|spec| {
            let kept = spec
                .rsplit_once('@')
                .filter(|(_, kept)| ["best", "last"].contains(kept));
            kept.map_or(*spec, |(name, _)| name)
        });
        names.any(|name| name == adapter.name)
    };
    let named: Vec<_> = run.adapters.iter().filter(is_named).collect();
    let with_it = named.iter().filter(|adapter| adapter.dataset == dataset);
    let with_it: Vec<_> = with_it.copied().collect();
    if with_it.is_empty() { named } else { with_it }
}

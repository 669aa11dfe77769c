//! Reads the adapters' data before training.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
};

use burn::tensor::Device;
use loraloom_config::{AdapterConfig, Reference, RunConfig};
use loraloom_data::{EncodeReport, Tokenizer};
use loraloom_model::{LlamaConfig, PeftAdapter};
use loraloom_scheduler::TaskId;
use serde::Serialize;

use super::{
    EncodedRows, RowCache, State, Task, TaskData, Trial,
    slora::start_warning,
    warnings::{
        init_from_warnings, model_warnings, rank_warning, setting_warnings, sweep_warnings,
    },
};
use crate::{
    AdapterReport, Outcome, TrainerError,
    adapter::{ModelAdapter, check_attention, check_start, check_targets, from_peft},
    checkpoint::{RecordState, SavedRun, SavedTask, TaskRecord, TrialResult},
    error::Result,
    saved_adapter::load_beginning,
    stages::TypicalMicrobatch,
};

/// Most tokens with which layers are measured.
const MOST_ROWS: usize = 2048;

/// The rows of one adapter.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DatasetSummary {
    /// Name of the adapter.
    pub adapter: String,
    /// Name of its dataset.
    pub dataset: String,
    /// Its training rows.
    pub train: EncodeReport,
    /// Its validation rows, if it has any.
    pub validation: Option<EncodeReport>,
}

/// Tasks that were read and checked, before they join a run.
#[derive(Debug, Default)]
pub(crate) struct Prepared {
    /// Tasks to be trained.
    pub(crate) tasks: Vec<Task>,
    /// Tasks that ended in an earlier part of the run.
    pub(crate) ended: BTreeMap<TaskId, AdapterReport>,
    /// Ended tasks that checkpoints keep as in the last one: they can continue once the cause of their failure is
    /// removed.
    pub(crate) held: BTreeSet<TaskId>,
    pub(crate) datasets: Vec<DatasetSummary>,
    pub(crate) warnings: Vec<String>,
    /// Earlier results of sweeps' trials.
    trials: BTreeMap<TaskId, Vec<TrialResult>>,
}

/// Reads the data of tasks and makes their adapters.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TaskFactory<'a> {
    pub(crate) model: &'a LlamaConfig,
    /// Directory of the model.
    pub(crate) directory: &'a Path,
    pub(crate) tokenizer: &'a Tokenizer,
    /// Device on which adapters are created; each stage takes its part from there.
    pub(crate) device: &'a Device,
}

impl TaskFactory<'_> {
    /// Reads the data of all unfinished adapters of a configuration, except for known rows, and creates or restores the
    /// adapters.
    pub(crate) fn tasks(
        &self,
        config: &RunConfig,
        saved: Option<&SavedRun>,
        known: EncodedRows,
    ) -> Result<Prepared> {
        let mut prepared = Prepared::default();
        let mut cache = RowCache::new(self.tokenizer, self.model.vocab_size).with(known);
        for (index, adapter) in config.adapters.iter().enumerate() {
            let id = TaskId(index as u64);
            let saved = match saved {
                Some(saved) => saved.task(&adapter.name)?.map(|task| (saved, task)),
                None => None,
            };
            if let Some((run, task)) = &saved
                && let Some(report) = run.report_of(&task.record)
            {
                prepared.trials.insert(id, task.record.trial.clone());
                prepared.ended.insert(id, report);
                continue;
            }
            let dataset = &config.datasets[&adapter.dataset];
            let rows = cache.read(adapter, dataset, config.seed)?;
            self.add(&mut prepared, id, adapter, rows, saved)?;
        }
        for task in &mut prepared.tasks {
            let clients = task.config.clients(&config.adapters).into_iter();
            task.clients = clients.map(|client| client.name.clone()).collect();
        }
        let tasks = prepared.tasks.iter();
        let begun = tasks.map(|task| (task.config.name.as_str(), task.total_steps));
        let ended = prepared.ended.values();
        let ended = ended.map(|report| (report.name.as_str(), report.total_steps));
        let of_sweeps = sweep_warnings(config, &begun.chain(ended).collect());
        let of_sweeps = of_sweeps.iter().map(ToString::to_string);
        prepared.warnings.extend(of_sweeps);
        Ok(prepared)
    }

    /// Adds a task with its rows, at its beginning or as it was saved.
    pub(crate) fn add(
        &self,
        prepared: &mut Prepared,
        id: TaskId,
        adapter: &AdapterConfig,
        rows: Arc<TaskData>,
        saved: Option<(&SavedRun, SavedTask)>,
    ) -> Result<()> {
        if let Some((_, task)) = &saved {
            prepared.trials.insert(id, task.record.trial.clone());
        }
        prepared.describe(self, adapter, &rows);
        let begun = saved
            .as_ref()
            .filter(|(_, task)| task.record.standing == RecordState::Begun);
        let mut reference = None;
        if let Some((run, task)) = begun {
            reference = self.reference(adapter)?;
            if let Some(outcome) = changed(&task.record, adapter, &rows.digest, reference.as_ref())
            {
                let report = run.ended_as(&task.record, outcome);
                prepared.ended.insert(id, report);
                prepared.held.insert(id);
                return Ok(());
            }
        }
        let mut task = Task::new(id, adapter.clone(), rows)?;
        if let Some((_, saved)) = &saved {
            task.waited = saved.record.waited;
        }
        match saved.map(|(_, saved)| saved) {
            Some(saved) if saved.record.standing == RecordState::Begun => {
                task.restore(&saved.record);
                task.initial = saved.initial;
                task.shape = saved.shape;
                task.state = saved.adapter.map_or(State::Waiting, State::Parked);
                (task.reference, task.reference_digest) = reference.unzip();
            }
            _ => prepared.warnings.extend(self.begin(&mut task)?),
        }
        if task.reference.is_some() {
            task.references = Arc::default();
        }
        prepared.tasks.push(task);
        Ok(())
    }

    /// Reads a task's `init_from` adapter, if it has one. Returns warnings.
    fn begin(&self, task: &mut Task) -> Result<Vec<String>> {
        let adapter = &task.config;
        let Some((peft, state, warnings)) = self.beginning(adapter)? else {
            check_targets(adapter, self.model)?;
            check_start(adapter, self.model)?;
            check_attention(adapter, self.model, task.train_rows())?;
            let of_rank = rank_warning(adapter, self.model).into_iter();
            return Ok(of_rank.chain(start_warning(adapter, self.model)).collect());
        };
        let reference = refers_to_init(adapter).then(|| (state.clone(), peft.digest()));
        (task.reference, task.reference_digest) = reference.unzip();
        task.shape = Some(peft.config);
        task.initial = Some(state);
        Ok(warnings)
    }

    /// The adapter that a preference compares with and its digest, unless that is the base model.
    fn reference(&self, adapter: &AdapterConfig) -> Result<Option<(ModelAdapter, String)>> {
        if !refers_to_init(adapter) {
            return Ok(None);
        }
        let beginning = self.beginning(adapter)?;
        Ok(beginning.map(|(peft, state, _)| (state, peft.digest())))
    }

    /// An adapter's `init_from`, as it was read and for the model, and warnings; `None` if it has none.
    fn beginning(
        &self,
        adapter: &AdapterConfig,
    ) -> Result<Option<(PeftAdapter, ModelAdapter, Vec<String>)>> {
        let Some(directory) = &adapter.init_from else {
            return Ok(None);
        };
        let failed = |error| TrainerError::InitFrom {
            adapter: adapter.name.clone(),
            directory: directory.clone(),
            source: Box::new(error),
        };
        let peft = load_beginning(directory, None).map_err(failed)?;
        let copies = PeftAdapter::check_copies(directory, self.directory);
        copies.map_err(|error| failed(error.into()))?;
        let warnings = init_from_warnings(adapter, &peft.config, self.directory);
        let state = from_peft(&peft, Some(adapter), self.model, self.device).map_err(failed)?;
        Ok(Some((peft, state, warnings)))
    }
}

fn refers_to_init(adapter: &AdapterConfig) -> bool {
    let objective = &adapter.objective;
    objective.has_reference() && objective.reference != Some(Reference::Base)
}

impl Prepared {
    /// The typical micro-batch of one group's tasks.
    pub(crate) fn typical_microbatch(&self, config: &RunConfig) -> TypicalMicrobatch {
        let of_tasks = |count: fn(&EncodeReport) -> usize| -> usize {
            let reports = self.tasks.iter().map(Task::train_report);
            reports.map(count).sum()
        };
        let samples = of_tasks(|report| report.kept).max(1);
        let tokens = of_tasks(|report| report.tokens);
        let length = (tokens / samples).max(1);
        let tasks = self.tasks.iter();
        let batches: usize = tasks.map(Task::batch_rows).sum();
        let groups = config.pipeline.groups().min(self.tasks.len()).max(1);
        let sequences = (batches / groups / config.pipeline.microbatches).max(1);
        let rows = (sequences * length).min(MOST_ROWS.max(length));
        TypicalMicrobatch {
            sizes: [rows, length],
            predicting: of_tasks(|report| report.target_tokens) as f64 / tokens.max(1) as f64,
        }
    }

    /// Bytes of host memory that adapters take until their tasks begin.
    pub(crate) fn waiting_bytes(&self) -> u64 {
        self.tasks.iter().map(Task::waiting_bytes).sum()
    }

    /// A task as a trial of a sweep.
    pub(crate) fn trial(&self, id: TaskId) -> Option<Trial> {
        let task = self.tasks.iter().find(|task| task.id == id);
        let ended = || self.ended.get(&id);
        let (total_steps, first_loss) = match task {
            Some(task) => (task.total_steps, task.first_loss),
            None => ended().map(|report| (report.total_steps, report.first_loss))?,
        };
        Some(Trial {
            id,
            total_steps,
            first_loss,
            results: self.trials.get(&id).cloned().unwrap_or_default(),
        })
    }

    /// Adds the summary of an adapter's rows.
    fn describe(&mut self, factory: &TaskFactory<'_>, adapter: &AdapterConfig, data: &TaskData) {
        let rows = &data.rows;
        let of_settings = setting_warnings(adapter, factory.model, rows);
        let of_model = model_warnings(factory.model);
        for warning in data.warnings.iter().chain(&of_settings).chain(&of_model) {
            let warning = warning.to_string();
            // Adapters share datasets.
            if !self.warnings.contains(&warning) {
                self.warnings.push(warning);
            }
        }
        self.datasets.push(DatasetSummary {
            adapter: adapter.name.clone(),
            dataset: adapter.dataset.clone(),
            train: rows.train.report.clone(),
            validation: rows.validation.as_ref().map(|rows| rows.report.clone()),
        });
    }
}

/// A prefix of a digest that tells two apart.
pub(crate) fn short(digest: &str) -> String {
    digest.chars().take(16).collect()
}

/// The failure of a task whose rows or reference are not those that it began with.
fn changed(
    record: &TaskRecord,
    adapter: &AdapterConfig,
    data: &str,
    reference: Option<&(ModelAdapter, String)>,
) -> Option<Outcome> {
    if record.data != data {
        return Some(with_other_data(record, &adapter.dataset, data));
    }
    let [before, now] = [
        record.reference.as_deref(),
        reference.map(|(_, digest)| digest.as_str()),
    ];
    let named = |digest: Option<&str>| match digest {
        Some(digest) => format!("the adapter of `init_from` with BLAKE3 {}", short(digest)),
        None => "the base model".to_owned(),
    };
    (before != now).then(|| {
        Outcome::failed(format!(
            "its reference was {} at its first {} steps and now is {}; restore it, then resume it",
            named(before),
            record.step,
            named(now)
        ))
    })
}

fn with_other_data(record: &TaskRecord, dataset: &str, digest: &str) -> Outcome {
    let reason = format!(
        "the rows of dataset `{dataset}` had BLAKE3 {} at its first {} steps and now have {}; restore \
         them, then resume it",
        short(&record.data),
        record.step,
        short(digest)
    );
    Outcome::failed(reason)
}

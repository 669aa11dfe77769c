//! What is read of the adapters before anything is trained.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::Path,
    sync::Arc,
};

use burn::tensor::Device;
use loraloom_config::{AdapterConfig, RunConfig};
use loraloom_data::{Encoded, Sample, Tokenizer, Warning};
use loraloom_model::{LlamaConfig, PeftAdapter, PeftLoraConfig};
use loraloom_scheduler::TaskId;

use crate::{
    AdapterReport, DatasetSummary, Outcome, TrainerError,
    adapter::{ModelAdapter, from_peft},
    beginning::{odd_beginning, odd_rank},
    checkpoint::{SavedRun, SavedTask, Standing, TaskRecord, TrialResult},
    rows::RowCache,
    scheduling::{adapter_bytes, fresh_bytes},
    task::{TaskData, TrainingTask},
    waiting::WaitingTask,
};

/// The tasks of a run.
#[derive(Debug, Default)]
pub(crate) struct Tasks {
    /// Those to be trained.
    pub(crate) waiting: Vec<WaitingTask>,
    /// Those that have ended before.
    pub(crate) ended: BTreeMap<TaskId, AdapterReport>,
    /// Those that have ended, and of which checkpoints keep what the last one had: once what is in
    /// the way is gone, they can go on.
    pub(crate) held: BTreeSet<TaskId>,
    /// Adapters before their first step, where it is still to be seen that training reaches them.
    /// Those that begin with nothing are made when they get a place: thousands may wait.
    pub(crate) initial: HashMap<TaskId, ModelAdapter>,
    /// Shapes of adapters that began from a PEFT directory.
    pub(crate) shapes: HashMap<TaskId, PeftLoraConfig>,
    pub(crate) datasets: Vec<DatasetSummary>,
    pub(crate) warnings: Vec<String>,
    /// What trials of sweeps were compared by before.
    pub(crate) trials: BTreeMap<TaskId, Vec<TrialResult>>,
    /// Seconds that tasks waited for a place before.
    pub(crate) waited: BTreeMap<TaskId, f64>,
}

/// Reads the data of tasks and makes their adapters.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TaskFactory<'a> {
    pub(crate) model: &'a LlamaConfig,
    /// The model's directory.
    pub(crate) directory: &'a Path,
    pub(crate) tokenizer: &'a Tokenizer,
    /// Where adapters begin: a stage takes its part from there.
    pub(crate) device: &'a Device,
}

impl TaskFactory<'_> {
    /// Reads the data of all adapters of a configuration that are not at their end, and makes the
    /// adapters or takes them from where they were saved.
    pub(crate) fn tasks(
        &self,
        config: &RunConfig,
        saved: Option<&SavedRun>,
    ) -> Result<Tasks, TrainerError> {
        let mut tasks = Tasks::default();
        let mut cache = RowCache::new(self.tokenizer, self.model.vocab_size);
        for (index, adapter) in config.adapters.iter().enumerate() {
            let id = TaskId(index as u64);
            let saved = match saved {
                Some(saved) => saved.task(&adapter.name)?.map(|task| (saved, task)),
                None => None,
            };
            if let Some((run, task)) = &saved
                && let Some(report) = run.report_of(&task.record)
            {
                tasks.trials.insert(id, task.record.trial.clone());
                tasks.ended.insert(id, report);
                continue;
            }
            let dataset = &config.datasets[&adapter.dataset];
            let rows = cache.read(adapter, dataset, config.seed)?;
            self.add(&mut tasks, id, adapter, rows, saved)?;
        }
        Ok(tasks)
    }

    /// Takes a task up with its rows, at its beginning or where it was saved.
    pub(crate) fn add(
        &self,
        tasks: &mut Tasks,
        id: TaskId,
        adapter: &AdapterConfig,
        rows: Arc<TaskData>,
        saved: Option<(&SavedRun, SavedTask)>,
    ) -> Result<(), TrainerError> {
        if let Some((_, task)) = &saved {
            tasks.trials.insert(id, task.record.trial.clone());
            tasks.waited.insert(id, task.record.waited);
        }
        tasks.describe(self, adapter, &rows);
        let changed = |task: &SavedTask| {
            task.record.standing == Standing::Begun && task.record.data != rows.digest
        };
        if let Some((run, task)) = saved.as_ref().filter(|(_, task)| changed(task)) {
            let outcome = with_other_data(&task.record, &adapter.dataset, &rows.digest);
            let report = run.ended_as(&task.record, outcome);
            tasks.ended.insert(id, report);
            tasks.held.insert(id);
            return Ok(());
        }
        let waiting = TrainingTask::new(id, adapter.clone(), rows)?;
        let waiting = self.begin(tasks, waiting, saved.map(|(_, task)| task))?;
        tasks.waiting.push(waiting);
        Ok(())
    }

    /// A task at its beginning, or where it was saved.
    fn begin(
        &self,
        tasks: &mut Tasks,
        mut task: TrainingTask,
        saved: Option<SavedTask>,
    ) -> Result<WaitingTask, TrainerError> {
        let id = task.id;
        if let Some(saved) = saved
            && saved.record.standing == Standing::Begun
        {
            task.restore(&saved.record);
            tasks
                .initial
                .extend(saved.initial.map(|initial| (id, initial)));
            tasks.shapes.extend(saved.shape.map(|shape| (id, shape)));
            let adapter = saved.adapter;
            return Ok(WaitingTask { task, adapter });
        }
        let adapter = &task.config;
        if let Some(directory) = &adapter.init_from {
            let begun = |error| TrainerError::InitFrom {
                adapter: adapter.name.clone(),
                directory: directory.clone(),
                source: Box::new(error),
            };
            let peft = PeftAdapter::load(directory).map_err(|error| begun(error.into()))?;
            let odd = odd_beginning(adapter, &peft.config, self.directory);
            tasks.warnings.extend(odd);
            let dropout = adapter.lora.lora_dropout;
            let state = from_peft(&peft, dropout, self.model, self.device).map_err(begun)?;
            tasks.shapes.insert(id, peft.config);
            tasks.initial.insert(id, state);
        } else {
            tasks.warnings.extend(odd_rank(adapter, self.model));
        }
        Ok(WaitingTask::new(task))
    }
}

impl Tasks {
    /// Seconds that a task has waited for a place.
    pub(crate) fn waited(&self, id: TaskId) -> f64 {
        self.waited.get(&id).copied().unwrap_or(0.0)
    }

    /// Bytes that a task's adapter takes while it trains.
    pub(crate) fn adapter_bytes(&self, waiting: &WaitingTask, model: &LlamaConfig) -> u64 {
        let adapter = waiting.adapter.as_ref();
        match adapter.or_else(|| self.initial.get(&waiting.task.id)) {
            Some(adapter) => adapter_bytes(adapter),
            None => fresh_bytes(&waiting.task.config.lora, model),
        }
    }

    /// Keeps what was read for an adapter.
    fn describe(&mut self, factory: &TaskFactory<'_>, adapter: &AdapterConfig, data: &TaskData) {
        let rows = &data.rows;
        let odd = odd_settings(adapter, factory.model, rows);
        for warning in data.warnings.iter().chain(&odd) {
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

/// As much of a digest as tells two apart.
pub(crate) fn short(digest: &str) -> String {
    digest.chars().take(16).collect()
}

/// What is odd about an adapter's settings beside its rows and the model.
pub fn odd_settings(adapter: &AdapterConfig, model: &LlamaConfig, rows: &Encoded) -> Vec<Warning> {
    let train = &adapter.train;
    let warning = |message, hint| Warning {
        about: format!("adapter {}", adapter.name),
        message,
        hint: Some(hint),
    };
    let mut odd = Vec::new();
    let validation = rows.validation.as_ref();
    let samples = validation.map_or(&[][..], |rows| &rows.samples);
    let samples = rows.train.samples.iter().chain(samples);
    let longest = samples.map(Sample::len).max().unwrap_or(0);
    let most = model.max_position_embeddings;
    if longest > most {
        odd.push(warning(
            format!("its rows have up to {longest} tokens, but the model was made for {most}"),
            "lower train.max_seq_len",
        ));
    }
    let (batch, times) = (train.batch_size, train.gradient_accumulation_steps);
    let (asked, there) = (batch.saturating_mul(times), rows.train.samples.len());
    if asked > there {
        odd.push(warning(
            format!(
                "a step of {batch} × {times} rows is more than the {there} that there are: each step is \
                 an epoch"
            ),
            "lower train.batch_size or train.gradient_accumulation_steps",
        ));
    }
    odd
}

/// The end of a task whose rows are no longer those that it began with.
fn with_other_data(record: &TaskRecord, dataset: &str, digest: &str) -> Outcome {
    let reason = format!(
        "the rows of dataset `{dataset}` were BLAKE3 {} when its first {} steps were taken and are {}; \
         restore them, then resume it",
        short(&record.data),
        record.step,
        short(digest)
    );
    Outcome::Failed { reason }
}

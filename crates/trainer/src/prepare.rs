//! What is read of the adapters before anything is trained.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, hash_map::Entry},
    rc::Rc,
};

use burn::tensor::Device;
use loraloom_config::{AdapterConfig, DatasetConfig, RunConfig};
use loraloom_data::{Dataset, Encoded, Tokenizer};
use loraloom_model::{LlamaConfig, PeftAdapter, PeftLoraConfig};
use loraloom_scheduler::TaskId;

use crate::{
    AdapterReport, DatasetSummary, Outcome, TrainerError,
    adapter::{ModelAdapter, from_peft, shape_warning},
    checkpoint::{SavedRun, SavedTask, Standing, TaskRecord, TrialResult, data_digest},
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
}

/// What adapters are made of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Materials<'a> {
    pub(crate) model: &'a LlamaConfig,
    pub(crate) tokenizer: &'a Tokenizer,
    /// Where adapters begin: a stage takes its part from there.
    pub(crate) device: &'a Device,
}

/// A task that somebody wants to be trained.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub(crate) id: TaskId,
    pub(crate) adapter: &'a AdapterConfig,
    pub(crate) dataset: &'a DatasetConfig,
    /// Chooses the validation rows.
    pub(crate) seed: u64,
}

impl Materials<'_> {
    /// Reads the data of all adapters of a configuration that are not at their end, and makes the
    /// adapters or takes them from where they were saved.
    pub(crate) fn tasks(
        &self,
        config: &RunConfig,
        saved: Option<&SavedRun>,
    ) -> Result<Tasks, TrainerError> {
        let mut tasks = Tasks::default();
        let mut data = DataCache::default();
        for (index, adapter) in config.adapters.iter().enumerate() {
            let wanted = Wanted {
                id: TaskId(index as u64),
                adapter,
                dataset: &config.datasets[&adapter.dataset],
                seed: config.seed,
            };
            let task = match saved {
                Some(saved) => saved.task(&adapter.name)?.map(|task| (saved, task)),
                None => None,
            };
            self.add(&mut tasks, &mut data, wanted, task)?;
        }
        Ok(tasks)
    }

    /// Reads what a task needs, and takes it up at its beginning or where it was saved.
    pub(crate) fn add(
        &self,
        tasks: &mut Tasks,
        data: &mut DataCache,
        wanted: Wanted<'_>,
        saved: Option<(&SavedRun, SavedTask)>,
    ) -> Result<(), TrainerError> {
        let Wanted { id, adapter, .. } = wanted;
        if let Some((run, task)) = &saved {
            tasks.trials.insert(id, task.record.trial.clone());
            if let Some(report) = run.report_of(&task.record) {
                tasks.ended.insert(id, report);
                return Ok(());
            }
        }
        let rows = data.rows(self, wanted)?;
        tasks.describe(self, adapter, &rows.rows);
        let changed = |task: &SavedTask| {
            task.record.standing == Standing::Begun && task.record.data != rows.digest
        };
        if let Some((run, task)) = saved.as_ref().filter(|(_, task)| changed(task)) {
            let outcome = with_other_data(&task.record, &adapter.dataset);
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
            let peft = PeftAdapter::load(directory)?;
            tasks.warnings.extend(shape_warning(adapter, &peft.config));
            let dropout = adapter.lora.lora_dropout;
            let state = from_peft(&peft, dropout, self.model, self.device)?;
            tasks.shapes.insert(id, peft.config);
            tasks.initial.insert(id, state);
        }
        Ok(WaitingTask::new(task))
    }
}

impl Tasks {
    /// Bytes that a task's adapter takes while it trains.
    pub(crate) fn adapter_bytes(&self, waiting: &WaitingTask, model: &LlamaConfig) -> u64 {
        let adapter = waiting.adapter.as_ref();
        match adapter.or_else(|| self.initial.get(&waiting.task.id)) {
            Some(adapter) => adapter_bytes(adapter),
            None => fresh_bytes(&waiting.task.config.lora, model),
        }
    }

    /// Keeps what was read for an adapter.
    fn describe(&mut self, materials: &Materials<'_>, adapter: &AdapterConfig, rows: &Encoded) {
        let (longest, most) = (
            rows.train.report.longest,
            materials.model.max_position_embeddings,
        );
        if longest > most {
            self.warnings.push(format!(
                "adapter `{}` has rows of {longest} tokens, but the model was made for {most}",
                adapter.name
            ));
        }
        self.datasets.push(DatasetSummary {
            adapter: adapter.name.clone(),
            dataset: adapter.dataset.clone(),
            train: rows.train.report.clone(),
            validation: rows.validation.as_ref().map(|rows| rows.report.clone()),
        });
    }
}

/// The end of a task whose rows are no longer those that it began with.
fn with_other_data(record: &TaskRecord, dataset: &str) -> Outcome {
    let reason = format!(
        "the rows of dataset `{dataset}` are no longer those that its first {} steps were taken with",
        record.step
    );
    Outcome::Failed { reason }
}

/// Datasets that were read, each once, and their rows, once for each way to encode them.
#[derive(Debug, Default)]
pub(crate) struct DataCache {
    raw: HashMap<String, Dataset>,
    encoded: HashMap<(String, usize, bool), Rc<TaskData>>,
}

impl DataCache {
    fn rows(
        &mut self,
        materials: &Materials<'_>,
        wanted: Wanted<'_>,
    ) -> Result<Rc<TaskData>, TrainerError> {
        let Wanted { adapter, seed, .. } = wanted;
        let name = adapter.dataset.as_str();
        let train = &adapter.train;
        // Tasks of different origin may mean different rows by one name.
        let identity = format!("{name} {seed} {:?}", wanted.dataset);
        let key = (identity.clone(), train.max_seq_len, train.train_on_prompt);
        if let Some(data) = self.encoded.get(&key) {
            return Ok(data.clone());
        }
        let raw = match self.raw.entry(identity) {
            Entry::Occupied(raw) => raw.into_mut(),
            Entry::Vacant(place) => place.insert(Dataset::load(name, wanted.dataset, seed)?),
        };
        let rows = raw.encode(materials.tokenizer, key.1, key.2)?;
        check_vocabulary(name, &rows, materials.model.vocab_size)?;
        let digest = data_digest(&rows);
        let data = Rc::new(TaskData { rows, digest });
        self.encoded.insert(key, data.clone());
        Ok(data)
    }
}

fn check_vocabulary(dataset: &str, data: &Encoded, vocabulary: usize) -> Result<(), TrainerError> {
    let parts = [Some(&data.train), data.validation.as_ref()];
    let samples = parts.into_iter().flatten().flat_map(|part| &part.samples);
    match samples
        .flat_map(|sample| &sample.ids)
        .find(|&&id| id as usize >= vocabulary)
    {
        Some(&token) => Err(TrainerError::TokenBeyondVocabulary {
            dataset: dataset.into(),
            token,
            vocabulary,
        }),
        None => Ok(()),
    }
}

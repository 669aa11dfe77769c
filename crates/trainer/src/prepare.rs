//! What is read of the adapters before anything is trained.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    rc::Rc,
};

use burn::tensor::Device;
use loraloom_config::{AdapterConfig, RunConfig};
use loraloom_data::{Dataset, Encoded, Tokenizer};
use loraloom_model::{LlamaConfig, PeftAdapter, PeftLoraConfig};
use loraloom_scheduler::TaskId;

use crate::{
    AdapterReport, DatasetSummary, Outcome, TrainerError,
    adapter::{ModelAdapter, fresh, from_peft, shape_warning},
    checkpoint::{SavedRun, SavedTask, Standing, TaskRecord, data_digest},
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
    pub(crate) initial: HashMap<TaskId, ModelAdapter>,
    /// Shapes of adapters that began from a PEFT directory.
    pub(crate) shapes: HashMap<TaskId, PeftLoraConfig>,
    pub(crate) datasets: Vec<DatasetSummary>,
    pub(crate) warnings: Vec<String>,
}

/// What adapters are made of.
pub(crate) struct Materials<'a> {
    pub(crate) config: &'a RunConfig,
    pub(crate) model: &'a LlamaConfig,
    pub(crate) tokenizer: &'a Tokenizer,
    /// Where fresh adapters begin: a stage takes its part from there.
    pub(crate) device: &'a Device,
}

impl Materials<'_> {
    /// Reads the data of all adapters that are not at their end, and makes the adapters or takes them
    /// from where they were saved.
    pub(crate) fn tasks(&self, saved: Option<&SavedRun>) -> Result<Tasks, TrainerError> {
        let mut tasks = Tasks::default();
        let mut data = DataCache::default();
        for (index, adapter) in self.config.adapters.iter().enumerate() {
            let id = TaskId(index as u64);
            let saved = saved.map(|saved| (saved, saved.task(&adapter.name)));
            let (saved, task) = match saved {
                Some((saved, task)) => (Some(saved), task?),
                None => (None, None),
            };
            let ended = saved.zip(task.as_ref());
            if let Some(report) = ended.and_then(|(saved, task)| saved.report_of(&task.record)) {
                tasks.ended.insert(id, report);
                continue;
            }
            let rows = data.rows(self, adapter)?;
            tasks.describe(self, adapter, &rows.rows);
            let changed = |task: &SavedTask| {
                task.record.standing == Standing::Begun && task.record.data != rows.digest
            };
            if let Some((saved, task)) = saved.zip(task.as_ref().filter(|task| changed(task))) {
                let outcome = with_other_data(&task.record, &adapter.dataset);
                let report = saved.ended_as(&task.record, outcome);
                tasks.ended.insert(id, report);
                tasks.held.insert(id);
                continue;
            }
            let waiting = TrainingTask::new(id, adapter.clone(), rows)?;
            let waiting = self.begin(&mut tasks, waiting, task)?;
            tasks.waiting.push(waiting);
        }
        Ok(tasks)
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
        let state = match &adapter.init_from {
            Some(directory) => {
                let peft = PeftAdapter::load(directory)?;
                tasks.warnings.extend(shape_warning(adapter, &peft.config));
                let dropout = adapter.lora.lora_dropout;
                let state = from_peft(&peft, dropout, self.model, self.device)?;
                tasks.shapes.insert(id, peft.config);
                state
            }
            None => fresh(adapter, self.model, self.device)?,
        };
        tasks.initial.insert(id, state);
        Ok(WaitingTask::new(task))
    }
}

impl Tasks {
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
#[derive(Default)]
struct DataCache<'a> {
    raw: BTreeMap<&'a str, Dataset>,
    encoded: HashMap<(&'a str, usize, bool), Rc<TaskData>>,
}

impl<'a> DataCache<'a> {
    fn rows(
        &mut self,
        materials: &Materials<'a>,
        adapter: &'a AdapterConfig,
    ) -> Result<Rc<TaskData>, TrainerError> {
        let name = adapter.dataset.as_str();
        let train = &adapter.train;
        let key = (name, train.max_seq_len, train.train_on_prompt);
        if let Some(data) = self.encoded.get(&key) {
            return Ok(data.clone());
        }
        if !self.raw.contains_key(name) {
            let config = materials.config;
            let dataset = Dataset::load(name, &config.datasets[name], config.seed)?;
            self.raw.insert(name, dataset);
        }
        let rows = self.raw[name].encode(materials.tokenizer, key.1, key.2)?;
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

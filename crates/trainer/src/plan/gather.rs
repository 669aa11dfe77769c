//! What a plan is made of, from the run's files: configuration and headers of the model, and data.

use std::collections::{HashMap, hash_map::Entry};

use loraloom_config::{AdapterConfig, RunConfig};
use loraloom_data::{Dataset, RowOrder, Sample, Tokenizer};
use loraloom_model::{
    Checkpoint, LlamaConfig, PeftAdapter, TensorDtype,
    cost::{AdapterRanks, TRAINED_BYTES},
};
use loraloom_scheduler::{Load, Task, TaskId};

use super::{Plan, PlanError, Speeds, compose::compose, workload::Workload};
use crate::adapter::targets;

/// What is known of one adapter's training.
#[derive(Debug, Clone)]
pub(super) struct TaskPlan {
    pub(super) name: String,
    pub(super) load: Workload,
    pub(super) ranks: AdapterRanks,
    /// What the scheduler is told.
    pub(super) described: Task,
}

/// What is known of the model and of the tasks.
#[derive(Debug, Clone)]
pub(super) struct Gathered {
    pub(super) model: LlamaConfig,
    /// Type that the weights are stored in, if they agree.
    pub(super) stored: Option<TensorDtype>,
    /// In the order of the configuration.
    pub(super) tasks: Vec<TaskPlan>,
}

impl Plan {
    /// Plans a run, from its data and the headers of its weights. `speeds` turn operations and bytes
    /// into time.
    ///
    /// # Errors
    /// If files are missing, damaged or do not fit each other, or the layers cannot be spread over
    /// the stages.
    pub fn prepare(config: &RunConfig, speeds: Speeds) -> Result<Self, PlanError> {
        compose(config, &gather(config)?, speeds)
    }
}

fn gather(config: &RunConfig) -> Result<Gathered, PlanError> {
    let model = LlamaConfig::from_directory(&config.model)?;
    let checkpoint = Checkpoint::open(&config.model)?;
    checkpoint.verify(&model)?;
    let tokenizer = Tokenizer::load(&config.model)?;
    let mut raw: HashMap<&str, Dataset> = HashMap::new();
    let mut encoded = HashMap::new();
    let mut tasks = Vec::new();
    for (index, adapter) in config.adapters.iter().enumerate() {
        let name = adapter.dataset.as_str();
        let train = &adapter.train;
        let key = (name, train.max_seq_len, train.train_on_prompt);
        if !raw.contains_key(name) {
            raw.insert(
                name,
                Dataset::load(name, &config.datasets[name], config.seed)?,
            );
        }
        let samples = match encoded.entry(key) {
            Entry::Occupied(found) => found.into_mut(),
            Entry::Vacant(place) => {
                place.insert(raw[name].encode(&tokenizer, key.1, key.2)?.train.samples)
            }
        };
        let load = Workload::of(train.batch_size, train.gradient_accumulation_steps, samples);
        let ranks = match &adapter.init_from {
            Some(directory) => {
                let peft = PeftAdapter::load(directory)?;
                peft.verify(&model)?;
                AdapterRanks::of_peft(&peft, &model)
            }
            None => AdapterRanks::uniform(adapter.lora.r, &targets(&adapter.lora), &model),
        };
        let parameters = ranks.parameters(&model, 0..model.num_hidden_layers);
        let described = Task {
            id: TaskId(index as u64),
            arrival: index as u64,
            max_parts: load.microbatches(config.pipeline.microbatches).max(1),
            load: Load {
                adapter_bytes: (parameters * TRAINED_BYTES) as u64,
                ..largest(adapter, samples, config.pipeline.microbatches)
            },
            ..described(adapter, samples)?
        };
        tasks.push(TaskPlan {
            name: adapter.name.clone(),
            load,
            ranks,
            described,
        });
    }
    Ok(Gathered {
        model,
        stored: checkpoint.dtype(),
        tasks,
    })
}

/// What the largest micro-batch asks of memory, as a run tells its scheduler: the longest row in all
/// of its places.
fn largest(adapter: &AdapterConfig, samples: &[Sample], split: usize) -> Load {
    let rows = adapter.train.batch_size.div_ceil(split) as u64;
    let longest = samples.iter().map(Sample::len).max().unwrap_or(0) as u64;
    Load {
        tokens: rows * longest,
        squared_tokens: rows * longest * longest,
        adapter_bytes: 0,
    }
}

/// The rest of what a run tells its scheduler.
fn described(adapter: &AdapterConfig, samples: &[Sample]) -> Result<Task, PlanError> {
    let train = &adapter.train;
    let rows_per_step = train.batch_size * train.gradient_accumulation_steps;
    let order = RowOrder::new(samples.len(), rows_per_step, train.shuffle, adapter.seed)?;
    let epochs = || order.steps_for_epochs(train.num_epochs);
    Ok(Task {
        id: TaskId(0),
        name: adapter.name.clone(),
        tenant: adapter.tenant.clone(),
        priority: adapter.priority,
        arrival: 0,
        rank: adapter.lora.r,
        rows_per_step,
        tokens_per_step: rows_per_step * train.max_seq_len,
        total_steps: train.max_steps.unwrap_or_else(epochs),
        max_parts: 1,
        load: Load::default(),
    })
}

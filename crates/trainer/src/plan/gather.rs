//! What a plan is made of, from the run's files: configuration and headers of the model, and data.

use std::collections::{HashMap, hash_map::Entry};

use loraloom_config::RunConfig;
use loraloom_data::{Dataset, Tokenizer};
use loraloom_model::{Checkpoint, LlamaConfig, PeftAdapter, TensorDtype};
use loraloom_scheduler::{FirstComeFirstServed, Load, Scheduler, Task, TaskId};

use super::{Plan, PlanError, Speeds, compose::compose, parameters::Ranks, workload::Workload};

/// What is known of one adapter's training.
#[derive(Debug, Clone)]
pub(super) struct TaskPlan {
    pub(super) name: String,
    pub(super) load: Workload,
    pub(super) ranks: Ranks,
}

/// What is known of the model and of the tasks that train at first.
#[derive(Debug, Clone)]
pub(super) struct Gathered {
    pub(super) model: LlamaConfig,
    /// Type that the weights are stored in, if they agree.
    pub(super) stored: Option<TensorDtype>,
    /// In the order of their admission.
    pub(super) tasks: Vec<TaskPlan>,
    /// Adapters that have no place yet.
    pub(super) waiting: Vec<String>,
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
    for adapter in &config.adapters {
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
        let load = Workload::new(adapter, samples);
        let ranks = match &adapter.init_from {
            Some(directory) => {
                let peft = PeftAdapter::load(directory)?;
                peft.verify(&model)?;
                Ranks::of_peft(&peft, &model)
            }
            None => Ranks::fresh(&adapter.lora, &model),
        };
        tasks.push(TaskPlan {
            name: adapter.name.clone(),
            load,
            ranks,
        });
    }
    let (tasks, waiting) = admitted(config, tasks)?;
    Ok(Gathered {
        model,
        stored: checkpoint.dtype(),
        tasks,
        waiting,
    })
}

/// The tasks that the scheduler admits first, and the names of the others.
fn admitted(
    config: &RunConfig,
    tasks: Vec<TaskPlan>,
) -> Result<(Vec<TaskPlan>, Vec<String>), PlanError> {
    let mut scheduler =
        FirstComeFirstServed::new(config.scheduler.max_adapters, config.pipeline.groups())?;
    for (index, adapter) in config.adapters.iter().enumerate() {
        let rows_per_step = adapter.train.batch_size * adapter.train.gradient_accumulation_steps;
        scheduler.submit(Task {
            id: TaskId(index as u64),
            name: adapter.name.clone(),
            tenant: adapter.tenant.clone(),
            priority: adapter.priority,
            arrival: index as u64,
            rank: adapter.lora.r,
            rows_per_step,
            tokens_per_step: rows_per_step * adapter.train.max_seq_len,
            total_steps: 1,
            max_parts: 1,
            load: Load::default(),
        })?;
    }
    let running = scheduler.decide().admitted;
    let mut tasks: Vec<Option<TaskPlan>> = tasks.into_iter().map(Some).collect();
    let running = running
        .into_iter()
        .filter_map(|admission| tasks.get_mut(admission.task.0 as usize)?.take())
        .collect();
    let waiting = tasks.into_iter().flatten().map(|task| task.name).collect();
    Ok((running, waiting))
}

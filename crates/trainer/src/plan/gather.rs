//! Reads the input of a plan from the run's files: configuration and headers of the model, and data.

use burn::tensor::Device;
use loraloom_config::RunConfig;
use loraloom_data::Tokenizer;
use loraloom_model::{Checkpoint, LlamaConfig, TensorDtype, cost::AdapterRanks};
use loraloom_pipeline::HostMemory;
use loraloom_scheduler::Task;

use super::{Plan, Speeds, compose::compose, workload::Workload};
use crate::{
    adapter::ranks,
    error::Result,
    stages::{model_config, planned_dtype},
    tasks::{EncodedRows, RunShape, TaskFactory},
};

/// One adapter's training, as far as it is known before the run.
#[derive(Debug, Clone)]
pub(super) struct TaskPlan {
    pub(super) name: String,
    pub(super) load: Workload,
    pub(super) ranks: AdapterRanks,
    /// Micro-batches of a step.
    pub(super) microbatches: usize,
    /// The scheduler's view of it.
    pub(super) described: Task,
}

/// The model and the tasks, as far as they are known before the run.
#[derive(Debug, Clone)]
pub(super) struct Gathered {
    pub(super) model: LlamaConfig,
    /// Type of frozen weights and activations, and a note if it is a guess.
    pub(super) dtype: TensorDtype,
    pub(super) dtype_note: Option<String>,
    /// Bytes that this process has allocated for data without adapters, if allocations are counted: a run has them in
    /// memory as well.
    pub(super) read_bytes: u64,
    /// In the order of the configuration.
    pub(super) tasks: Vec<TaskPlan>,
    /// Warnings about model and tasks.
    pub(super) warnings: Vec<String>,
}

impl Plan {
    /// Plans a run from its data and the headers of its weights. `speeds` turn operations and bytes into time.
    ///
    /// # Errors
    /// If files are missing, damaged or inconsistent, or the layers cannot be spread over the stages.
    pub fn prepare(config: &RunConfig, speeds: Speeds) -> Result<Self> {
        Self::of_rows(config, EncodedRows::new(), speeds)
    }

    /// As [`prepare`](Self::prepare), without reading rows that are known.
    ///
    /// # Errors
    /// As [`prepare`](Self::prepare).
    pub fn of_rows(config: &RunConfig, known: EncodedRows, speeds: Speeds) -> Result<Self> {
        compose(config, &gather(config, known)?, speeds)
    }
}

fn gather(config: &RunConfig, known: EncodedRows) -> Result<Gathered> {
    let model = model_config(&config.model, config.quantization.as_ref())?;
    let checkpoint = Checkpoint::open(&config.model)?;
    checkpoint.verify(&model)?;
    let factory = TaskFactory {
        model: &model,
        directory: &config.model,
        tokenizer: &Tokenizer::load(&config.model)?,
        device: &Device::flex(),
    };
    let (dtype, dtype_note) = planned_dtype(config.dtype, &config.pipeline, checkpoint.dtype());
    let run = RunShape::new(&model, config, dtype.size());
    let split = config.pipeline.microbatches;
    let prepared = factory.tasks(config, None, known)?;
    let in_use = HostMemory::counted().map_or(0, |memory| (memory.in_use)());
    let read_bytes = in_use.saturating_sub(prepared.waiting_bytes());
    let tasks = prepared.tasks.into_iter().map(|task| {
        let lora = &task.config.lora;
        TaskPlan {
            load: Workload::of(&task, split),
            ranks: match &task.initial {
                Some(adapter) => AdapterRanks::of(adapter),
                None => ranks(lora, &model),
            },
            microbatches: task.microbatches_per_step(split),
            described: task.described(run),
            name: task.config.name,
        }
    });
    let tasks = tasks.collect();
    Ok(Gathered {
        dtype,
        dtype_note,
        read_bytes,
        tasks,
        model,
        warnings: prepared.warnings,
    })
}

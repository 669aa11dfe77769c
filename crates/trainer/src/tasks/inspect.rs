use burn::tensor::Device;
use loraloom_config::RunConfig;
use loraloom_data::Tokenizer;
use loraloom_model::Checkpoint;
use loraloom_scheduler::Load;

use super::{EncodedRows, RunShape, TaskFactory};
use crate::{
    error::Result,
    stages::{model_config, planned_dtype},
};

/// An adapter's training before its first step.
#[derive(Debug, Clone, PartialEq)]
pub struct Inspected {
    /// Optimizer steps of its whole training.
    pub total_steps: usize,
    /// Digest of its encoded rows.
    pub digest: String,
    /// Its load on a device's memory.
    pub load: Load,
}

/// Reads the rows of a configuration's adapters, and their `init_from` adapters, as [`Run::prepare`] does, without
/// weights and devices. Returns each adapter in order, and warnings. `element_bytes` is the size of an element of the
/// backbone; `None` estimates it.
///
/// # Errors
/// As [`Run::prepare`].
///
/// [`Run::prepare`]: crate::Run::prepare
pub fn inspect(
    config: &RunConfig,
    element_bytes: Option<usize>,
) -> Result<(Vec<Inspected>, Vec<String>)> {
    let model = model_config(&config.model, config.quantization.as_ref())?;
    let factory = TaskFactory {
        model: &model,
        directory: &config.model,
        tokenizer: &Tokenizer::load(&config.model)?,
        device: &Device::flex(),
    };
    let stored = Checkpoint::open(&config.model)?.dtype();
    let (dtype, _) = planned_dtype(config.dtype, &config.pipeline, stored);
    let run = RunShape::new(&model, config, element_bytes.unwrap_or(dtype.size()));
    let prepared = factory.tasks(config, None, EncodedRows::new())?;
    let inspected = prepared.tasks.iter().map(|task| Inspected {
        total_steps: task.total_steps,
        digest: task.data.digest.clone(),
        load: task.described(run).load,
    });
    Ok((inspected.collect(), prepared.warnings))
}

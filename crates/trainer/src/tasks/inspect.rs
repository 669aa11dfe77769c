use burn::tensor::Device;
use loraloom_config::RunConfig;
use loraloom_data::Tokenizer;
use loraloom_model::LlamaConfig;
use loraloom_scheduler::Load;

use super::TaskFactory;
use crate::TrainerError;

/// What is known of an adapter's training before anything is trained.
#[derive(Debug, Clone, PartialEq)]
pub struct Inspected {
    /// Name of the adapter.
    pub name: String,
    /// Optimizer steps it will take.
    pub total_steps: usize,
    /// Digest of its encoded rows.
    pub digest: String,
    /// What it asks of a device's memory.
    pub load: Load,
}

/// Reads what the adapters of a configuration train on, and begin from, as [`Run::prepare`] does, but
/// neither weights nor devices; and what is odd about them.
///
/// # Errors
/// As [`Run::prepare`].
///
/// [`Run::prepare`]: crate::Run::prepare
pub fn inspect(config: &RunConfig) -> Result<(Vec<Inspected>, Vec<String>), TrainerError> {
    let model = LlamaConfig::from_directory(&config.model)?;
    let factory = TaskFactory {
        model: &model,
        directory: &config.model,
        tokenizer: &Tokenizer::load(&config.model)?,
        device: &Device::flex(),
    };
    let prepared = factory.tasks(config, None)?;
    let inspected = prepared.tasks.iter().map(|task| Inspected {
        name: task.config.name.clone(),
        total_steps: task.total_steps,
        digest: task.data_digest().to_owned(),
        load: task.described(&model, config.pipeline.microbatches).load,
    });
    Ok((inspected.collect(), prepared.warnings))
}

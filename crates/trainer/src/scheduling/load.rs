use loraloom_config::LoraSettings;
use loraloom_model::{
    LayerAdapter, LlamaConfig,
    cost::{AdapterRanks, TRAINED_BYTES, adapter_parameters},
};
use loraloom_scheduler::{Load, Task};

use crate::{
    adapter::targets,
    task::{TrainingTask, tokens_per_step},
};

/// Bytes of an adapter while it trains, at all layers.
pub(crate) fn adapter_bytes(adapter: &[LayerAdapter]) -> u64 {
    (adapter_parameters(adapter) * TRAINED_BYTES) as u64
}

/// As [`adapter_bytes`], for an adapter that has yet to be made.
pub(crate) fn fresh_bytes(lora: &LoraSettings, model: &LlamaConfig) -> u64 {
    let ranks = AdapterRanks::uniform(lora.r, &targets(lora), model);
    (ranks.parameters(model, 0..model.num_hidden_layers) * TRAINED_BYTES) as u64
}

/// The scheduler's view of a task whose batches are cut into `split` micro-batches.
pub(crate) fn described(task: &TrainingTask, adapter_bytes: u64, split: usize) -> Task {
    let rows = task.microbatch_rows(split) as u64;
    let longest = task.longest_row() as u64;
    Task {
        id: task.id,
        name: task.config.name.clone(),
        tenant: task.config.tenant.clone(),
        priority: task.config.priority,
        arrival: task.id.0,
        rank: task.config.lora.r,
        rows_per_step: task.rows_per_step(),
        tokens_per_step: tokens_per_step(task),
        total_steps: task.total_steps,
        max_parts: task.microbatches_per_step(split).max(1),
        load: Load {
            tokens: rows * longest,
            squared_tokens: rows * longest * longest,
            adapter_bytes,
        },
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;
    use loraloom_config::{LoadOptions, RunConfig};
    use loraloom_model::LlamaConfig;
    use std::path::Path;

    use super::{adapter_bytes, fresh_bytes};
    use crate::adapter::fresh;

    #[test]
    fn an_adapter_takes_what_was_said_before_it_was_made() {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/tiny-llama");
        let model = LlamaConfig::from_directory(&model).expect("a model");
        let text = "model: m\ndatasets: {d: {path: p}}\nadapters:\n  \
                    - {name: a, lora: {r: 3, target_modules: [k_proj, down_proj]}}\n  \
                    - {name: b, lora: {r: 16, target_modules: all-linear}}\n";
        let loaded = RunConfig::load_yaml(text, Path::new("x.yaml"), &LoadOptions::default());
        for adapter in loaded.expect("a configuration").config.adapters {
            let made = fresh(&adapter, &model, &Device::flex()).expect("an adapter");
            assert_eq!(fresh_bytes(&adapter.lora, &model), adapter_bytes(&made));
            assert!(adapter_bytes(&made) > 0);
        }
    }
}

use loraloom_config::LoraSettings;
use loraloom_model::{LlamaConfig, Projection};
use loraloom_scheduler::{Load, Task};

use crate::{
    adapter::ModelAdapter,
    task::{TrainingTask, tokens_per_step},
};

/// Bytes that a parameter of an adapter takes while it trains: itself, its gradient and two moments,
/// in `float32`.
pub(crate) const BYTES_PER_PARAMETER: usize = 4 * 4;

/// Bytes of an adapter with its gradients and moments, at all layers.
pub(crate) fn adapter_bytes(adapter: &ModelAdapter) -> u64 {
    let parameters = adapter
        .iter()
        .flat_map(|layer| layer.iter().flatten())
        .map(|state| {
            state.weights.a.shape().num_elements() + state.weights.b.shape().num_elements()
        });
    (parameters.sum::<usize>() * BYTES_PER_PARAMETER) as u64
}

/// As [`adapter_bytes`], of an adapter that is yet to be made.
pub(crate) fn fresh_bytes(lora: &LoraSettings, model: &LlamaConfig) -> u64 {
    let linears = model.linears();
    let of = |projection: &Projection| {
        let named = |name: &String| name == projection.name();
        let linear = &linears[*projection as usize];
        let is_adapted = lora.target_modules.iter().any(named);
        usize::from(is_adapted) * lora.r * (linear.d_in + linear.d_out)
    };
    let parameters: usize = Projection::ALL.iter().map(of).sum();
    (model.num_hidden_layers * parameters * BYTES_PER_PARAMETER) as u64
}

/// What the scheduler is told of a task, of which every batch is cut into `split` micro-batches.
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

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

//! Which decoder layers each stage holds, and runs for whom.

use burn::tensor::{Device, FloatDType};
use loraloom_config::{BalanceChoice, RunConfig};
use loraloom_data::EncodeReport;
use loraloom_model::{
    LlamaConfig,
    cost::{
        LayerWork, Operations, attention_pairs, embedding_operations, head_operations,
        layer_operations,
    },
};
use loraloom_pipeline::{
    Balance, PartCosts, PartSeconds, PartitionError, Partitions, PipelineError,
    simulate::PassCosts, stagger,
};

use crate::{TrainerError, waiting::WaitingTask};

/// A measurement takes this many tokens at most.
const MOST_ROWS: usize = 2048;

/// Spreads the layers over `stages`. If that is left to us, by the time that a layer and the head
/// take on `device`, with micro-batches of about the size of the run's; by an estimate of their
/// work where there is no device to measure on, or nothing to choose.
pub(crate) fn spread(
    config: &RunConfig,
    model: &LlamaConfig,
    stages: usize,
    tasks: &[WaitingTask],
    measure_on: Option<(&Device, FloatDType)>,
) -> Result<Partitions, TrainerError> {
    let mut costs = estimated(config, model);
    let layers = model.num_hidden_layers;
    let asked = match config.pipeline.balance {
        BalanceChoice::Auto | BalanceChoice::Staggered => true,
        BalanceChoice::Layers(_) | BalanceChoice::Partitions(_) => false,
    };
    let choice = asked && stages > 1 && stages < layers;
    if choice && let Some((device, dtype)) = measure_on {
        let (sizes, predicting) = typical(config, tasks);
        if let Some(seconds) = PartSeconds::measure(model, dtype, device, sizes, predicting)? {
            costs = PartCosts::measured(layers, seconds);
        }
    }
    Ok(balanced(config, &costs, stages).map_err(PipelineError::from)?)
}

/// Spreads layers of these costs as the configuration wants it.
pub(crate) fn balanced(
    config: &RunConfig,
    costs: &PartCosts,
    stages: usize,
) -> Result<Partitions, PartitionError> {
    let balance = match &config.pipeline.balance {
        BalanceChoice::Staggered => return stagger(costs, stages),
        BalanceChoice::Partitions(counts) => {
            return Partitions::of_counts(counts, stages, costs.layers.len());
        }
        BalanceChoice::Layers(layers) => Balance::Explicit(layers.clone()),
        BalanceChoice::Auto => Balance::Auto,
    };
    Ok(costs.partition(stages, &balance)?.into())
}

/// Operations of one sequence that is as long as any adapter allows, in which every token is a target.
pub(crate) fn estimated(config: &RunConfig, model: &LlamaConfig) -> PartCosts {
    let longest = config
        .adapters
        .iter()
        .map(|adapter| adapter.train.max_seq_len)
        .max()
        .unwrap_or(0);
    let tokens = longest as f64;
    let layer = |layer| {
        let work = LayerWork {
            tokens,
            attention_pairs: attention_pairs(longest, model.sliding_window[layer]) as f64,
            adapter_parameters: 0,
        };
        layer_operations(model, work, config.gradient_checkpointing)
    };
    PartCosts {
        layers: (0..model.num_hidden_layers)
            .map(|index| passes(layer(index)))
            .collect(),
        embedding: passes(embedding_operations(model, tokens)),
        head: passes(head_operations(model, tokens)),
    }
}

fn passes(operations: Operations) -> PassCosts {
    PassCosts {
        forward: operations.forward,
        backward: operations.backward,
        step: 0.0,
    }
}

/// Rows and length of a group's micro-batch, about, and the share of its tokens that predict
/// another.
fn typical(config: &RunConfig, tasks: &[WaitingTask]) -> ([usize; 2], f64) {
    let of_tasks = |count: fn(&EncodeReport) -> usize| -> usize {
        let reports = tasks.iter().map(|waiting| waiting.task.train_report());
        reports.map(count).sum()
    };
    let samples = of_tasks(|report| report.kept).max(1);
    let tokens = of_tasks(|report| report.tokens);
    let length = (tokens / samples).max(1);
    let batches: usize = tasks
        .iter()
        .map(|waiting| waiting.task.config.train.batch_size)
        .sum();
    let groups = config.pipeline.groups().min(tasks.len()).max(1);
    let sequences = (batches / groups / config.pipeline.microbatches).max(1);
    let rows = (sequences * length).min(MOST_ROWS.max(length));
    let predicting = of_tasks(|report| report.target_tokens) as f64 / tokens.max(1) as f64;
    ([rows, length], predicting)
}

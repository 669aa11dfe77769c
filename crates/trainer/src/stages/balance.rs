//! Assigns decoder layers to stages.

use burn::tensor::{Device, FloatDType};
use loraloom_config::{BalanceChoice, RunConfig};
use loraloom_model::{
    LlamaConfig,
    cost::{
        LayerWork, Operations, attention_pairs, embedding_operations, head_operations,
        layer_operations,
    },
};
use loraloom_pipeline::{
    PartCosts, PartitionError, Partitions, PipelineError, simulate::PassCosts, stagger,
};

use crate::error::Result;

/// Size of a typical micro-batch of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TypicalMicrobatch {
    /// Tokens of it, and of a sequence.
    pub(crate) sizes: [usize; 2],
    /// Share of its tokens that predict a target.
    pub(crate) predicting: f64,
}

/// Spreads the layers over `stages`. `auto` and `staggered` measure the time of a layer and of the head on a device
/// with micro-batches such as `typical`, or estimate their work if there is no device to measure on, or no choice.
pub(crate) fn spread(
    config: &RunConfig,
    model: &LlamaConfig,
    stages: usize,
    typical: TypicalMicrobatch,
    measure_on: Option<(&Device, FloatDType)>,
) -> Result<Partitions> {
    let mut costs = estimated(config, model);
    let layers = model.num_hidden_layers;
    let balance = &config.pipeline.balance;
    let asked = matches!(balance, BalanceChoice::Auto | BalanceChoice::Staggered);
    let choice = asked && stages > 1 && stages < layers;
    if choice && let Some((device, dtype)) = measure_on {
        let TypicalMicrobatch { sizes, predicting } = typical;
        if let Some(seconds) = PartCosts::measure(model, dtype, device, sizes, predicting)? {
            costs = seconds;
        }
    }
    Ok(balanced(config, &costs, stages).map_err(PipelineError::from)?)
}

/// Spreads layers of these costs as configured.
pub(crate) fn balanced(
    config: &RunConfig,
    costs: &PartCosts,
    stages: usize,
) -> Result<Partitions, PartitionError> {
    let counts = match &config.pipeline.balance {
        BalanceChoice::Auto => return Ok(costs.partition(stages)?.into()),
        BalanceChoice::Staggered => return stagger(costs, stages),
        BalanceChoice::Layers(counts) => std::slice::from_ref(counts),
        BalanceChoice::Partitions(counts) => counts,
    };
    Partitions::of_counts(counts, stages, costs.layers.len())
}

/// Operations of one sequence of the largest length of any adapter, in which every token is a target.
pub(crate) fn estimated(config: &RunConfig, model: &LlamaConfig) -> PartCosts {
    let lengths = config
        .adapters
        .iter()
        .map(|adapter| adapter.train.max_seq_len);
    let longest = lengths.max().unwrap_or(0);
    let tokens = longest as f64;
    let layer = |layer| {
        let work = LayerWork {
            tokens,
            attention_pairs: attention_pairs(longest, model.sliding_window[layer]) as f64,
            adapter_parameters: 0,
        };
        passes(layer_operations(model, work, config.gradient_checkpointing))
    };
    PartCosts {
        layers: (0..model.num_hidden_layers).map(layer).collect(),
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

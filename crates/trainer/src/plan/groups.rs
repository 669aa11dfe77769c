use std::ops::Range;

use loraloom_config::RunConfig;
use loraloom_model::{
    LlamaConfig, Projection,
    cost::{
        ActivationStorage, LayerWork, Operations, TokenBytes, backward_bytes_per_token,
        bytes_per_token, embedding_operations, head_operations, layer_operations, loss_bytes,
    },
};
use loraloom_pipeline::{PartitionError, Partitions, StageLayers};

use super::{PlannedGroup, gather::TaskPlan};
use crate::stages::{balanced, estimated};

/// The tasks that train at first, in their groups, and those that wait.
pub(super) struct Groups<'a> {
    pub(super) model: &'a LlamaConfig,
    pub(super) config: &'a RunConfig,
    pub(super) tasks: Vec<Vec<&'a TaskPlan>>,
    /// Tasks that wait, with the reasons.
    pub(super) waiting: Vec<(&'a TaskPlan, String)>,
    /// Tasks that are tried although they may not fit even alone, with the reasons.
    pub(super) tight: Vec<(&'a TaskPlan, String)>,
    /// Waiting tasks that do not fit even alone on any device.
    pub(super) refused: Vec<&'a TaskPlan>,
}

/// The layers of each stage and group, as a run spreads them without measurements: for sequences as long as any
/// adapter allows and a target in every row.
///
/// # Errors
/// If there are more stages than layers, or the configuration's balance does not fit.
pub(super) fn partitioned(
    config: &RunConfig,
    model: &LlamaConfig,
) -> Result<Partitions, PartitionError> {
    let costs = estimated(config, model);
    balanced(config, &costs, config.pipeline.stages.len())
}

impl<'a> Groups<'a> {
    /// Micro-batches of a step, by group.
    pub(super) fn microbatches(&self) -> Vec<usize> {
        self.of_each(|group| {
            let counts = group.iter().map(|task| task.microbatches);
            counts.max().unwrap_or(1).max(1)
        })
    }

    /// Tokens of a step, by group.
    pub(super) fn tokens(&self) -> Vec<f64> {
        self.of_each(|group| group.iter().map(|task| task.load.tokens()).sum())
    }

    /// Operations of a step on a stage with these layers, by group.
    pub(super) fn operations(&self, layers: &StageLayers) -> Vec<Operations> {
        self.of_each_on(layers, |group, layers| {
            let of_task = |task: &&TaskPlan| -> Operations {
                let (load, model) = (&task.load, self.model);
                let embedding =
                    (layers.start == 0).then(|| embedding_operations(model, load.tokens()));
                let head = (layers.end == model.num_hidden_layers)
                    .then(|| head_operations(model, load.targets()));
                let inner = layers.clone().map(|layer| self.layer(task, layer));
                inner.chain(embedding).chain(head).sum()
            };
            group.iter().map(of_task).sum()
        })
    }

    /// Bytes of the largest micro-batch on a stage with these layers, by group.
    pub(super) fn activations(
        &self,
        layers: &StageLayers,
        storage: ActivationStorage,
    ) -> Vec<TokenBytes> {
        self.of_each_on(layers, |group, layers| {
            let ranks = |layer| largest_ranks(group, layer);
            let layers = kept(layers, ranks);
            let of_token = bytes_per_token(self.model, &layers, ranks, storage);
            let tokens = Self::most_tokens(group);
            // Rows of DoRA alone keep outputs.
            let scaled = layers.clone().map(|layer| {
                let of_task = |task: &&TaskPlan| {
                    task.load.most_tokens() * task.ranks.scaled_outputs(self.model, layer)
                };
                group.iter().map(of_task).sum::<usize>() * storage.element_bytes
            });
            let (kept, again) = if storage.gradient_checkpointing {
                (0, scaled.max().unwrap_or(0))
            } else {
                (scaled.sum(), 0)
            };
            TokenBytes {
                kept: tokens * of_token.kept + kept,
                computed_again: tokens * of_token.computed_again + again,
            }
        })
    }

    /// Bytes of the buffers of the largest loss on a stage with these layers.
    pub(super) fn loss_bytes(
        &self,
        layers: &StageLayers,
        element_bytes: usize,
        on_host: bool,
    ) -> usize {
        let of_groups = self.of_each_on(layers, |group, layers| {
            if layers.end < self.model.num_hidden_layers {
                return 0;
            }
            let targets = group.iter().map(|task| task.load.most_targets()).sum();
            let ranks = group.iter().map(|task| task.ranks.at(layers.end - 1));
            let ranks: Vec<usize> = ranks.map(|of| of[Projection::LmHead as usize]).collect();
            loss_bytes(self.model, targets, &ranks, element_bytes, on_host)
        });
        of_groups.into_iter().max().unwrap_or(0)
    }

    /// Bytes of the buffers of the largest backward pass on a stage with these layers.
    pub(super) fn backward_bytes(&self, layers: &StageLayers, element_bytes: usize) -> usize {
        let of_groups = self.of_each_on(layers, |group, layers| {
            let ranks = |layer| largest_ranks(group, layer);
            let layers = kept(layers, ranks);
            let of_token = backward_bytes_per_token(self.model, &layers, ranks, element_bytes);
            Self::most_tokens(group) * of_token
        });
        of_groups.into_iter().max().unwrap_or(0)
    }

    /// Parameters of all adapters on a stage with these layers.
    pub(super) fn adapter_parameters(&self, layers: &StageLayers) -> usize {
        let of_groups = self.of_each_on(layers, |group, layers| -> usize {
            let parameters = |task: &&TaskPlan| task.ranks.parameters(self.model, layers.clone());
            group.iter().map(parameters).sum()
        });
        of_groups.into_iter().sum()
    }

    /// The groups for the report.
    pub(super) fn planned(&self) -> Vec<PlannedGroup> {
        let numbers = self.microbatches().into_iter().zip(self.tokens());
        let planned = |(group, (microbatches, tokens)): (&Vec<&TaskPlan>, _)| PlannedGroup {
            adapters: group.iter().map(|task| task.name.clone()).collect(),
            microbatches,
            estimated_tokens_per_step: tokens,
            most_tokens_per_microbatch: Self::most_tokens(group),
        };
        self.tasks.iter().zip(numbers).map(planned).collect()
    }

    fn layer(&self, task: &TaskPlan, layer: usize) -> Operations {
        let work = LayerWork {
            tokens: task.load.tokens(),
            attention_pairs: task.load.attention_pairs(self.model.sliding_window[layer]),
            adapter_parameters: task.ranks.parameters(self.model, layer..layer + 1),
        };
        layer_operations(self.model, work, self.config.gradient_checkpointing)
    }

    fn most_tokens(group: &[&TaskPlan]) -> usize {
        group.iter().map(|task| task.load.most_tokens()).sum()
    }

    fn of_each<T>(&self, value: impl Fn(&[&'a TaskPlan]) -> T) -> Vec<T> {
        self.tasks.iter().map(|group| value(group)).collect()
    }

    /// Calls a function for each group with its layers on a stage.
    fn of_each_on<T>(
        &self,
        layers: &StageLayers,
        value: impl Fn(&[&'a TaskPlan], Range<usize>) -> T,
    ) -> Vec<T> {
        let groups = self.tasks.iter().enumerate();
        groups
            .map(|(index, group)| value(group, layers.of_group(index)))
            .collect()
    }
}

/// The layers of a stage that keep activations: those from the first with an adapter, if the stage begins the model. The
/// output projection is above them.
fn kept(layers: Range<usize>, ranks: impl Fn(usize) -> [usize; Projection::COUNT]) -> Range<usize> {
    let adapted = |layer: &usize| {
        let of_layer = Projection::ALL.iter().zip(ranks(*layer));
        let mut inner = of_layer.filter(|(projection, _)| **projection != Projection::LmHead);
        inner.any(|(_, rank)| rank > 0)
    };
    if layers.start > 0 {
        return layers;
    }
    layers.clone().find(adapted).unwrap_or(layers.end)..layers.end
}

fn largest_ranks(group: &[&TaskPlan], layer: usize) -> [usize; Projection::COUNT] {
    let mut largest = [0; Projection::COUNT];
    for task in group {
        for (largest, rank) in largest.iter_mut().zip(task.ranks.at(layer)) {
            *largest = rank.max(*largest);
        }
    }
    largest
}

#[cfg(test)]
mod tests {
    use loraloom_model::Projection;

    use super::kept;

    #[test]
    fn layers_below_the_first_adapter_keep_nothing() {
        let at = |projection: Projection, of: usize| {
            move |layer: usize| {
                let mut ranks = [0; Projection::COUNT];
                ranks[projection as usize] = if layer == of { 4 } else { 0 };
                ranks
            }
        };
        assert_eq!(kept(0..4, at(Projection::Q, 2)), 2..4);
        assert_eq!(kept(0..4, at(Projection::EmbedTokens, 0)), 0..4);
        assert_eq!(kept(0..4, at(Projection::LmHead, 3)), 4..4);
        // Gradients pass through the layers of a later stage.
        assert_eq!(kept(2..4, at(Projection::LmHead, 3)), 2..4);
    }
}

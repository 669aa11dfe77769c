use std::ops::{Add, Range};

use crate::{
    PartitionError, Partitions, partition,
    schedule::{PipelineShape, Schedule, operations},
    simulate::{Links, PassCosts, ScheduleCosts, TimelineError, simulate},
};

/// Rounds that are simulated for a rate; it is that of the second half.
pub(super) const ROUNDS: usize = 24;

/// Costs of a micro-batch in each part of a model, in seconds or any other unit.
#[derive(Debug, Clone, PartialEq)]
pub struct PartCosts {
    /// Of every decoder layer.
    pub layers: Vec<PassCosts>,
    /// Of the embedding, on the first stage.
    pub embedding: PassCosts,
    /// Of the head with the losses, on the last stage.
    pub head: PassCosts,
}

/// Forward and backward together.
fn passes(costs: PassCosts) -> f64 {
    costs.forward + costs.backward
}

impl PartCosts {
    /// Costs of a stage that runs these layers.
    pub fn of_stage(&self, layers: &Range<usize>) -> PassCosts {
        let embedding = (layers.start == 0).then_some(self.embedding);
        let head = (layers.end == self.layers.len()).then_some(self.head);
        let parts = self.layers[layers.clone()].iter().copied();
        let parts = parts.chain(embedding).chain(head);
        parts.fold(PassCosts::default(), PassCosts::add)
    }

    /// Forward and backward passes of every layer.
    pub(super) fn layer_passes(&self) -> Vec<f64> {
        self.layers.iter().copied().map(passes).collect()
    }

    /// Forward and backward pass of the embedding.
    pub(super) fn embedding_passes(&self) -> f64 {
        passes(self.embedding)
    }

    /// All passes of the model together.
    pub(super) fn whole(&self) -> f64 {
        let layers: f64 = self.layer_passes().iter().sum();
        layers + passes(self.embedding) + passes(self.head)
    }

    /// One partition for all groups; see [`partition()`].
    ///
    /// # Errors
    /// As [`partition()`].
    pub fn partition(&self, stages: usize) -> Result<Vec<Range<usize>>, PartitionError> {
        let (embedding, head) = (passes(self.embedding), passes(self.head));
        partition(&self.layer_passes(), embedding, head, stages)
    }

    /// Optimizer steps of groups per unit of the costs once the pipeline is full: LoRAPP with as many
    /// groups as stages and one micro-batch a step, where transfers take no time.
    ///
    /// # Errors
    /// If a cost is negative or not finite.
    pub fn steps_per_second(&self, partitions: &Partitions) -> Result<f64, TimelineError> {
        let stages = partitions.of_group(0).len();
        let of = |stage: usize, group| self.of_stage(&partitions.of_group(group)[stage]);
        let of_stage = |stage| (0..stages).map(|group| of(stage, group)).collect();
        let costs = ScheduleCosts::new((0..stages).map(of_stage).collect())?;
        let shape = PipelineShape::new(stages, stages, 1, ROUNDS);
        let lists = operations(Schedule::LoraPp, &shape);
        let simulation = simulate(&lists, &costs, &Links::instant(stages, stages))?;
        Ok(simulation.steady_steps_per_second().unwrap_or(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::PartCosts;
    use crate::simulate::PassCosts;

    fn costs(forward: f64, backward: f64) -> PassCosts {
        PassCosts {
            forward,
            backward,
            step: 0.0,
        }
    }

    #[test]
    fn the_first_stage_bears_the_embedding_and_the_last_the_head() {
        let parts = PartCosts {
            layers: vec![costs(1.0, 2.0), costs(4.0, 8.0), costs(16.0, 32.0)],
            embedding: costs(64.0, 0.0),
            head: costs(128.0, 256.0),
        };
        assert_eq!(parts.of_stage(&(0..1)), costs(65.0, 2.0));
        assert_eq!(parts.of_stage(&(1..2)), costs(4.0, 8.0));
        assert_eq!(parts.of_stage(&(1..3)), costs(148.0, 296.0));
        assert_eq!(parts.of_stage(&(0..3)), costs(213.0, 298.0));
        assert!((parts.whole() - 511.0).abs() < 1e-9);
    }
}

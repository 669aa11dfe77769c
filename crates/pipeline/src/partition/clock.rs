use super::costs::ROUNDS;
use crate::{
    schedule::{Operation, PipelineShape, Schedule, operations},
    simulate::{Order, Ordered, TimelineError},
};

/// LoRAPP with as many groups as stages, ordered once so that thousands of partitions can be timed:
/// equals [`PartCosts::steps_per_second`](crate::PartCosts::steps_per_second) bit for bit.
#[derive(Debug)]
pub(super) struct Clock {
    order: Order,
    /// By pass: the position of its time; see [`Clock::index`].
    times: Vec<usize>,
    /// The first passes of the iteration in the middle and of the last one on stage 0.
    window: [usize; 2],
    /// Optimizer steps of all groups between these.
    steps: f64,
}

impl Clock {
    /// # Errors
    /// If the schedule cannot be ordered.
    pub(super) fn new(stages: usize) -> Result<Self, TimelineError> {
        let shape = PipelineShape::new(stages, stages, 1, ROUNDS);
        let mut lists = operations(Schedule::LoraPp, &shape);
        // Optimizer steps take no time here.
        for list in &mut lists {
            list.retain(|operation| !matches!(operation, Operation::Step { .. }));
        }
        let order = Order::new(&lists)?;
        let index = |ordered: &Ordered| {
            let backward = matches!(ordered.operation, Operation::Backward { .. });
            Self::index(stages, ordered.stage, ordered.operation.group(), backward)
        };
        let first = |of: usize| {
            let begins = |operation| matches!(operation, Operation::Forward { iteration, .. } if iteration == of);
            let mut operations = order.operations.iter();
            operations.position(|ordered| ordered.stage == 0 && begins(ordered.operation))
        };
        let middle = ROUNDS / 2;
        Ok(Self {
            times: order.operations.iter().map(index).collect(),
            window: [middle, ROUNDS - 1].map(|iteration| first(iteration).unwrap_or(0)),
            steps: (stages * (ROUNDS - 1 - middle)) as f64,
            order,
        })
    }

    /// Position in the times of a stage's pass for a group.
    pub(super) fn index(stages: usize, stage: usize, group: usize, backward: bool) -> usize {
        (stage * stages + group) * 2 + usize::from(backward)
    }

    /// Number of passes.
    pub(super) fn passes(&self) -> usize {
        self.times.len()
    }

    /// Optimizer steps of groups per unit of the times, which are by stage, group and direction.
    pub(super) fn steps_per_second(&mut self, times: &[f64]) -> f64 {
        let mut starts = [0.0; 2];
        self.order.run(|index, _, start| {
            for (place, at) in starts.iter_mut().zip(self.window) {
                if index == at {
                    *place = start;
                }
            }
            let end = start + times[self.times[index]];
            (end, end)
        });
        let seconds = starts[1] - starts[0];
        if seconds > 0.0 {
            self.steps / seconds
        } else {
            0.0
        }
    }
}

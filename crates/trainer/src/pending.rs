//! An iteration that the device was given and whose results nobody has seen yet.

use std::time::Instant;

use burn::tensor::Tensor;
use loraloom_scheduler::TaskId;

use crate::{
    TrainerError,
    readback::{Arrival, Readback},
    train_step::StepTensors,
};

/// One task's step in an iteration: what is known of it when it is submitted.
#[derive(Debug, Clone)]
pub(crate) struct SubmittedStep {
    pub(crate) task: TaskId,
    /// The task's name.
    pub(crate) name: String,
    /// Step of the task, counted from 1.
    pub(crate) step: usize,
    pub(crate) learning_rate: f64,
    pub(crate) target_tokens: usize,
    pub(crate) tokens: usize,
}

/// What one task's step came to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct StepOutcome {
    /// Sum of the token cross-entropies over the number of target tokens.
    pub(crate) loss: f64,
    /// Global norm of the gradient before clipping.
    pub(crate) grad_norm: f64,
}

/// The targets of one task in one micro-batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TargetRange {
    /// The task's slot.
    pub(crate) slot: usize,
    /// Targets, which follow those of the range before.
    pub(crate) count: usize,
}

/// A submitted iteration.
#[derive(Debug)]
pub(crate) struct PendingIteration {
    /// Iteration of the run, counted from 1.
    pub(crate) number: u64,
    /// When its first work was prepared.
    pub(crate) begun: Instant,
    /// The steps, by slot.
    pub(crate) steps: Vec<SubmittedStep>,
    /// Whose targets a micro-batch has, by micro-batch.
    ranges: Vec<Vec<TargetRange>>,
    readback: Readback,
}

impl PendingIteration {
    /// Asks for the results of what was just submitted. `ranges` has an entry per micro-batch.
    ///
    /// # Errors
    /// If the device cannot be asked.
    pub(crate) fn new(
        number: u64,
        begun: Instant,
        steps: Vec<SubmittedStep>,
        ranges: Vec<Vec<TargetRange>>,
        tensors: StepTensors,
    ) -> Result<Self, TrainerError> {
        let mut wanted: Vec<Tensor<1>> = tensors.losses;
        wanted.extend(tensors.squared_norms);
        let readback = Readback::request(wanted)?;
        Ok(Self {
            number,
            begun,
            steps,
            ranges,
            readback,
        })
    }

    /// Waits for the results: every step with what it came to, by slot.
    ///
    /// # Errors
    /// If the device failed.
    pub(crate) fn wait(self) -> Result<Arrival<Vec<(SubmittedStep, StepOutcome)>>, TrainerError> {
        let Arrival { values, at } = self.readback.wait()?;
        let (losses, norms) = values.split_at(self.ranges.len());
        let outcomes = outcomes(&self.steps, &self.ranges, losses, norms.first());
        let values = self.steps.into_iter().zip(outcomes).collect();
        Ok(Arrival { values, at })
    }
}

/// Without norms no slot had a gradient: all norms are 0.
fn outcomes(
    steps: &[SubmittedStep],
    ranges: &[Vec<TargetRange>],
    losses: &[Vec<f32>],
    squared_norms: Option<&Vec<f32>>,
) -> Vec<StepOutcome> {
    let mut sums = vec![0f64; steps.len()];
    for (ranges, losses) in ranges.iter().zip(losses) {
        let mut losses = losses.iter();
        for range in ranges {
            let part = losses.by_ref().take(range.count);
            sums[range.slot] += part.map(|&loss| f64::from(loss)).sum::<f64>();
        }
    }
    let squared = squared_norms.map_or(&[][..], Vec::as_slice).iter().copied();
    let norms = squared.map(|squared| f64::from(squared.sqrt()));
    let norms = norms.chain(std::iter::repeat(0.0));
    let steps = steps.iter().zip(sums).zip(norms);
    steps
        .map(|((step, sum), grad_norm)| StepOutcome {
            loss: sum / step.target_tokens as f64,
            grad_norm,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use loraloom_scheduler::TaskId;

    use super::{StepOutcome, SubmittedStep, TargetRange, outcomes};

    #[test]
    fn losses_go_to_their_slots_over_all_micro_batches() {
        let step = |target_tokens| SubmittedStep {
            task: TaskId(0),
            name: String::new(),
            step: 1,
            learning_rate: 0.0,
            target_tokens,
            tokens: 0,
        };
        let range = |slot, count| TargetRange { slot, count };
        let ranges = [vec![range(0, 2), range(1, 1)], vec![range(1, 3)]];
        let losses = [vec![1.0, 3.0, 5.0], vec![7.0, 9.0, 11.0]];
        let found = outcomes(&[step(2), step(4)], &ranges, &losses, Some(&vec![4.0, 9.0]));
        let outcome = |loss, grad_norm| StepOutcome { loss, grad_norm };
        assert_eq!(found, [outcome(2.0, 2.0), outcome(8.0, 3.0)]);
        let without = outcomes(&[step(2), step(4)], &ranges, &losses, None);
        assert_eq!(without, [outcome(2.0, 0.0), outcome(8.0, 0.0)]);
    }
}

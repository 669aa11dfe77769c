//! Iterations that were submitted and whose results have not been read.

use std::time::Instant;

use loraloom_objective::Sums;
use loraloom_pipeline::executor::GroupOutcome;
use loraloom_scheduler::{Load, Work};

use crate::{batch::TargetRange, tasks::SubmittedStep};

/// Results of one task's step, up to the end of this part of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct StepResult {
    /// Sums over its rows; of a loss that is no preference, only that of token cross-entropies.
    pub(crate) sums: Sums,
    /// Global norm of the gradient before clipping.
    pub(crate) grad_norm: f64,
}

/// A group's part of a submitted iteration.
#[derive(Debug)]
pub(crate) struct SubmittedGroup {
    /// The steps, by slot.
    pub(crate) steps: Vec<SubmittedStep>,
    /// The targets of each micro-batch, by slot.
    pub(crate) ranges: Vec<Vec<TargetRange>>,
    pub(crate) work: Work,
    /// Memory load of the group's largest micro-batch, without adapters.
    pub(crate) load: Load,
}

/// A submitted iteration.
#[derive(Debug)]
pub(crate) struct SubmittedIteration {
    /// Iteration of the run, counted from 1.
    pub(crate) number: u64,
    /// When its preparation began.
    pub(crate) begun: Instant,
    pub(crate) groups: Vec<SubmittedGroup>,
}

impl SubmittedGroup {
    /// The result of every step, by slot. Sums continue those of earlier parts of the step in `before`, so that parts
    /// change no bit.
    pub(crate) fn results(&self, outcome: &GroupOutcome, before: Vec<Sums>) -> Vec<StepResult> {
        let mut sums = before;
        for (ranges, losses) in self.ranges.iter().zip(&outcome.losses) {
            let mut losses = &losses[..];
            for range in ranges {
                let part;
                (part, losses) = losses.split_at(range.count.min(losses.len()));
                if let Some(completions) = &range.completions {
                    sums[range.slot] += completions.sums(part);
                } else {
                    let part = part.iter().map(|&loss| f64::from(loss));
                    sums[range.slot].loss += part.sum::<f64>();
                }
            }
            // Those over paraphrases follow.
            let contrasts = ranges
                .iter()
                .filter_map(|range| Some((range.slot, range.contrast?)));
            for ((slot, factor), &loss) in contrasts.zip(losses) {
                sums[slot].loss += factor * f64::from(loss);
            }
        }
        let result = |(sums, squared): (Sums, &f32)| StepResult {
            sums,
            grad_norm: f64::from(squared.sqrt()),
        };
        sums.into_iter()
            .zip(&outcome.squared_norms)
            .map(result)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use loraloom_objective::Sums;
    use loraloom_pipeline::executor::GroupOutcome;
    use loraloom_scheduler::{Load, TaskId, Work};

    use super::{StepResult, SubmittedGroup, SubmittedStep, TargetRange};
    use crate::tasks::Cursor;

    #[test]
    fn losses_go_to_their_slots_over_all_micro_batches() {
        let step = |step_target_tokens| SubmittedStep {
            task: TaskId(0),
            name: String::new(),
            step: 1,
            learning_rate: 0.0,
            part: Cursor::default().next(2, 1),
            tokens: 0,
            step_target_tokens,
            step_rows: 1,
            step_tokens: 0,
        };
        let range = |slot, count| TargetRange {
            slot,
            count,
            completions: None,
            contrast: None,
        };
        let group = SubmittedGroup {
            steps: vec![step(2), step(4)],
            ranges: vec![vec![range(0, 2), range(1, 1)], vec![range(1, 3)]],
            work: Work::default(),
            load: Load::default(),
        };
        let outcome = GroupOutcome {
            losses: vec![vec![1.0, 3.0, 5.0], vec![7.0, 9.0, 11.0]],
            squared_norms: vec![4.0, 9.0],
        };
        let sums = |loss| Sums {
            loss,
            ..Sums::default()
        };
        let result = |loss, grad_norm| StepResult {
            sums: sums(loss),
            grad_norm,
        };
        assert_eq!(
            group.results(&outcome, vec![sums(0.0), sums(0.5)]),
            [result(4.0, 2.0), result(32.5, 3.0)]
        );
    }
}

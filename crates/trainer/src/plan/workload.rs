use std::collections::BTreeMap;

use loraloom_model::cost::attention_pairs;

use crate::tasks::Task;

/// The work of a task's step, averaged over its data.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Workload {
    /// Number of samples by their tokens in the model.
    lengths: BTreeMap<usize, usize>,
    /// Number of samples by their targets.
    targets: BTreeMap<usize, usize>,
    /// Optimizer steps of an epoch.
    steps_per_epoch: usize,
    /// Most samples of a micro-batch.
    microbatch_samples: usize,
}

impl Workload {
    /// The work of a task whose batches are cut into `split` micro-batches.
    pub(super) fn of(task: &Task, split: usize) -> Self {
        let rows = task.train_rows();
        Self {
            lengths: rows.predicting_lengths().clone(),
            targets: rows.target_counts().clone(),
            steps_per_epoch: task.steps_per_epoch(),
            microbatch_samples: task.microbatch_samples(split),
        }
    }

    /// Tokens of a step.
    pub(super) fn tokens(&self) -> f64 {
        self.per_step(sum(&self.lengths, |length| length))
    }

    /// Targets of a step.
    pub(super) fn targets(&self) -> f64 {
        self.per_step(sum(&self.targets, |targets| targets))
    }

    /// Pairs of a query and a visible key of a step, in a layer whose attention window has `window` tokens including
    /// the query; `None` is all before it.
    pub(super) fn attention_pairs(&self, window: Option<usize>) -> f64 {
        self.per_step(sum(&self.lengths, |length| attention_pairs(length, window)))
    }

    /// The most tokens of a micro-batch, if the longest samples meet.
    pub(super) fn most_tokens(&self) -> usize {
        self.most(&self.lengths)
    }

    /// The most targets of a micro-batch.
    pub(super) fn most_targets(&self) -> usize {
        self.most(&self.targets)
    }

    /// The sum of the largest numbers of a micro-batch's samples.
    fn most(&self, counts: &BTreeMap<usize, usize>) -> usize {
        let mut left = self.microbatch_samples;
        let of_number = |(&number, &count): (&usize, &usize)| {
            let taken = count.min(left);
            left -= taken;
            number * taken
        };
        counts.iter().rev().map(of_number).sum()
    }

    fn per_step(&self, of_all: usize) -> f64 {
        of_all as f64 / self.steps_per_epoch as f64
    }
}

/// The sum over all samples of a function of their numbers.
fn sum(counts: &BTreeMap<usize, usize>, of: impl Fn(usize) -> usize) -> usize {
    let counts = counts.iter();
    counts.map(|(&number, &count)| of(number) * count).sum()
}

#[cfg(test)]
mod tests {
    use super::Workload;

    #[test]
    #[expect(clippy::float_cmp, reason = "sums of small whole numbers are exact")]
    fn a_step_is_the_average_of_an_epoch() {
        let load = Workload {
            lengths: [(2, 2), (4, 1), (6, 1), (8, 1), (10, 2)].into(),
            targets: [(1, 4), (2, 1), (4, 2)].into(),
            steps_per_epoch: 3,
            microbatch_samples: 3,
        };
        assert_eq!(load.tokens(), 42.0 / 3.0);
        assert_eq!(load.targets(), 14.0 / 3.0);
        assert_eq!(load.attention_pairs(Some(1)), 42.0 / 3.0);
        assert_eq!(load.most_tokens(), 28);
        assert_eq!(load.most_targets(), 10);
    }
}

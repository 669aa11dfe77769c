use loraloom_data::Sample;
use loraloom_model::cost::attention_pairs;

use crate::tasks::Task;

/// The work of a task's step, averaged over its data.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Workload {
    /// Tokens of each sample in the model, in descending order.
    lengths: Vec<usize>,
    /// Targets of all samples.
    targets: usize,
    /// The most targets of a micro-batch.
    most_targets: usize,
    /// Optimizer steps of an epoch.
    steps_per_epoch: usize,
    /// Most rows of a micro-batch.
    microbatch_rows: usize,
}

impl Workload {
    /// The work of a task whose batches are cut into `split` micro-batches.
    pub(super) fn of(task: &Task, split: usize) -> Self {
        let (rows, steps) = (task.microbatch_rows(split), task.steps_per_epoch());
        Self::new(task.train_rows(), rows, steps)
    }

    fn new(samples: &[Sample], microbatch_rows: usize, steps_per_epoch: usize) -> Self {
        let mut lengths: Vec<usize> = samples.iter().map(Sample::predicting_len).collect();
        lengths.sort_unstable_by(|left, right| right.cmp(left));
        let mut targets: Vec<usize> = samples.iter().map(Sample::num_targets).collect();
        targets.sort_unstable_by(|left, right| right.cmp(left));
        Self {
            targets: targets.iter().sum(),
            most_targets: targets.iter().take(microbatch_rows).sum(),
            steps_per_epoch,
            microbatch_rows,
            lengths,
        }
    }

    /// Tokens of a step.
    pub(super) fn tokens(&self) -> f64 {
        self.per_step(self.lengths.iter().sum())
    }

    /// Targets of a step.
    pub(super) fn targets(&self) -> f64 {
        self.per_step(self.targets)
    }

    /// Pairs of a query and a visible key of a step, in a layer whose attention window has `window` tokens including
    /// the query; `None` is all before it.
    pub(super) fn attention_pairs(&self, window: Option<usize>) -> f64 {
        let pairs = |&length: &usize| attention_pairs(length, window);
        self.per_step(self.lengths.iter().map(pairs).sum())
    }

    /// The most tokens of a micro-batch, if the longest samples meet.
    pub(super) fn most_tokens(&self) -> usize {
        self.lengths.iter().take(self.microbatch_rows).sum()
    }

    /// The most targets of a micro-batch.
    pub(super) fn most_targets(&self) -> usize {
        self.most_targets
    }

    fn per_step(&self, of_all: usize) -> f64 {
        of_all as f64 / self.steps_per_epoch as f64
    }
}

#[cfg(test)]
mod tests {
    use loraloom_data::Sample;

    use super::Workload;

    /// A prompt, two targets, and a token after them that is no target.
    fn sample(prompt: usize) -> Sample {
        let is_target = [vec![false; prompt], vec![true, true, false]].concat();
        Sample {
            ids: vec![0; is_target.len()],
            is_target,
        }
    }

    #[test]
    #[expect(clippy::float_cmp, reason = "sums of small whole numbers are exact")]
    fn a_step_is_the_average_of_an_epoch() {
        // In the model: 2, 4, 6, 8 and 10 tokens.
        let samples = [1, 3, 5, 7, 9].map(sample);
        let load = Workload::new(&samples, 2, 3);
        assert_eq!(load.tokens(), 30.0 / 3.0);
        assert_eq!(load.targets(), 10.0 / 3.0);
        assert_eq!(load.most_tokens(), 18);
        assert_eq!(load.most_targets(), 4);
    }
}

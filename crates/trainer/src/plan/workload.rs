use loraloom_data::Sample;
use loraloom_model::cost::attention_pairs;

/// What a task computes in a step, averaged over its data.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Workload {
    /// Tokens that each sample puts through the model, in descending order.
    lengths: Vec<usize>,
    /// Targets of all samples.
    targets: usize,
    /// Optimizer steps that take every sample once.
    steps_per_epoch: usize,
    /// Rows of one batch, before it is cut.
    batch_size: usize,
}

impl Workload {
    /// The work of `accumulation` batches a step.
    pub(super) fn of(batch_size: usize, accumulation: usize, samples: &[Sample]) -> Self {
        let rows = batch_size * accumulation;
        let mut lengths: Vec<usize> = samples.iter().map(Sample::predicting_len).collect();
        lengths.sort_unstable_by(|left, right| right.cmp(left));
        Self {
            targets: samples.iter().map(Sample::num_targets).sum(),
            steps_per_epoch: samples.len().div_ceil(rows).max(1),
            batch_size,
            lengths,
        }
    }

    fn microbatch_rows(&self, parts: usize) -> usize {
        self.batch_size.div_ceil(parts)
    }

    /// Tokens of a step.
    pub(super) fn tokens(&self) -> f64 {
        self.per_step(self.lengths.iter().sum())
    }

    /// Targets of a step.
    pub(super) fn targets(&self) -> f64 {
        self.per_step(self.targets)
    }

    /// Pairs of a query and a key it sees, of a step, in a layer whose tokens see `window` tokens,
    /// themselves included; `None` is all before them.
    pub(super) fn attention_pairs(&self, window: Option<usize>) -> f64 {
        let pairs = |&length: &usize| attention_pairs(length, window);
        self.per_step(self.lengths.iter().map(pairs).sum())
    }

    /// The most tokens of a micro-batch, if each is cut into `parts`: the longest samples, should
    /// they meet.
    pub(super) fn most_tokens(&self, parts: usize) -> usize {
        self.lengths.iter().take(self.microbatch_rows(parts)).sum()
    }

    fn per_step(&self, of_all: usize) -> f64 {
        of_all as f64 / self.steps_per_epoch as f64
    }
}

#[cfg(test)]
mod tests {
    use loraloom_data::Sample;

    use super::Workload;

    /// A prompt, two targets, and a token behind them that nothing predicts.
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
        // Put through the model: 2, 4, 6, 8 and 10 tokens.
        let samples = [1, 3, 5, 7, 9].map(sample);
        let load = Workload::of(2, 1, &samples);
        assert_eq!(load.tokens(), 30.0 / 3.0);
        assert_eq!(load.targets(), 10.0 / 3.0);
        assert_eq!((load.most_tokens(1), load.most_tokens(2)), (18, 10));
        assert_eq!(load.most_tokens(9), 10, "a row is not cut");
        // More rows a step than there are: an epoch a step.
        let all = Workload::of(2, 4, &samples);
        assert_eq!(all.tokens(), 30.0);
    }
}

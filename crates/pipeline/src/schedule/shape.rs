/// How much a schedule has to order. A zero anywhere but in `extra_warmup` gives empty lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PipelineShape {
    /// Stages, D.
    pub stages: usize,
    /// Groups of tasks, L.
    pub groups: usize,
    /// Micro-batches of a group in one step, N.
    pub microbatches: usize,
    /// Optimizer steps of every group to unroll.
    pub steps: usize,
    /// Forward passes that a stage runs ahead of the next one, beyond one, to keep it at work while
    /// micro-batches are on their way between the two.
    ///
    /// Stage `k` runs `(D − 1 − k)·(1 + extra_warmup) + 1` forward passes before its first backward
    /// pass and never holds the activations of more: at most D for 0. GPipe ignores it: it always
    /// holds N. [`best_warmup`](crate::simulate::best_warmup) finds a good number.
    pub extra_warmup: usize,
}

impl PipelineShape {
    /// `steps` steps of `groups` groups over `stages` stages, at most D micro-batches in
    /// flight.
    pub fn new(stages: usize, groups: usize, microbatches: usize, steps: usize) -> Self {
        Self {
            stages,
            groups,
            microbatches,
            steps,
            extra_warmup: 0,
        }
    }

    /// The same with `extra_warmup` more forward passes ahead of each following stage.
    pub fn with_extra_warmup(self, extra_warmup: usize) -> Self {
        Self {
            extra_warmup,
            ..self
        }
    }

    /// Passes from a micro-batch's start on `stage` to its start on the last stage. Fewer on each
    /// stage than on the one before.
    pub(super) fn passes_to_last(&self, stage: usize) -> usize {
        (self.stages.saturating_sub(1) - stage) * (1 + self.extra_warmup)
    }

    /// Slots from a group's first forward pass to the first of its next step: D + N − 1 without
    /// extra warm-up.
    pub(super) fn slots_per_step(&self) -> usize {
        self.microbatches + self.passes_to_last(0)
    }
}

use loraloom_config::Schedule;

use super::Operation;

/// Every stage's operations, in the order in which it runs them.
///
/// All schedules run a group's micro-batches backward in the order 0, 1, …, so gradients are summed in
/// the same order and have the same bits.
pub fn operations(schedule: Schedule, shape: &PipelineShape) -> Vec<Vec<Operation>> {
    match schedule {
        Schedule::LoraPp => lorapp(shape),
        Schedule::OneFOneB => one_f_one_b(shape),
        Schedule::GPipe => gpipe(shape),
    }
}

/// Numbers that a schedule depends on. A zero anywhere but in `extra_warmup` gives empty lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PipelineShape {
    /// Stages, D.
    pub stages: usize,
    /// Groups of tasks, L.
    pub groups: usize,
    /// Micro-batches of a group in one iteration, N.
    pub microbatches: usize,
    /// Iterations to unroll: optimizer steps of every group.
    pub iterations: usize,
    /// Forward passes, beyond one, that a stage runs ahead of the next stage, so that it has work while
    /// micro-batches are transferred between the two.
    ///
    /// Stage `k` runs `(D − 1 − k)·(1 + extra_warmup) + 1` forward passes before its first backward
    /// pass and never holds the activations of more: at most D for 0. GPipe ignores it and holds N.
    /// More is not always better: stages wait longer for the first backward pass.
    pub extra_warmup: usize,
}

impl PipelineShape {
    /// `iterations` iterations of `groups` groups over `stages` stages, at most D micro-batches in
    /// flight.
    pub fn new(stages: usize, groups: usize, microbatches: usize, iterations: usize) -> Self {
        Self {
            stages,
            groups,
            microbatches,
            iterations,
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
    fn passes_to_last(&self, stage: usize) -> usize {
        (self.stages.saturating_sub(1) - stage) * (1 + self.extra_warmup)
    }

    /// Slots from a group's first forward pass to the first of its next iteration: D + N − 1 without
    /// extra warm-up.
    fn ticks_per_iteration(&self) -> usize {
        self.microbatches + self.passes_to_last(0)
    }
}

/// Both passes of a micro-batch.
fn passes(group: usize, microbatch: usize, iteration: usize) -> [Operation; 2] {
    let forward = Operation::Forward {
        group,
        microbatch,
        iteration,
    };
    let backward = Operation::Backward {
        group,
        microbatch,
        iteration,
    };
    [forward, backward]
}

/// All forward passes of a group's iteration, then all backward passes, in the same order on every
/// stage. A stage holds the activations of all N micro-batches.
fn gpipe(shape: &PipelineShape) -> Vec<Vec<Operation>> {
    if shape.microbatches == 0 {
        return vec![Vec::new(); shape.stages];
    }
    let mut list = Vec::new();
    for iteration in 0..shape.iterations {
        for group in 0..shape.groups {
            let passes =
                (0..shape.microbatches).map(|microbatch| passes(group, microbatch, iteration));
            list.extend(passes.clone().map(|[forward, _]| forward));
            list.extend(passes.map(|[_, backward]| backward));
            list.push(Operation::Step { group, iteration });
        }
    }
    vec![list; shape.stages]
}

/// Groups take turns, N ticks each. A round is as long as all groups' ticks, or as one group's way
/// down the pipeline and up again where that is longer; only then ticks stay empty.
fn lorapp(shape: &PipelineShape) -> Vec<Vec<Operation>> {
    let ticks = shape.groups * shape.microbatches;
    let round = ticks.max(shape.ticks_per_iteration());
    by_ticks(shape, |iteration, group| {
        iteration * round + group * shape.microbatches
    })
}

/// A group enters when the one before has left, as in a trainer of a single model.
fn one_f_one_b(shape: &PipelineShape) -> Vec<Vec<Operation>> {
    by_ticks(shape, |iteration, group| {
        (iteration * shape.groups + group) * shape.ticks_per_iteration()
    })
}

/// Lists given the tick of each group's first micro-batch in each iteration; its other micro-batches take
/// the ticks that follow.
///
/// A tick is two passes long. The micro-batch of tick τ starts forward on the last stage p passes
/// after it started on the first, p = D − 1 without extra warm-up, and turns back at once. So on a
/// stage r passes before the last it starts forward at 2τ + p − r and backward at 2τ + p + r + 1. On
/// one stage the former are all even and the latter all odd, or the reverse, so no two passes of
/// different ticks coincide. Lists sorted by this clock can be executed with any costs: the clock
/// proves that no wait is circular.
fn by_ticks(
    shape: &PipelineShape,
    first_tick: impl Fn(usize, usize) -> usize,
) -> Vec<Vec<Operation>> {
    (0..shape.stages)
        .map(|stage| {
            let mut timed = Vec::new();
            let (whole_way, rest) = (shape.passes_to_last(0), shape.passes_to_last(stage));
            for iteration in 0..shape.iterations {
                for group in 0..shape.groups {
                    let first = first_tick(iteration, group);
                    for microbatch in 0..shape.microbatches {
                        let turn = 2 * (first + microbatch) + whole_way;
                        let back = turn + rest + 1;
                        let [forward, backward] = passes(group, microbatch, iteration);
                        timed.push((turn - rest, forward));
                        timed.push((back, backward));
                        if microbatch + 1 == shape.microbatches {
                            timed.push((back, Operation::Step { group, iteration }));
                        }
                    }
                }
            }
            // Stable: an optimizer step stays behind the backward pass it shares its time with.
            timed.sort_by_key(|&(time, _)| time);
            timed.into_iter().map(|(_, operation)| operation).collect()
        })
        .collect()
}

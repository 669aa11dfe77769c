use std::collections::BTreeMap;

use crate::schedule::Operation;

/// Times of executing lists, in seconds from the start.
#[derive(Debug, Clone, PartialEq)]
pub struct Timeline {
    /// End of the last operation.
    pub makespan: f64,
    /// By stage.
    pub stages: Vec<StageReport>,
    /// By link, in the order of their start on each direction.
    pub transfers: Vec<Transfer>,
}

/// One stage's part in a simulation.
#[derive(Debug, Clone, PartialEq)]
pub struct StageReport {
    /// From 0 to the makespan.
    pub whole: Window,
    /// From the first forward pass of an iteration near the middle to that of the last, without
    /// filling and draining the pipeline; from three iterations on.
    pub steady: Option<Window>,
    /// The operations, in order.
    pub intervals: Vec<Interval>,
}

/// A length of time on one stage.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Window {
    /// Its length.
    pub seconds: f64,
    /// Seconds of it in which the stage worked.
    pub busy: f64,
    /// Optimizer steps in it, of all groups.
    pub steps: usize,
}

/// An operation's time on its stage.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    /// The stage.
    pub stage: usize,
    /// The operation.
    pub operation: Operation,
    /// When it starts.
    pub start: f64,
    /// When it ends.
    pub end: f64,
}

/// A micro-batch's transfer between stages.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Transfer {
    /// Between stages `link` and `link + 1`.
    pub link: usize,
    /// The pass whose result it carries: forward passes send activations to the stage above, backward
    /// passes gradients to the one below.
    pub operation: Operation,
    /// When the link takes it.
    pub start: f64,
    /// When the other stage can use it.
    pub end: f64,
}

impl Window {
    /// The part of the window that the stage was idle; 0 for an empty one.
    pub fn bubble(&self) -> f64 {
        if self.seconds > 0.0 {
            1.0 - self.busy / self.seconds
        } else {
            0.0
        }
    }

    /// Optimizer steps of groups a second; 0 for an empty window.
    pub fn steps_per_second(&self) -> f64 {
        if self.seconds > 0.0 {
            self.steps as f64 / self.seconds
        } else {
            0.0
        }
    }
}

impl StageReport {
    pub(super) fn new(makespan: f64, intervals: Vec<Interval>) -> Self {
        Self {
            whole: window(makespan, &intervals),
            steady: steady(&intervals),
            intervals,
        }
    }

    /// The most micro-batches whose activations are held at once, each from the start of its forward pass
    /// to the end of its backward pass.
    pub fn most_in_flight(&self) -> usize {
        let (mut held, mut most) = (0, 0);
        for interval in &self.intervals {
            match interval.operation {
                Operation::Forward { .. } => held += 1,
                Operation::Backward { .. } => held -= 1,
                Operation::Step { .. } => {}
            }
            most = held.max(most);
        }
        most
    }
}

impl Timeline {
    /// Optimizer steps of groups a second, with filling and draining the pipeline.
    pub fn steps_per_second(&self) -> f64 {
        let first = self.stages.first();
        first.map_or(0.0, |stage| stage.whole.steps_per_second())
    }

    /// Optimizer steps of groups a second once the pipeline is full; from three iterations on.
    pub fn steady_steps_per_second(&self) -> Option<f64> {
        let steady = self.stages.first()?.steady?;
        Some(steady.steps_per_second())
    }
}

fn window(seconds: f64, intervals: &[Interval]) -> Window {
    let is_step = |interval: &&Interval| matches!(interval.operation, Operation::Step { .. });
    let lengths = intervals
        .iter()
        .map(|interval| interval.end - interval.start);
    Window {
        seconds,
        busy: lengths.sum(),
        steps: intervals.iter().filter(is_step).count(),
    }
}

/// From an iteration's first forward pass to another's are whole rounds, so each group's work counts equally
/// often.
fn steady(intervals: &[Interval]) -> Option<Window> {
    let mut firsts = BTreeMap::new();
    for (position, interval) in intervals.iter().enumerate() {
        if let Operation::Forward { iteration, .. } = interval.operation {
            firsts.entry(iteration).or_insert(position);
        }
    }
    let firsts: Vec<usize> = firsts.into_values().collect();
    let (from, to) = (*firsts.get(firsts.len() / 2)?, *firsts.last()?);
    (from < to).then(|| {
        let seconds = intervals[to].start - intervals[from].start;
        window(seconds, &intervals[from..to])
    })
}

/// The part of a stage's time that is idle under LoRAPP once the pipeline is full:
/// `max{(D − 1 + N − L·N) / (D + N − 1), 0}` for D stages, L groups and N micro-batches an iteration.
///
/// It holds from one iteration of a group to its next, where all stages and all groups take the same
/// time, a backward pass in any proportion to a forward pass, and transfers and optimizer steps take
/// none.
pub fn bubble_lorapp(stages: usize, groups: usize, microbatches: usize) -> f64 {
    let alone = (stages + microbatches) as f64 - 1.0;
    ((alone - (groups * microbatches) as f64) / alone).max(0.0)
}

/// The part of a stage's time that is idle under GPipe: `(D − 1) / (N + D − 1)` for D stages and N
/// micro-batches an iteration, with any number of groups, since they follow one another. 1F1B has the
/// same; it differs in the activations it holds.
pub fn bubble_gpipe(stages: usize, microbatches: usize) -> f64 {
    (stages as f64 - 1.0) / ((stages + microbatches) as f64 - 1.0)
}

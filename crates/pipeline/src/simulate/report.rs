use crate::schedule::Operation;

/// What executing lists takes. All times are seconds from the start.
#[derive(Debug, Clone, PartialEq)]
pub struct Simulation {
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
    /// From the first forward pass of a step near the middle to that of the last step, without
    /// filling and draining the pipeline; from three steps on.
    pub steady: Option<Window>,
    /// The operations, in order.
    pub intervals: Vec<Interval>,
    /// Micro-batches whose activations are held, whenever the number changes: from the start of a
    /// forward pass to the end of its backward pass.
    pub in_flight: Vec<(f64, usize)>,
}

/// A length of time on one stage.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Window {
    /// Its length.
    pub seconds: f64,
    /// How much of it the stage worked.
    pub busy: f64,
    /// Optimizer steps in it, of all groups.
    pub steps: usize,
}

/// An operation's time on its stage.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    /// The stage.
    pub stage: usize,
    /// What it does.
    pub operation: Operation,
    /// When it starts.
    pub start: f64,
    /// When it ends.
    pub end: f64,
}

/// A micro-batch on its way between stages.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Transfer {
    /// Between stages `link` and `link + 1`.
    pub link: usize,
    /// What it is a result of: forward passes send activations to the stage above, backward passes
    /// gradients to the one below.
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
    /// The most micro-batches whose activations are held at once.
    pub fn most_in_flight(&self) -> usize {
        let counts = self.in_flight.iter().map(|&(_, count)| count);
        counts.max().unwrap_or(0)
    }
}

impl Simulation {
    /// Optimizer steps of groups a second, with filling and draining the pipeline.
    pub fn steps_per_second(&self) -> f64 {
        self.stages
            .first()
            .map_or(0.0, |stage| stage.whole.steps_per_second())
    }

    /// Optimizer steps of groups a second once the pipeline is full; from three steps on.
    pub fn steady_steps_per_second(&self) -> Option<f64> {
        let steady = self.stages.first()?.steady?;
        Some(steady.steps_per_second())
    }
}

use super::{Costs, Job, costs::Share};
use loraloom_scheduler::{Member, Task};

/// Units of a step, divisible by every number up to 16: parts of a step are whole numbers, without
/// rounding.
pub(super) const UNITS: u64 = 720_720;

/// The progress of a job.
#[derive(Debug)]
pub(super) struct Progress {
    pub(super) task: Task,
    pub(super) tenant: usize,
    pub(super) arrival: u64,
    pub(super) submitted: u64,
    pub(super) units: u64,
    /// Whole steps that were reported to the scheduler.
    pub(super) told: usize,
    pub(super) has_place: bool,
    /// The device in whose current iteration it is.
    pub(super) on: Option<usize>,
    pub(super) started: Option<u64>,
    pub(super) finished: Option<u64>,
}

impl Progress {
    pub(super) fn of(job: &Job, tenant: usize) -> Self {
        Self {
            task: job.task.clone(),
            tenant,
            arrival: job.arrival,
            submitted: job.submitted,
            units: 0,
            told: 0,
            has_place: false,
            on: None,
            started: None,
            finished: None,
        }
    }

    fn units_in_all(&self) -> u64 {
        self.task.total_steps as u64 * UNITS
    }

    /// Takes these iterations of one part each, up to the last step. Returns the trained units.
    pub(super) fn advance(&mut self, iterations: u64, parts: usize) -> u64 {
        let left = self.units_in_all() - self.units;
        let units = iterations.saturating_mul(units_per_iteration(parts));
        let trained = units.min(left);
        self.units += trained;
        trained
    }

    /// Iterations until it is done.
    pub(super) fn iterations_left(&self, parts: usize) -> u64 {
        let left = self.units_in_all() - self.units;
        left.div_ceil(units_per_iteration(parts))
    }

    /// Whole steps taken.
    pub(super) fn steps(&self) -> usize {
        (self.units / UNITS) as usize
    }

    pub(super) fn is_complete(&self) -> bool {
        self.units == self.units_in_all()
    }

    pub(super) fn share(&self, member: Member) -> Share {
        Share::of(&self.task, member.parts)
    }

    /// Seconds of its trained tokens without constant costs and padding.
    pub(super) fn useful_seconds(&self, costs: &Costs) -> f64 {
        let steps = self.units as f64 / UNITS as f64;
        costs.useful_seconds(Share::of(&self.task, 1)) * steps
    }
}

/// Units of one of `parts` parts. If the number does not divide a step, the last part is smaller.
fn units_per_iteration(parts: usize) -> u64 {
    UNITS.div_ceil(parts.max(1) as u64).max(1)
}

/// The longest replay in years: mistakes in a trace or a load reach beyond it, and no job does.
pub(super) const MOST_YEARS: f64 = 100.0;
/// Seconds of a year.
pub(super) const YEAR: f64 = 365.25 * 86_400.0;

/// The steps of the clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClockStep {
    /// From event to event: iterations without consequences are counted at once. A decision is made at
    /// arrivals, ends, the first measurement of a batch, and when one is due.
    Events,
    /// Iteration by iteration, with the same decisions.
    Iterations,
    /// Iteration by iteration, with a decision after each, as in training.
    Decisions,
}

/// The result of a replay.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Replay {
    /// Every job, in order of arrival.
    pub jobs: Vec<ReplayedJob>,
    /// Numbers of training and waiting jobs, at each change.
    pub job_counts: Vec<JobCounts>,
    /// Every decision, in order.
    pub decisions: Vec<DecisionTime>,
    /// Devices.
    pub devices: usize,
    /// Iterations of all devices.
    pub iterations: u64,
    /// Iterations that would have needed more memory than a device has.
    pub iterations_out_of_memory: u64,
    /// Bytes of the largest iteration.
    pub largest_bytes: f64,
    /// Nanoseconds that all devices trained, added up.
    pub busy_nanoseconds: u128,
    /// Seconds that the same tokens would have taken without constant costs and padding, added up.
    pub useful_seconds: f64,
    /// Trained tokens, without padding.
    pub tokens: u64,
    /// Those until the last job arrived.
    pub tokens_while_arriving: u64,
    /// Number of times that a task was parked.
    pub preemptions: usize,
    /// Decisions that moved tasks between groups.
    pub regroupings: usize,
    /// Largest difference of service between two tenants in tokens, over all spans between two decisions in
    /// which both wait.
    pub fairness_gap: u64,
}

/// Times of a job, in nanoseconds after the first arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplayedJob {
    /// Its arrival.
    pub arrival: u64,
    /// Its first admission.
    pub started: u64,
    /// End of its last step.
    pub finished: u64,
    /// Steps that it took.
    pub steps: usize,
}

/// Numbers of jobs from a time on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobCounts {
    /// Nanoseconds after the first arrival.
    pub nanoseconds: u64,
    /// Jobs that train.
    pub running: usize,
    /// Jobs that wait.
    pub waiting: usize,
}

/// Duration of a decision, on this machine's own clock.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DecisionTime {
    /// Jobs that waited before it.
    pub waiting: usize,
    /// Seconds.
    pub seconds: f64,
}

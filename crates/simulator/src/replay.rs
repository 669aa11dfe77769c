/// What happened on the virtual clock.
#[derive(Debug, Clone, PartialEq)]
pub struct Replay {
    /// Every job, in order of arrival.
    pub jobs: Vec<ReplayedJob>,
    /// How many jobs trained and waited, whenever it changed.
    pub moments: Vec<Moment>,
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
    /// Nanoseconds that devices trained, together.
    pub busy_nanoseconds: u64,
    /// Seconds that devices with nothing else to pay for would have spent on the same tokens,
    /// together: no constant, no padding.
    pub useful_seconds: f64,
    /// Tokens that were trained, without padding.
    pub tokens: u64,
    /// Those until the last job arrived.
    pub tokens_while_arriving: u64,
    /// Times that a task gave its place away before its end.
    pub preemptions: usize,
    /// Decisions that moved tasks between groups.
    pub regroupings: usize,
    /// Tokens: the largest difference of service between two tenants, over all spans from one
    /// decision to another in which both wait.
    pub fairness_gap: u64,
}

/// What became of a job; nanoseconds after the first arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplayedJob {
    /// When it came.
    pub arrival: u64,
    /// When it first had a place.
    pub started: u64,
    /// When its last step ended.
    pub finished: u64,
    /// Steps it took.
    pub steps: usize,
}

/// How many jobs there are from a time on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// Nanoseconds after the first arrival.
    pub nanoseconds: u64,
    /// Jobs with a place.
    pub running: usize,
    /// Jobs without one.
    pub waiting: usize,
}

/// What a decision took, on this machine's own clock.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DecisionTime {
    /// Jobs without a place before it.
    pub waiting: usize,
    /// Seconds.
    pub seconds: f64,
}

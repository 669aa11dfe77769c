use super::{Costs, Padding};

/// Devices to replay on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Devices {
    /// How many; each has the whole backbone and trains one group. A pipeline of so many stages that
    /// is never idle is the same thing if its groups take equally long.
    pub count: usize,
    /// What iterations take.
    pub costs: Costs,
    /// Whether batches are padded.
    pub padding: Padding,
    /// Standard deviation of measured seconds, relative to the true ones, which the clock has.
    pub noise: f64,
    /// Seed of the noise.
    pub seed: u64,
    /// Seconds after which a decision is asked for again though there is no news, while something
    /// trains: for policies that go by what was trained meanwhile. `None` waits for news.
    pub decide_every: Option<f64>,
}

/// Settings under which a sweep could never be judged.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SweepError {
    /// A rung at step 0 would compare trials that have learned nothing.
    #[error("the grace period is 0 steps, it must be at least 1")]
    NoGracePeriod,
    /// One in one goes on: nothing would ever be stopped.
    #[error("the reduction factor is {0}, it must be at least 2")]
    ReductionFactor(usize),
    /// A loss that falls from the start would be called diverged.
    #[error("the multiple of the first loss is {0}, it must be finite and above 1")]
    Multiple(f64),
}

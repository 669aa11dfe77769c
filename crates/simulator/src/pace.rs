/// How the clock goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// From event to event: iterations that change nothing are counted in one go. Decisions are
    /// asked for at arrivals, ends, first measurements of a batch, and when they are due.
    Events,
    /// Iteration by iteration, with the same decisions.
    Iterations,
    /// Iteration by iteration, with a decision at the end of every one, as a trainer does.
    Decisions,
}

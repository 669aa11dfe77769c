use std::collections::BTreeSet;

use crate::TaskId;

/// When the first task that does not fit starts, as it was predicted when it began to wait.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Reservation {
    pub(super) head: TaskId,
    /// Those before it then. It stands as long as nobody else comes before the head.
    pub(super) ahead: BTreeSet<TaskId>,
    /// In the caller's seconds.
    pub(super) start: f64,
}

impl Reservation {
    /// Whether it is that of `head`, and only those it counted on are before it.
    pub(super) fn stands(&self, head: TaskId, ahead: &[TaskId]) -> bool {
        self.head == head && ahead.iter().all(|task| self.ahead.contains(task))
    }
}

/// What a head waits for, as it looks in one decision.
#[derive(Debug, Clone)]
pub(super) struct Forecast {
    /// The tasks that have to end before it fits; the first to end of those before it.
    pub(super) blockers: Vec<TaskId>,
    /// The latest start that a task behind it may cause.
    pub(super) limit: f64,
    /// When it starts, with all that run now.
    pub(super) start: f64,
}

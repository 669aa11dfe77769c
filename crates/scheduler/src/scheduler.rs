use crate::{Decision, Outcome, SchedulerError, Task, TaskId, TaskState};

/// Decides at every iteration boundary which tasks train, and in which groups.
pub trait Scheduler {
    /// Puts a task into the queue.
    ///
    /// # Errors
    /// [`SchedulerError::DuplicateTask`] if its identity was used before.
    fn submit(&mut self, task: Task) -> Result<(), SchedulerError>;

    /// Moves tasks from the queue to the running ones and groups all that run.
    ///
    /// Asking again without news in between admits nobody and names the same groups.
    fn decide(&mut self) -> Decision;

    /// Ends a task: a running one for any outcome, a queued one only by cancelling it.
    /// Its place is given away by the next [`decide`](Self::decide).
    ///
    /// # Errors
    /// [`SchedulerError::UnknownTask`] for a task never submitted,
    /// [`SchedulerError::IllegalTransition`] for one that cannot end so.
    fn finish(&mut self, task: TaskId, outcome: Outcome) -> Result<(), SchedulerError>;

    /// Where a task stands; `None` if it was never submitted.
    fn state(&self, task: TaskId) -> Option<TaskState>;
}

use crate::{Decision, Member, Outcome, SchedulerError, Task, TaskId};

/// What the virtual clock asks of a scheduler: what a trainer asks of it, and nothing more.
pub trait Driver {
    /// A task arrives.
    ///
    /// # Errors
    /// Whatever the scheduler refuses.
    fn submit(&mut self, task: Task) -> Result<(), SchedulerError>;

    /// An iteration boundary, these seconds after the first arrival.
    fn decide(&mut self, seconds: f64) -> Decision;

    /// A task has taken this many whole steps in all.
    fn progressed(&mut self, task: TaskId, steps: usize);

    /// An iteration of these members was measured: its seconds, and the bytes it held at most.
    fn measured(&mut self, members: &[Member], seconds: f64, bytes: f64);

    /// A task has ended.
    ///
    /// # Errors
    /// Whatever the scheduler refuses.
    fn finish(&mut self, task: TaskId, outcome: Outcome) -> Result<(), SchedulerError>;
}

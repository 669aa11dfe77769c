use crate::{Decision, Member, Outcome, SchedulerError, Task, TaskId};

/// What the virtual clock asks of a scheduler: what a trainer asks of it, and nothing more.
pub trait Driver {
    /// A task arrives, these seconds after the first.
    ///
    /// # Errors
    /// Whatever the scheduler refuses.
    fn submit(&mut self, task: Task, seconds: f64) -> Result<(), SchedulerError>;

    /// An iteration boundary.
    fn decide(&mut self, seconds: f64) -> Decision;

    /// A task has taken so many more whole steps. It may have given its place away while it took the
    /// last of them.
    ///
    /// # Errors
    /// Whatever the scheduler refuses.
    fn progressed(&mut self, task: TaskId, steps: usize) -> Result<(), SchedulerError>;

    /// An iteration of these members was measured: its seconds, and the bytes it held at most.
    fn measured(&mut self, members: &[Member], seconds: f64, bytes: f64);

    /// A task has ended.
    ///
    /// # Errors
    /// Whatever the scheduler refuses.
    fn finish(
        &mut self,
        task: TaskId,
        outcome: Outcome,
        seconds: f64,
    ) -> Result<(), SchedulerError>;
}

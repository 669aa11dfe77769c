use crate::{
    Decision, Forecasts, History, MeasuredIteration, OutOfMemory, Outcome, Past, SchedulerError,
    Task, TaskId, TaskState,
};

/// Decides at every iteration boundary which tasks train, and in which groups.
pub trait Scheduler {
    /// Puts a task into the queue.
    ///
    /// # Errors
    /// [`SchedulerError::DuplicateTask`] if its identity was used before.
    fn submit(&mut self, task: Task) -> Result<(), SchedulerError>;

    /// Takes up a task from before a restart. Whoever keeps nothing of it takes it as new.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    fn restore(&mut self, task: Task, past: Past) -> Result<(), SchedulerError> {
        let _ = past;
        self.submit(task)
    }

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

    /// Learns what an iteration took.
    ///
    /// # Errors
    /// [`SchedulerError::UnknownTask`], [`SchedulerError::NotRunning`] for a task that did not train.
    fn measured(&mut self, iteration: &MeasuredIteration) -> Result<(), SchedulerError> {
        let _ = iteration;
        Ok(())
    }

    /// A device ran out of memory: says who gives its place away. Whoever does not know parks nobody.
    fn out_of_memory(&mut self) -> OutOfMemory {
        OutOfMemory::NobodyRuns
    }

    /// Why a task waits, if it is known.
    fn why(&self, task: TaskId) -> Option<String> {
        let _ = task;
        None
    }

    /// How good predictions of memory were.
    fn forecasts(&self) -> Forecasts {
        Forecasts::default()
    }

    /// What is to be remembered for a restart. Whoever keeps nothing says nothing.
    fn history(&self) -> History {
        History::default()
    }

    /// Where a task stands; `None` if it was never submitted.
    fn state(&self, task: TaskId) -> Option<TaskState>;
}

use crate::{TaskId, TaskState};

/// What a scheduler refuses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SchedulerError {
    /// No task with this identity was ever submitted.
    #[error("{0} was never submitted")]
    UnknownTask(TaskId),
    /// An identity was submitted a second time.
    #[error("{id} (`{name}`) was already submitted as `{existing}`")]
    DuplicateTask {
        /// The identity both carry.
        id: TaskId,
        /// Name of the refused task.
        name: String,
        /// Name of the task that has the identity.
        existing: String,
    },
    /// The state machine has no such step.
    #[error("`{name}` is {from} and cannot become {to}")]
    IllegalTransition {
        /// Name of the task.
        name: String,
        /// Its state.
        from: TaskState,
        /// The state asked for.
        to: TaskState,
    },
    /// A cap of zero would keep every task waiting for ever.
    #[error("max_adapters is 0, so no adapter could ever train")]
    NoPlaces,
    /// Without a device there is nowhere to train.
    #[error("there is no device, so no group could ever train")]
    NoDevices,
    /// Nobody can be held back less than not at all.
    #[error("max_slowdown is {0}, but a task that has its share to itself has a slowdown of 1")]
    SlowdownBound(String),
    /// A gain that is a loss.
    #[error("the least gain of a regrouping is {0}, and must not be negative")]
    NegativeGain(String),
}

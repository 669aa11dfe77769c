use crate::{TaskId, TaskState};

/// Errors of the scheduler.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SchedulerError {
    /// No task has this identity.
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
    /// The state machine has no such transition.
    #[error("`{name}` is {from} and cannot become {to}")]
    IllegalTransition {
        /// Name of the task.
        name: String,
        /// Its state.
        from: TaskState,
        /// The state asked for.
        to: TaskState,
    },
    /// A cap of zero would keep all tasks waiting for ever.
    #[error("max_adapters is 0, so no adapter could ever train")]
    NoPlaces,
    /// A device's share of each adapter is negative or not finite.
    #[error("`{device}` holds {share} of each adapter; a share must be finite and at least 0")]
    AdapterShare {
        /// Name of the device.
        device: String,
        /// The number.
        share: String,
    },
    /// There is no device to train on.
    #[error("there is no device, so no group could ever train")]
    NoDevices,
    /// A task does not fit even alone.
    #[error("`{name}` cannot train here even alone: {reason}")]
    NeverFits {
        /// Name of the refused task.
        name: String,
        /// The missing resource, with the numbers.
        reason: String,
    },
    /// Steps were reported for a task that does not run.
    #[error("`{name}` is {state} and cannot have taken steps")]
    NotRunning {
        /// Name of the task.
        name: String,
        /// Its state.
        state: TaskState,
    },
    /// An option of the scheduler or a coefficient of its models is out of its range.
    #[error("{option} is {given}, but {wanted}")]
    OutOfRange {
        /// Its name.
        option: String,
        /// Its value.
        given: String,
        /// The rule that it breaks.
        wanted: &'static str,
    },
}

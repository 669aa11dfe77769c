use crate::TaskId;

/// What happens in the next iteration.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Decision {
    /// Tasks that leave the queue now, in the order they do.
    pub admitted: Vec<Admission>,
    /// All running tasks: each inner list is trained as one batch, in its order. Tasks that run on
    /// keep their relative order from one decision to the next. Empty when nothing is left to train.
    pub groups: Vec<Vec<TaskId>>,
}

/// A task that starts to run, and why it is its turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admission {
    /// The task.
    pub task: TaskId,
    /// Why now, for people: shown by progress displays and kept in the event log.
    pub reason: String,
}

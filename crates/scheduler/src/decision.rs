use crate::{Member, TaskId};

/// Changes before the next iteration: tasks are parked, then others admitted, then groups formed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Decision {
    /// Running tasks that lose their places now; they keep their state.
    pub parked: Vec<Parking>,
    /// Tasks that begin or go on now, in order.
    pub admitted: Vec<Admission>,
    /// All running tasks: each inner list is trained as one batch, in its order. Tasks that run on keep
    /// their relative order. Empty when no task trains.
    pub groups: Vec<Vec<Member>>,
    /// Bytes that the running tasks are expected to take of all devices, if that is predicted.
    pub expected_bytes: Option<u64>,
    /// The reason why tasks that run on have changed their group; `None` if none has.
    pub regrouped: Option<String>,
    /// Most optimizer steps before the next decision; 0 counts as 1. With `None` the trainer decides again
    /// when a step has consequences.
    pub max_steps: Option<usize>,
}

/// A task that begins, or goes on after it was parked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admission {
    /// The task.
    pub task: TaskId,
    /// The reason, shown by progress displays and written to the event log.
    pub reason: String,
}

/// A running task that loses its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parking {
    /// The task.
    pub task: TaskId,
    /// The task that takes its place, if one does.
    pub by: Option<TaskId>,
    /// The reason.
    pub reason: String,
}

use crate::{Member, TaskId};

/// What happens in the next iteration. Tasks are parked first, then others take their places, then
/// groups are formed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Decision {
    /// Running tasks that leave their places now; nothing of them is lost.
    pub parked: Vec<Parking>,
    /// Tasks that begin or go on now, in the order they do.
    pub admitted: Vec<Admission>,
    /// All running tasks: each inner list is trained as one batch, in its order. Tasks that run on
    /// keep their relative order from one decision to the next. Empty when nothing is left to train.
    pub groups: Vec<Vec<Member>>,
    /// Bytes that the running tasks are expected to take of all devices at the most, if that is
    /// predicted.
    pub expected_bytes: Option<u64>,
    /// Why tasks that run on have changed their group; `None` if none has.
    pub regrouped: Option<String>,
    /// Ask again after this many optimizer steps at the latest; `None` leaves it to the trainer, which
    /// asks again when something follows from a step. 0 counts as 1.
    pub max_steps: Option<usize>,
}

/// A task that starts to run, or goes on after it was parked, and why it is its turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admission {
    /// The task.
    pub task: TaskId,
    /// Why now, for people: shown by progress displays and kept in the event log.
    pub reason: String,
}

/// A running task that gives its place away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parking {
    /// The task.
    pub task: TaskId,
    /// The task that takes its place, if it is one.
    pub by: Option<TaskId>,
    /// Why, for people.
    pub reason: String,
}

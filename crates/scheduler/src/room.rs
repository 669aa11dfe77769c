use crate::{Task, TaskId};

/// Where tasks train: it says whether one more fits, and into which group.
///
/// A policy decides whose turn it is; a room decides what can train together. It knows memory, step
/// times and how many groups there are, and nothing of queues, priorities or tenants.
pub trait Room {
    /// Whether `task` could ever train here, with nothing beside it.
    ///
    /// # Errors
    /// A [`Refusal`] with the numbers if it could not.
    fn admits_alone(&self, task: &Task) -> Result<(), Refusal>;

    /// Takes every task out.
    fn clear(&mut self);

    /// Puts `task` beside those that are there: into `group`, where it trains now, if it still fits
    /// there, or else into the group that suits it best. Returns the group.
    ///
    /// # Errors
    /// A [`Refusal`] if it fits nowhere; the room is as it was.
    fn place(&mut self, task: &Task, group: Option<usize>) -> Result<usize, Refusal>;

    /// Takes `task` out, if it is there.
    fn remove(&mut self, task: TaskId);

    /// Moves tasks between groups if enough is gained by it, and says why; `None` if nothing moved.
    fn regroup(&mut self) -> Option<String>;

    /// The groups, in the order of their numbers, each with its tasks in the order they came.
    fn groups(&self) -> Vec<Vec<Member>>;

    /// Seconds between two optimizer steps of `task` among those that are there now; `None` while
    /// nothing is known of step times, or if it is not there.
    fn seconds_per_step(&self, task: TaskId) -> Option<f64>;
}

/// A task in a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// The task.
    pub task: TaskId,
    /// Iterations that one optimizer step of it is spread over, each with a part of its rows
    /// (tLoRA's nano-batches); 1 takes a whole step in every iteration.
    pub parts: usize,
}

/// Why a task finds no place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// What is missing, with the numbers, for people.
    pub reason: String,
}

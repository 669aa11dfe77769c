use crate::{Forecasts, Learnt, Load, MeasuredIteration, Task, TaskId};

/// Where tasks train: it says whether one more fits, and into which group.
///
/// A policy decides whose turn it is; a room decides what can train together. It knows memory, step
/// times and how many groups there are, and nothing of queues, priorities or tenants. It may learn
/// from what iterations take.
pub trait Room {
    /// Whether `task` could ever train here, with nothing beside it.
    ///
    /// # Errors
    /// A [`Refusal`] with the numbers if it could not.
    fn admits_alone(&self, task: &Task) -> Result<(), Refusal> {
        let _ = task;
        Ok(())
    }

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
    fn regroup(&mut self) -> Option<String> {
        None
    }

    /// The groups, in the order of their numbers, each with its tasks in the order they came.
    fn groups(&self) -> Vec<Vec<Member>>;

    /// Seconds between two optimizer steps of `task` among those that are there now; `None` while
    /// nothing is known of step times, or if it is not there.
    fn seconds_per_step(&self, task: TaskId) -> Option<f64> {
        let _ = task;
        None
    }

    /// The tasks that are there train from now on. Returns the bytes that they are expected to take of
    /// all devices, if that is predicted.
    fn run(&mut self) -> Option<u64> {
        None
    }

    /// Optimizer steps after which it will have learnt something that a decision may need, given
    /// whether the last decision admitted a task and whether tasks wait; `None` if nothing.
    fn learns_after(&self, admitted: bool, waiting: bool) -> Option<usize> {
        let _ = (admitted, waiting);
        None
    }

    /// Learns from an iteration; its load includes the adapters.
    fn measured(&mut self, iteration: &MeasuredIteration) {
        let _ = iteration;
    }

    /// Memory ran out while tasks with this load trained.
    fn out_of_memory(&mut self, load: Load) {
        let _ = load;
    }

    /// Everything learnt so far, for a restart; `None` if nothing is learnt here.
    fn learnt(&self) -> Option<Learnt> {
        None
    }

    /// The errors of past predictions of memory.
    fn forecasts(&self) -> Forecasts {
        Forecasts::default()
    }
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

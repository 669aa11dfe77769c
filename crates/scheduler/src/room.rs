use crate::{Forecasts, Learnt, Load, Measurement, Task, TaskId, Work};

/// Decides whether one more task fits, and into which group.
///
/// A policy orders tasks; a room says which of them can train together. It knows memory, step times and
/// the number of groups, but no queues, priorities or tenants. It may learn from measured iterations.
pub trait Room {
    /// Checks that `task` could train here alone.
    ///
    /// # Errors
    /// A [`Refusal`] with the numbers if it could not.
    fn admits_alone(&self, _task: &Task) -> Result<(), Refusal> {
        Ok(())
    }

    /// Removes all tasks.
    fn clear(&mut self);

    /// Adds `task`: to `group`, where it trains now, if it still fits there, or else to the group that
    /// suits it best. Returns the group.
    ///
    /// # Errors
    /// A [`Refusal`] if it fits nowhere; the room is unchanged.
    fn place(&mut self, task: &Task, group: Option<usize>) -> Result<usize, Refusal>;

    /// Removes `task`, if it is there.
    fn remove(&mut self, task: TaskId);

    /// Moves tasks between groups if that gains enough. Returns the reason; `None` if no task moved.
    fn regroup(&mut self) -> Option<String> {
        None
    }

    /// The groups by number, each with its tasks in the order in which they were added.
    fn groups(&self) -> Vec<Vec<Member>>;

    /// Seconds between two optimizer steps of `task` beside the tasks that are there now; `None` while step
    /// times are unknown, or if it is not there.
    fn seconds_per_step(&self, _task: TaskId) -> Option<f64> {
        None
    }

    /// The tasks that are there train from now on. Returns the bytes that they are expected to take of all
    /// devices, if that is predicted.
    fn run(&mut self) -> Option<u64> {
        None
    }

    /// Optimizer steps after which measurements may change a decision, given whether the last decision
    /// admitted a task and whether tasks wait; `None` if they never do.
    fn learns_after(&self, _admitted: bool, _waiting: bool) -> Option<usize> {
        None
    }

    /// Learns from an iteration; its load includes the adapters.
    fn measured(&mut self, _iteration: &MeasuredIteration) {}

    /// Memory ran out while tasks with this load trained.
    fn out_of_memory(&mut self, _load: Load) {}

    /// Everything learnt so far, for a restart; `None` if the room does not learn.
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

/// The reason why a task does not fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Message that names the missing resource and its numbers.
    pub reason: String,
}

/// The work, time and memory of an iteration.
#[derive(Debug, Clone, PartialEq)]
pub struct MeasuredIteration {
    /// Tasks that trained.
    pub tasks: Vec<MeasuredTask>,
    /// Work of all groups together.
    pub work: Work,
    /// Seconds that a device was busy with it: with several stages, without the bubble.
    pub seconds: f64,
    /// Load of all groups together, by their real tokens.
    pub load: Load,
    /// Memory of each device, in the order of the room's budgets; empty if none was measured.
    pub memory: Vec<Measurement>,
}

/// A task's part in an iteration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MeasuredTask {
    /// The task.
    pub task: TaskId,
    /// Optimizer steps that it ended: 1, or 0 if a part of its step is still to come.
    pub steps: usize,
    /// Its tokens.
    pub tokens: u64,
}

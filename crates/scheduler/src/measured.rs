use crate::{Load, Measurement, TaskId, Work};

/// What an iteration did and took, for a scheduler to learn from.
#[derive(Debug, Clone, PartialEq)]
pub struct MeasuredIteration {
    /// Tasks that trained.
    pub tasks: Vec<MeasuredTask>,
    /// What all groups together had to do.
    pub work: Work,
    /// Seconds that a device was busy with it: with several stages, without the bubble.
    pub seconds: f64,
    /// What all groups together asked of memory: their real tokens.
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

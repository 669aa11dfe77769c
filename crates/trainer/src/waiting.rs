use crate::{adapter::ModelAdapter, task::TrainingTask};

/// A task without a place in the stages: it has not begun, or was parked.
#[derive(Debug)]
pub(crate) struct WaitingTask {
    pub(crate) task: TrainingTask,
    /// Its adapter and moments, in the host's memory; `None` before it has begun.
    pub(crate) adapter: Option<ModelAdapter>,
}

impl WaitingTask {
    /// A task that has not begun.
    pub(crate) fn new(task: TrainingTask) -> Self {
        Self {
            task,
            adapter: None,
        }
    }
}

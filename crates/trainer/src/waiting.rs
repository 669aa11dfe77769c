use std::collections::HashMap;

use loraloom_scheduler::{Past, Scheduler, SchedulerError, TaskId, TaskState};

use crate::{
    adapter::ModelAdapter,
    scheduling::{adapter_bytes, described},
    task::TrainingTask,
};

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

    /// Tells a scheduler of the task, and how far it is.
    pub(crate) fn submit<S: Scheduler + ?Sized>(
        &self,
        scheduler: &mut S,
        initial: &HashMap<TaskId, ModelAdapter>,
        split: usize,
    ) -> Result<(), SchedulerError> {
        let adapter = self.adapter.as_ref();
        let adapter = adapter.or_else(|| initial.get(&self.task.id));
        let bytes = adapter.map_or(0, adapter_bytes);
        let task = described(&self.task, bytes, split);
        if self.adapter.is_none() {
            return scheduler.submit(task);
        }
        let past = Past {
            state: TaskState::Parked,
            steps_taken: self.task.steps,
            waited: 0.0,
        };
        scheduler.restore(task, past)
    }
}

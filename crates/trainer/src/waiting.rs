use loraloom_scheduler::{Past, Scheduler, SchedulerError, TaskState};

use crate::{adapter::ModelAdapter, scheduling::described, task::TrainingTask};

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

    /// Tells a scheduler of the task, whose adapter takes so many bytes in all, and how far it is.
    pub(crate) fn submit<S: Scheduler + ?Sized>(
        &self,
        scheduler: &mut S,
        adapter_bytes: u64,
        split: usize,
    ) -> Result<(), SchedulerError> {
        let task = described(&self.task, adapter_bytes, split);
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

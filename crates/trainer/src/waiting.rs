use loraloom_scheduler::{Past, Room, Scheduler, SchedulerError, TaskState};

use crate::{adapter::ModelAdapter, scheduling::described, task::TrainingTask};

/// A task without a place in the stages: it has not begun, or was parked.
#[derive(Debug, Clone)]
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

    /// Tells a scheduler of the task at `now`: its adapter takes so many bytes in all, and it has waited
    /// so many seconds.
    pub(crate) fn submit<R: Room>(
        &self,
        scheduler: &mut Scheduler<R>,
        adapter_bytes: u64,
        split: usize,
        waited: f64,
        now: f64,
    ) -> Result<(), SchedulerError> {
        let task = described(&self.task, adapter_bytes, split);
        let state = match self.adapter {
            None => TaskState::Queued,
            Some(_) => TaskState::Parked,
        };
        let past = Past {
            state,
            steps_taken: self.task.steps,
            waited,
        };
        scheduler.restore(task, past, now)
    }
}

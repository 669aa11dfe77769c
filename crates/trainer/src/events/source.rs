//! Tasks that join a run while it trains.

use loraloom_config::{AdapterConfig, DatasetConfig, EarlyStopping};
use loraloom_scheduler::TaskId;

use super::Event;
use crate::{DeviceRoom, SourceError};

/// A task that joins a run.
#[derive(Debug, Clone, PartialEq)]
pub struct NewTask {
    /// Identity, never reused; orders tasks of one priority.
    pub id: TaskId,
    /// What to train.
    pub adapter: AdapterConfig,
    /// Its dataset.
    pub dataset: DatasetConfig,
    /// Seed of the choice of validation rows.
    pub seed: u64,
    /// Digest of its rows at submission; the task fails if they differ now.
    pub digest: String,
    /// Its sweep, if that uses early stopping.
    pub sweep: Option<(String, EarlyStopping)>,
    /// True if its owner paused it.
    pub paused: bool,
}

/// An instruction to a run, carried out between two iterations.
#[derive(Debug, Clone, PartialEq)]
pub enum TaskCommand {
    /// Train this task, from its checkpoint if it has one. A failed task is resumed.
    Train(Box<NewTask>),
    /// Pause a task.
    Pause(TaskId),
    /// Queue a paused task again.
    Resume(TaskId),
    /// End a task; its checkpoints stay.
    Cancel(TaskId),
    /// End a task with an error, for this reason.
    Fail(TaskId, String),
    /// Keep the last checkpoint of a failed task of this name, since it may be resumed.
    Keep(TaskId, String),
}

/// Receives the events of a run, and provides the tasks of [`Run::serve`](crate::Run::serve). A closure only receives
/// events.
pub trait TaskSource {
    /// Receives an event of the run.
    fn event(&mut self, event: &Event);

    /// Receives the memory of the run's devices, once.
    ///
    /// # Errors
    /// Any error ends the run after everything is saved.
    fn rooms(&mut self, _rooms: &[DeviceRoom]) -> Result<(), SourceError> {
        Ok(())
    }

    /// Instructions to carry out before the next iteration; `None` ends the run. `idle` is true if no task trains:
    /// then this may wait briefly for commands.
    ///
    /// # Errors
    /// As [`rooms`](Self::rooms).
    fn commands(&mut self, idle: bool) -> Result<Option<Vec<TaskCommand>>, SourceError>;

    /// Receives, after a decision, the reason why each live task trains or waits.
    ///
    /// # Errors
    /// As [`rooms`](Self::rooms).
    fn decided(&mut self, _reasons: &[(TaskId, String)]) -> Result<(), SourceError> {
        Ok(())
    }
}

impl<F: FnMut(&Event)> TaskSource for F {
    fn event(&mut self, event: &Event) {
        self(event);
    }

    fn commands(&mut self, _idle: bool) -> Result<Option<Vec<TaskCommand>>, SourceError> {
        Ok(None)
    }
}

//! Tasks that come to a run while it trains.

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
    /// Chooses the dataset's validation rows.
    pub seed: u64,
    /// Digest of its rows at submission; the task fails if they differ now.
    pub digest: String,
    /// Its sweep, if that stops trials early.
    pub sweep: Option<(String, EarlyStopping)>,
    /// Whether its owner paused it.
    pub paused: bool,
}

/// An instruction to a run, carried out between two iterations.
#[derive(Debug, Clone, PartialEq)]
pub enum Order {
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

/// The other side of a run: it listens to events, and tasks of [`Run::serve`](crate::Run::serve) come
/// from it. A closure only listens.
pub trait TaskSource {
    /// Receives an event of the run.
    fn event(&mut self, event: &Event);

    /// Receives the memory of the run's devices, once.
    ///
    /// # Errors
    /// Any error ends the run, with everything saved.
    fn rooms(&mut self, _rooms: &[DeviceRoom]) -> Result<(), SourceError> {
        Ok(())
    }

    /// Instructions to carry out before the next iteration; `None` ends the run. If no task trains, `idle`
    /// is set, and this may wait a moment for something to do.
    ///
    /// # Errors
    /// As [`rooms`](Self::rooms).
    fn orders(&mut self, idle: bool) -> Result<Option<Vec<Order>>, SourceError>;

    /// Receives, after a decision, why each live task trains or waits.
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

    fn orders(&mut self, _idle: bool) -> Result<Option<Vec<Order>>, SourceError> {
        Ok(None)
    }
}

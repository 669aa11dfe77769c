//! Tasks as `--json` prints them and as HTTP answers.

use loraloom_scheduler::{TaskId, TaskState};
use serde::Serialize;

use crate::{
    Submitted,
    queue::{HistoryEntry, QueuedTask},
};

/// The tasks of a submission.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SubmittedTasks {
    /// In the order of the configuration.
    pub tasks: Vec<Submitted>,
}

/// A task after a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AskedTask {
    /// Its number.
    pub id: TaskId,
    /// Its name.
    pub name: String,
    /// Its state.
    pub state: TaskState,
    /// A request that the server has not carried out yet.
    pub requested: Option<String>,
}

/// A task with its history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExplainedTask {
    /// Its number.
    pub id: TaskId,
    /// Its name.
    pub name: String,
    /// Its state.
    pub state: TaskState,
    /// The reason of its state.
    pub reason: String,
    /// The reason why it runs or waits.
    pub explanation: String,
    /// In order of time.
    pub events: Vec<ExplainedEvent>,
}

/// An entry of a task's history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExplainedEvent {
    /// The kind.
    pub event: String,
    /// The reason.
    pub reason: String,
}

impl From<QueuedTask> for AskedTask {
    fn from(task: QueuedTask) -> Self {
        Self {
            id: task.id,
            name: task.name,
            state: task.state,
            requested: task.requested.map(|request| request.to_string()),
        }
    }
}

impl ExplainedTask {
    /// Puts a task and its history together.
    pub fn new(task: QueuedTask, events: Vec<HistoryEntry>) -> Self {
        let explained = |event: HistoryEntry| ExplainedEvent {
            event: event.kind.to_string(),
            reason: event.reason,
        };
        Self {
            id: task.id,
            name: task.name,
            state: task.state,
            reason: task.reason,
            explanation: task.explanation,
            events: events.into_iter().map(explained).collect(),
        }
    }
}

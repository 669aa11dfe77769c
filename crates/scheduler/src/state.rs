use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{SchedulerError, Task};

/// A task's state: the one state machine of scheduler, trainer and queue.
///
/// ```text
/// queued ──► running ⇄ parked
///               └─────────┴──► done
/// queued, running, parked ──► paused ──► queued | parked
/// queued, running, parked, paused ─────► failed | cancelled
/// failed ──────────────────────────────► queued | parked
/// ```
///
/// A paused or failed task that is resumed becomes queued if it never trained, otherwise parked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TaskState {
    /// Waits for its first step.
    Queued,
    /// Trains in every iteration.
    Running,
    /// Has trained, left its place, and waits for one; it continues at its own next step.
    Parked,
    /// Paused by its owner; asks for no place.
    Paused,
    /// Took all its steps, or stopped early as configured.
    Done,
    /// Ended by an error of its own.
    Failed,
    /// Ended by its owner.
    Cancelled,
}

/// How a task ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TaskOutcome {
    /// Took all its steps, or stopped early as configured.
    Done,
    /// Ended by an error of its own.
    Failed,
    /// Ended by its owner.
    Cancelled,
}

impl TaskState {
    /// Every state.
    pub const ALL: [Self; 7] = [
        Self::Queued,
        Self::Running,
        Self::Parked,
        Self::Paused,
        Self::Done,
        Self::Failed,
        Self::Cancelled,
    ];

    /// The state's name, in files and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Parked => "parked",
            Self::Paused => "paused",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// The state with this name.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == word)
    }

    /// The state as the end of a sentence about a task: "is queued", "has failed".
    pub fn predicate(self) -> &'static str {
        match self {
            Self::Queued => "is queued",
            Self::Running => "is running",
            Self::Parked => "is parked",
            Self::Paused => "is paused",
            Self::Done => "is done",
            Self::Failed => "has failed",
            Self::Cancelled => "is cancelled",
        }
    }

    /// True if a task in this state has ended. Only a failed one can be resumed.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Done | Self::Failed | Self::Cancelled)
    }

    /// True if a task in this state asks for a place that it does not have.
    pub fn is_waiting(self) -> bool {
        matches!(self, Self::Queued | Self::Parked)
    }

    /// True if a task may go from this state to `next`.
    pub fn can_become(self, next: Self) -> bool {
        match self {
            Self::Queued => matches!(
                next,
                Self::Running | Self::Paused | Self::Failed | Self::Cancelled
            ),
            Self::Running => matches!(next, Self::Parked | Self::Paused) || next.is_final(),
            Self::Parked => matches!(next, Self::Running | Self::Paused) || next.is_final(),
            Self::Paused => matches!(
                next,
                Self::Queued | Self::Parked | Self::Failed | Self::Cancelled
            ),
            Self::Failed => next.is_waiting(),
            Self::Done | Self::Cancelled => false,
        }
    }

    /// Goes to `next`, if there is such an arrow; `task` is whose state it is.
    pub(crate) fn enter(&mut self, next: Self, task: &Task) -> Result<(), SchedulerError> {
        if !self.can_become(next) {
            return Err(SchedulerError::IllegalTransition {
                name: task.name.clone(),
                from: *self,
                to: next,
            });
        }
        *self = next;
        Ok(())
    }
}

impl From<TaskOutcome> for TaskState {
    fn from(outcome: TaskOutcome) -> Self {
        match outcome {
            TaskOutcome::Done => Self::Done,
            TaskOutcome::Failed => Self::Failed,
            TaskOutcome::Cancelled => Self::Cancelled,
        }
    }
}

impl fmt::Display for TaskState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Load, TaskId};

    #[test]
    fn exactly_the_drawn_arrows_are_legal() {
        let legal = [
            (TaskState::Queued, TaskState::Running),
            (TaskState::Queued, TaskState::Paused),
            (TaskState::Queued, TaskState::Failed),
            (TaskState::Queued, TaskState::Cancelled),
            (TaskState::Running, TaskState::Parked),
            (TaskState::Running, TaskState::Paused),
            (TaskState::Running, TaskState::Done),
            (TaskState::Running, TaskState::Failed),
            (TaskState::Running, TaskState::Cancelled),
            (TaskState::Parked, TaskState::Running),
            (TaskState::Parked, TaskState::Paused),
            (TaskState::Parked, TaskState::Done),
            (TaskState::Parked, TaskState::Failed),
            (TaskState::Parked, TaskState::Cancelled),
            (TaskState::Paused, TaskState::Queued),
            (TaskState::Paused, TaskState::Parked),
            (TaskState::Paused, TaskState::Failed),
            (TaskState::Paused, TaskState::Cancelled),
            (TaskState::Failed, TaskState::Queued),
            (TaskState::Failed, TaskState::Parked),
        ];
        for from in TaskState::ALL {
            for to in TaskState::ALL {
                let task = Task {
                    id: TaskId(0),
                    name: "math".into(),
                    tenant: "default".into(),
                    priority: 0,
                    arrival: 0,
                    rank: 8,
                    rows_per_step: 1,
                    tokens_per_step: 1,
                    total_steps: 1,
                    passes_per_step: 1,
                    max_parts: 1,
                    load: Load::default(),
                };
                let mut state = from;
                let result = state.enter(to, &task);
                if legal.contains(&(from, to)) {
                    assert_eq!(result, Ok(()));
                    assert_eq!(state, to);
                } else {
                    let error = result.expect_err("not an arrow");
                    assert_eq!(
                        error.to_string(),
                        format!("`math` is {from} and cannot become {to}")
                    );
                    assert_eq!(state, from);
                }
            }
        }
    }
}

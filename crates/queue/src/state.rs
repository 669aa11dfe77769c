use std::fmt;

use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSql, ToSqlOutput, ValueRef};

/// Where a task stands.
///
/// ```text
/// queued ──► running ◄──► parked
///   ▲           │            │      every live state ──► cancelled
///   │           ▼            ▼      queued, running, parked ──► failed
///   └──────── paused ◄──► parked    running, parked ──► done
///                                   queued ──► paused
///                                   failed ──► queued, parked, if its owner resumes it
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TaskState {
    /// Waits for its first step.
    Queued,
    /// Trains in every iteration.
    Running,
    /// Has begun, and waits for a place to go on.
    Parked,
    /// Waits for its owner.
    Paused,
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

    /// The word for it, in the file and for people.
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

    /// How a task stands, after its name: "is queued", "has failed".
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

    /// The state that a word names.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == word)
    }

    /// Whether a task in this state has ended. One that has failed trains again if it is resumed.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Done | Self::Failed | Self::Cancelled)
    }

    /// Whether the server may move a task from this state to `next`.
    pub fn can_become(self, next: Self) -> bool {
        use TaskState::{Cancelled, Done, Failed, Parked, Paused, Queued, Running};
        match self {
            Queued => matches!(next, Running | Paused | Failed | Cancelled),
            Running => matches!(next, Parked | Paused | Done | Failed | Cancelled),
            Parked => matches!(next, Running | Paused | Done | Failed | Cancelled),
            Paused => matches!(next, Queued | Parked | Cancelled),
            Failed => matches!(next, Queued | Parked),
            Done | Cancelled => false,
        }
    }
}

impl fmt::Display for TaskState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl ToSql for TaskState {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(self.as_str().into())
    }
}

impl FromSql for TaskState {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let word = value.as_str()?;
        Self::from_word(word)
            .ok_or_else(|| FromSqlError::Other(format!("`{word}` is no state of a task").into()))
    }
}

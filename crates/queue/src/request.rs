use std::fmt;

use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSql, ToSqlOutput, ValueRef};

use crate::TaskState;

/// What a task's owner asks of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Request {
    /// Stop training, keep everything.
    Pause,
    /// Go on after a pause or a failure.
    Resume,
    /// End for good.
    Cancel,
}

/// What becomes of a request before the server sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ruling {
    /// It is written down.
    Record,
    /// It takes back the one that waits.
    Withdraw,
    /// Nothing is left to ask for.
    Already,
    /// The state, or a cancellation that waits, forbids it.
    Refuse,
}

impl Request {
    /// Every request.
    pub const ALL: [Self; 3] = [Self::Pause, Self::Resume, Self::Cancel];

    /// The word for it, in the file and for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Cancel => "cancel",
        }
    }

    /// The request that a word names.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|request| request.as_str() == word)
    }

    /// What becomes of this request for a task in `state` while `pending` waits.
    pub(crate) fn ruling(self, state: TaskState, pending: Option<Self>) -> Ruling {
        match (self, state, pending) {
            (Self::Cancel, TaskState::Cancelled, _)
            | (Self::Resume, TaskState::Failed, Some(Self::Resume)) => Ruling::Already,
            (Self::Resume, TaskState::Failed, None) => Ruling::Record,
            (_, TaskState::Failed, Some(Self::Resume)) => Ruling::Withdraw,
            _ if state.is_final() => Ruling::Refuse,
            _ if pending == Some(self) => Ruling::Already,
            (Self::Cancel, ..) => Ruling::Record,
            (.., Some(Self::Cancel)) => Ruling::Refuse,
            (Self::Pause, TaskState::Paused, Some(_)) => Ruling::Withdraw,
            (Self::Pause, TaskState::Paused, None) => Ruling::Already,
            (Self::Pause, ..) | (Self::Resume, TaskState::Paused, _) => Ruling::Record,
            (Self::Resume, _, Some(_)) => Ruling::Withdraw,
            (Self::Resume, _, None) => Ruling::Refuse,
        }
    }

    /// Where this request leads a task that is not training; `None` if it is there already.
    ///
    /// A task that has begun goes on from what was saved, so it resumes as parked.
    pub(crate) fn destination(self, state: TaskState, begun: bool) -> Option<TaskState> {
        let to = match self {
            Self::Pause => TaskState::Paused,
            Self::Cancel => TaskState::Cancelled,
            Self::Resume if begun => TaskState::Parked,
            Self::Resume => TaskState::Queued,
        };
        state.can_become(to).then_some(to)
    }

    /// Whether a task that moved from `from` to `to` has nothing left to do for this request.
    pub(crate) fn is_settled(self, from: TaskState, to: TaskState) -> bool {
        match self {
            _ if to.is_final() => true,
            Self::Pause => to == TaskState::Paused,
            Self::Resume => matches!(from, TaskState::Paused | TaskState::Failed),
            Self::Cancel => false,
        }
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl ToSql for Request {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(self.as_str().into())
    }
}

impl FromSql for Request {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let word = value.as_str()?;
        Self::from_word(word)
            .ok_or_else(|| FromSqlError::Other(format!("`{word}` is no request").into()))
    }
}

use std::{fmt, time::SystemTime};

use rusqlite::{
    Row,
    types::{FromSql, FromSqlError, FromSqlResult, ToSql, ToSqlOutput, ValueRef},
};

use crate::{Request, TaskId, TaskState, timestamp::from_milliseconds};

/// Something that happened to a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Larger happened later, among all tasks.
    pub sequence: u64,
    /// The task.
    pub task: TaskId,
    /// What happened.
    pub kind: EventKind,
    /// Why, for people.
    pub reason: String,
    /// When, for people.
    pub at: SystemTime,
}

/// What can happen to a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// It came to a state; to `queued` when it was submitted.
    Entered(TaskState),
    /// Its owner asked for something.
    Requested(Request),
    /// Its owner took a request back.
    Withdrawn(Request),
}

const REQUESTED: &str = "requested ";
const WITHDRAWN: &str = "withdrawn ";

impl EventKind {
    fn from_words(words: &str) -> Option<Self> {
        if let Some(request) = words.strip_prefix(REQUESTED) {
            Request::from_word(request).map(Self::Requested)
        } else if let Some(request) = words.strip_prefix(WITHDRAWN) {
            Request::from_word(request).map(Self::Withdrawn)
        } else {
            TaskState::from_word(words).map(Self::Entered)
        }
    }
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Entered(state) => write!(f, "{state}"),
            Self::Requested(request) => write!(f, "{REQUESTED}{request}"),
            Self::Withdrawn(request) => write!(f, "{WITHDRAWN}{request}"),
        }
    }
}

impl ToSql for EventKind {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(self.to_string().into())
    }
}

impl FromSql for EventKind {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let words = value.as_str()?;
        Self::from_words(words)
            .ok_or_else(|| FromSqlError::Other(format!("`{words}` is no event").into()))
    }
}

impl Event {
    /// The columns that [`Event::read`] expects, in its order.
    pub(crate) const COLUMNS: &str = "sequence, task, kind, reason, at";

    pub(crate) fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            sequence: row.get(0)?,
            task: row.get(1)?,
            kind: row.get(2)?,
            reason: row.get(3)?,
            at: from_milliseconds(row.get(4)?),
        })
    }
}

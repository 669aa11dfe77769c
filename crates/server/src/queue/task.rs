//! The queue's view of a task, and the stored form of its values.

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use loraloom_scheduler::{TaskId, TaskState};
use rusqlite::{
    Row,
    types::{FromSql, FromSqlError, FromSqlResult, ToSql, ToSqlOutput, ValueRef},
};

use super::Request;

/// A task's row, without its specification ([`Queue::spec`](super::Queue::spec)).
#[derive(Debug, Clone, PartialEq)]
pub struct QueuedTask {
    /// Identity; orders tasks of one priority.
    pub id: TaskId,
    /// The adapter's name; unique among live tasks, ignoring case.
    pub name: String,
    /// Its owner.
    pub tenant: String,
    /// Larger runs first.
    pub priority: i64,
    /// Hash of its dataset's content at submission.
    pub dataset_hash: String,
    /// Its sweep.
    pub sweep: Option<String>,
    /// Its idempotency key.
    pub key: Option<String>,
    /// Its state.
    pub state: TaskState,
    /// The reason of its state.
    pub reason: String,
    /// A request that the server has not carried out yet.
    pub requested: Option<Request>,
    /// The reason why it runs or waits, as of the server's last decision.
    pub explanation: String,
    /// Optimizer steps taken.
    pub step: u64,
    /// Optimizer steps that are on the disk, in a checkpoint or, once it is done, in its adapter; at most
    /// `step`.
    pub saved_step: u64,
    /// Optimizer steps in all, once known.
    pub total_steps: Option<u64>,
    /// Loss of its last step.
    pub last_loss: Option<f64>,
    /// Its best validation loss.
    pub best_metric: Option<f64>,
    /// When it was accepted. Times are informative: no decision depends on them.
    pub submitted_at: SystemTime,
    /// When it first ran.
    pub started_at: Option<SystemTime>,
    /// When it ended.
    pub ended_at: Option<SystemTime>,
}

impl QueuedTask {
    /// The reason of its state: the server's explanation of a live task, otherwise the reason of its last transition.
    pub fn why(&self) -> &str {
        let is_explained = self.state.is_waiting() || self.state == TaskState::Running;
        if is_explained && !self.explanation.is_empty() {
            &self.explanation
        } else {
            &self.reason
        }
    }

    /// The columns that [`QueuedTask::read`] expects, in its order.
    pub(super) const COLUMNS: &str = "id, name, tenant, priority, dataset_hash, sweep, key, state, \
        reason, requested, explanation, step, saved_step, total_steps, last_loss, best_metric, \
        submitted_at, started_at, ended_at, changed";

    /// Index of the column `changed`.
    pub(super) const CHANGED: usize = 19;

    pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            id: get(row, 0)?,
            name: row.get(1)?,
            tenant: row.get(2)?,
            priority: row.get(3)?,
            dataset_hash: row.get(4)?,
            sweep: row.get(5)?,
            key: row.get(6)?,
            state: get(row, 7)?,
            reason: row.get(8)?,
            requested: row.get(9)?,
            explanation: row.get(10)?,
            step: row.get(11)?,
            saved_step: row.get(12)?,
            total_steps: row.get(13)?,
            last_loss: get_option(row, 14)?,
            best_metric: get_option(row, 15)?,
            submitted_at: get(row, 16)?,
            started_at: get_option(row, 17)?,
            ended_at: get_option(row, 18)?,
        })
    }
}

/// An entry of a task's history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryEntry {
    /// Larger happened later; counted over all tasks.
    pub sequence: u64,
    /// The task.
    pub task: TaskId,
    /// The kind of the entry.
    pub kind: EventKind,
    /// The reason, as text.
    pub reason: String,
    /// The time, for display only.
    pub at: SystemTime,
}

/// The kinds of entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// It entered a state: `queued` when it was submitted.
    Entered(TaskState),
    /// Its owner made a request.
    Requested(Request),
    /// Its owner withdrew a request.
    Withdrawn(Request),
}

const REQUESTED: &str = "requested ";
const WITHDRAWN: &str = "withdrawn ";

impl EventKind {
    fn from_words(words: &str) -> Option<Self> {
        let request = |prefix| Request::from_word(words.strip_prefix(prefix)?);
        let requested = request(REQUESTED).map(Self::Requested);
        requested
            .or_else(|| request(WITHDRAWN).map(Self::Withdrawn))
            .or_else(|| TaskState::from_word(words).map(Self::Entered))
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
            .ok_or_else(|| FromSqlError::Other(format!("`{words}` is not an event").into()))
    }
}

impl HistoryEntry {
    /// The columns that [`HistoryEntry::read`] expects, in its order.
    pub(super) const COLUMNS: &str = "sequence, task, kind, reason, at";

    pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            sequence: row.get(0)?,
            task: get(row, 1)?,
            kind: row.get(2)?,
            reason: row.get(3)?,
            at: get(row, 4)?,
        })
    }
}

/// The stored form of a type of another crate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Sql<T>(pub(super) T);

/// A column of a row.
pub(super) fn get<T>(row: &Row<'_>, index: usize) -> rusqlite::Result<T>
where
    Sql<T>: FromSql,
{
    row.get(index).map(|Sql(value)| value)
}

fn get_option<T>(row: &Row<'_>, index: usize) -> rusqlite::Result<Option<T>>
where
    Sql<T>: FromSql,
{
    let value: Option<Sql<T>> = row.get(index)?;
    Ok(value.map(|Sql(value)| value))
}

impl ToSql for Sql<TaskId> {
    /// An id beyond SQLite's integers becomes -1, which no row has.
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(i64::try_from(self.0.0).unwrap_or(-1).into())
    }
}

impl FromSql for Sql<TaskId> {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        u64::column_result(value).map(TaskId).map(Self)
    }
}

impl ToSql for Sql<TaskState> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(self.0.as_str().into())
    }
}

impl FromSql for Sql<TaskState> {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let word = value.as_str()?;
        let state = TaskState::from_word(word).map(Self);
        state
            .ok_or_else(|| FromSqlError::Other(format!("`{word}` is not a state of a task").into()))
    }
}

/// SQLite stores NaN as NULL, which would read as "no loss yet" for a task that has just diverged.
const NOT_A_NUMBER: &str = "NaN";

impl ToSql for Sql<f64> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(if self.0.is_nan() {
            NOT_A_NUMBER.into()
        } else {
            self.0.into()
        })
    }
}

impl FromSql for Sql<f64> {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        match value {
            ValueRef::Real(number) => Ok(Self(number)),
            ValueRef::Text(word) if word == NOT_A_NUMBER.as_bytes() => Ok(Self(f64::NAN)),
            _ => Err(FromSqlError::InvalidType),
        }
    }
}

/// Milliseconds since 1970, UTC; a time out of range becomes the nearest in range.
impl ToSql for Sql<SystemTime> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        let milliseconds = match self.0.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(after) => i64::try_from(after.as_millis()).unwrap_or(i64::MAX),
            Err(before) => i64::try_from(before.duration().as_millis()).map_or(i64::MIN, |ms| -ms),
        };
        Ok(milliseconds.into())
    }
}

/// 1970 if the platform cannot represent the time.
impl FromSql for Sql<SystemTime> {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let milliseconds = value.as_i64()?;
        let distance = Duration::from_millis(milliseconds.unsigned_abs());
        let time = if milliseconds < 0 {
            SystemTime::UNIX_EPOCH.checked_sub(distance)
        } else {
            SystemTime::UNIX_EPOCH.checked_add(distance)
        };
        Ok(Self(time.unwrap_or(SystemTime::UNIX_EPOCH)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_survive_the_file_on_both_sides_of_1970() {
        for milliseconds in [0, 1, -1, 1_700_000_000_123, -1_700_000_000_123] {
            let time = Sql::<SystemTime>::column_result(ValueRef::Integer(milliseconds)).unwrap();
            assert_eq!(time.to_sql().unwrap(), milliseconds.into());
        }
    }
}

use std::{fmt, time::SystemTime};

use rusqlite::{
    Row,
    types::{FromSql, FromSqlResult, ToSql, ToSqlOutput, ValueRef},
};

use crate::{Request, TaskState, metric::Metric, timestamp::from_milliseconds};

/// Identifies a task in its queue. Smaller was accepted earlier; none is given twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub u64);

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "task {}", self.0)
    }
}

impl ToSql for TaskId {
    /// A number that the file cannot hold is nobody's: no row has -1.
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(i64::try_from(self.0).unwrap_or(-1).into())
    }
}

impl FromSql for TaskId {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        u64::column_result(value).map(Self)
    }
}

/// A task and where it stands. Its specification is read by [`Queue::spec`](crate::Queue::spec).
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// Its identity, and its turn among tasks of one priority.
    pub id: TaskId,
    /// The adapter's name; no two live tasks have the same, whatever the case of its letters.
    pub name: String,
    /// Who asked for it.
    pub tenant: String,
    /// Larger runs first.
    pub priority: i64,
    /// What its dataset held when it was submitted.
    pub dataset_hash: String,
    /// The sweep that it belongs to.
    pub sweep: Option<String>,
    /// Its idempotency key.
    pub key: Option<String>,
    /// Where it stands.
    pub state: TaskState,
    /// Why it stands there.
    pub reason: String,
    /// What its owner asked for and the server has not carried out yet.
    pub requested: Option<Request>,
    /// Why it runs, or what it waits for, as of the server's last decision.
    pub explanation: String,
    /// Optimizer steps taken.
    pub step: u64,
    /// Optimizer steps that a checkpoint holds; at most `step`.
    pub saved_step: u64,
    /// Optimizer steps until it is done, once known.
    pub total_steps: Option<u64>,
    /// Loss of its last step.
    pub last_loss: Option<f64>,
    /// Its best validation loss.
    pub best_metric: Option<f64>,
    /// When it was accepted. Times are for people: nothing is decided by them.
    pub submitted_at: SystemTime,
    /// When it first ran.
    pub started_at: Option<SystemTime>,
    /// When it ended.
    pub ended_at: Option<SystemTime>,
}

impl Task {
    /// The columns that [`Task::read`] expects, in its order.
    pub(crate) const COLUMNS: &str = "id, name, tenant, priority, dataset_hash, sweep, key, state, \
        reason, requested, explanation, step, saved_step, total_steps, last_loss, best_metric, \
        submitted_at, started_at, ended_at, changed";

    /// Index of the column `changed`.
    pub(crate) const CHANGED: usize = 19;

    pub(crate) fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let time = |index| {
            row.get::<_, Option<i64>>(index)
                .map(|time| time.map(from_milliseconds))
        };
        let metric = |index| {
            row.get::<_, Option<Metric>>(index)
                .map(|metric| metric.map(|metric| metric.0))
        };
        Ok(Self {
            id: row.get(0)?,
            name: row.get(1)?,
            tenant: row.get(2)?,
            priority: row.get(3)?,
            dataset_hash: row.get(4)?,
            sweep: row.get(5)?,
            key: row.get(6)?,
            state: row.get(7)?,
            reason: row.get(8)?,
            requested: row.get(9)?,
            explanation: row.get(10)?,
            step: row.get(11)?,
            saved_step: row.get(12)?,
            total_steps: row.get(13)?,
            last_loss: metric(14)?,
            best_metric: metric(15)?,
            submitted_at: from_milliseconds(row.get(16)?),
            started_at: time(17)?,
            ended_at: time(18)?,
        })
    }
}

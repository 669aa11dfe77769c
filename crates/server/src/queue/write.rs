use std::time::SystemTime;

use loraloom_scheduler::{TaskId, TaskState};
use rusqlite::{Row, ToSql, Transaction, TransactionBehavior, params};

use super::{
    EventKind, Queue, QueueError, Request, Result,
    error::At,
    task::{Sql, get},
};

/// A write transaction; dropped without [`Write::commit`], it is rolled back.
#[derive(Debug)]
pub(super) struct Write<'a> {
    pub(super) queue: &'a Queue,
    transaction: Transaction<'a>,
    /// Number of this transaction, for [`Queue::changes`].
    pub(super) number: i64,
    pub(super) now: Sql<SystemTime>,
}

/// The fields of a task that transitions and requests depend on.
#[derive(Debug)]
pub(super) struct TaskRowState {
    pub(super) name: String,
    pub(super) state: TaskState,
    pub(super) requested: Option<Request>,
    /// True if it has ever run.
    pub(super) begun: bool,
}

impl Queue {
    /// Begins a transaction; other writers wait until it ends.
    pub(super) fn write(&mut self) -> Result<Write<'_>> {
        let immediate = TransactionBehavior::Immediate;
        let transaction = Transaction::new_unchecked(&self.connection, immediate).at(&self.path)?;
        let number = transaction
            .prepare_cached("UPDATE clock SET changed = changed + 1 RETURNING changed")
            .and_then(|mut statement| statement.query_row([], |row| row.get(0)))
            .at(&self.path)?;
        Ok(Write {
            queue: self,
            transaction,
            number,
            now: Sql((self.clock)()),
        })
    }
}

impl Write<'_> {
    /// Commits; everything written is on the disk when this returns.
    pub(super) fn commit(self) -> Result<()> {
        self.transaction.commit().at(&self.queue.path)
    }

    /// Executes one statement; returns the number of rows changed.
    pub(super) fn execute(&self, sql: &str, values: &[&dyn ToSql]) -> Result<usize> {
        self.transaction
            .prepare_cached(sql)
            .and_then(|mut statement| statement.execute(values))
            .at(&self.queue.path)
    }

    /// Executes a statement that changes the row of a task.
    pub(super) fn update(&self, id: TaskId, sql: &str, values: &[&dyn ToSql]) -> Result<()> {
        match self.execute(sql, values)? {
            0 => Err(QueueError::UnknownTask(id)),
            _ => Ok(()),
        }
    }

    pub(super) fn row_state(&self, id: TaskId) -> Result<TaskRowState> {
        let read = |row: &Row<'_>| {
            Ok(TaskRowState {
                name: row.get(0)?,
                state: get(row, 1)?,
                requested: row.get(2)?,
                begun: row.get(3)?,
            })
        };
        let sql = "SELECT name, state, requested, started_at IS NOT NULL FROM task WHERE id = ?1";
        let found = self.queue.row(sql, [Sql(id)], read)?;
        found.ok_or(QueueError::UnknownTask(id))
    }

    /// Tasks that match an SQL condition, in order of arrival.
    pub(super) fn ids(&self, condition: &str) -> Result<Vec<TaskId>> {
        let sql = format!("SELECT id FROM task WHERE {condition} ORDER BY id");
        self.queue.rows(&sql, [], |row| get(row, 0))
    }

    pub(super) fn set_request(&self, id: TaskId, request: Option<Request>) -> Result<()> {
        self.update(
            id,
            "UPDATE task SET requested = ?2, changed = ?3 WHERE id = ?1",
            params![Sql(id), request, self.number],
        )
    }

    pub(super) fn event(&self, id: TaskId, kind: EventKind, reason: &str) -> Result<()> {
        self.execute(
            "INSERT INTO event (task, kind, reason, at) VALUES (?1, ?2, ?3, ?4)",
            params![Sql(id), kind, reason, self.now],
        )
        .map(drop)
    }

    /// Moves a task to another state; clears a request that this carries out. A task is done once all its
    /// steps are saved.
    pub(super) fn enter(&self, id: TaskId, to: TaskState, reason: &str) -> Result<()> {
        let TaskRowState {
            name,
            state: from,
            requested,
            ..
        } = self.row_state(id)?;
        if !from.can_become(to) {
            return Err(QueueError::IllegalTransition { id, name, from, to });
        }
        let requested = requested.filter(|request| !request.is_settled(from, to));
        let started_at = (to == TaskState::Running).then_some(self.now);
        let ended_at = to.is_final().then_some(self.now);
        self.execute(
            "UPDATE task SET state = ?2, reason = ?3, requested = ?4, explanation = '', \
             started_at = coalesce(started_at, ?5), ended_at = ?6, changed = ?7, \
             saved_step = iif(?2 = 'done', step, saved_step) WHERE id = ?1",
            params![
                Sql(id),
                Sql(to),
                reason,
                requested,
                started_at,
                ended_at,
                self.number
            ],
        )?;
        self.event(id, EventKind::Entered(to), reason)
    }
}

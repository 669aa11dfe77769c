use std::path::Path;

use rusqlite::{OptionalExtension, ToSql, Transaction, TransactionBehavior, params};

use crate::{
    EventKind, Queue, QueueError, Request, TaskId, TaskState, connection::At,
    timestamp::to_milliseconds,
};

/// A transaction that writes. Dropped without [`Write::commit`], nothing has happened.
#[derive(Debug)]
pub(crate) struct Write<'a> {
    transaction: Transaction<'a>,
    path: &'a Path,
    /// Number of this transaction, for [`Queue::changes`](crate::Queue::changes).
    changed: i64,
    now: i64,
}

/// What a transition or a request depends on.
#[derive(Debug)]
pub(crate) struct Standing {
    pub(crate) name: String,
    pub(crate) state: TaskState,
    pub(crate) requested: Option<Request>,
    /// Whether it has ever run.
    pub(crate) begun: bool,
}

impl Queue {
    /// Begins a transaction; others that write wait from here on.
    pub(crate) fn write(&mut self) -> Result<Write<'_>, QueueError> {
        let path = self.path.as_path();
        let now = to_milliseconds((self.clock)());
        let immediate = TransactionBehavior::Immediate;
        let transaction = Transaction::new(&mut self.connection, immediate).at(path)?;
        let changed = transaction
            .prepare_cached("UPDATE clock SET changed = changed + 1 RETURNING changed")
            .and_then(|mut statement| statement.query_row([], |row| row.get(0)))
            .at(path)?;
        Ok(Write {
            transaction,
            path,
            changed,
            now,
        })
    }
}

impl Write<'_> {
    /// Makes everything so, and durable.
    pub(crate) fn commit(self) -> Result<(), QueueError> {
        self.transaction.commit().at(self.path)
    }

    pub(crate) fn path(&self) -> &Path {
        self.path
    }

    /// Number of this transaction.
    pub(crate) fn number(&self) -> i64 {
        self.changed
    }

    /// The time of this transaction.
    pub(crate) fn now(&self) -> i64 {
        self.now
    }

    pub(crate) fn transaction(&self) -> &Transaction<'_> {
        &self.transaction
    }

    /// Executes one statement; the number of rows that it changed.
    pub(crate) fn execute(&self, sql: &str, values: &[&dyn ToSql]) -> Result<usize, QueueError> {
        self.transaction
            .prepare_cached(sql)
            .and_then(|mut statement| statement.execute(values))
            .at(self.path)
    }

    pub(crate) fn standing(&self, id: TaskId) -> Result<Standing, QueueError> {
        let read = |row: &rusqlite::Row<'_>| {
            Ok(Standing {
                name: row.get(0)?,
                state: row.get(1)?,
                requested: row.get(2)?,
                begun: row.get(3)?,
            })
        };
        self.transaction
            .prepare_cached(
                "SELECT name, state, requested, started_at IS NOT NULL FROM task WHERE id = ?1",
            )
            .and_then(|mut statement| statement.query_row([id], read).optional())
            .at(self.path)?
            .ok_or(QueueError::UnknownTask(id))
    }

    /// The tasks that meet a condition, in order of arrival.
    pub(crate) fn ids(&self, condition: &str) -> Result<Vec<TaskId>, QueueError> {
        self.transaction
            .prepare_cached(&format!(
                "SELECT id FROM task WHERE {condition} ORDER BY id"
            ))
            .and_then(|mut statement| statement.query_map([], |row| row.get(0))?.collect())
            .at(self.path)
    }

    pub(crate) fn set_request(
        &self,
        id: TaskId,
        request: Option<Request>,
    ) -> Result<(), QueueError> {
        self.execute(
            "UPDATE task SET requested = ?2, changed = ?3 WHERE id = ?1",
            params![id, request, self.changed],
        )
        .map(drop)
    }

    pub(crate) fn event(
        &self,
        id: TaskId,
        kind: EventKind,
        reason: &str,
    ) -> Result<(), QueueError> {
        self.execute(
            "INSERT INTO event (task, kind, reason, at) VALUES (?1, ?2, ?3, ?4)",
            params![id, kind, reason, self.now],
        )
        .map(drop)
    }

    /// Moves a task along an arrow of [`TaskState`]; a request that this carries out is settled.
    pub(crate) fn enter(&self, id: TaskId, to: TaskState, reason: &str) -> Result<(), QueueError> {
        let Standing {
            name,
            state: from,
            requested,
            ..
        } = self.standing(id)?;
        if !from.can_become(to) {
            return Err(QueueError::IllegalTransition { id, name, from, to });
        }
        let requested = requested.filter(|request| !request.is_settled(from, to));
        let started_at = (to == TaskState::Running).then_some(self.now);
        let ended_at = to.is_final().then_some(self.now);
        self.execute(
            "UPDATE task SET state = ?2, reason = ?3, requested = ?4, explanation = '', \
             started_at = coalesce(started_at, ?5), ended_at = ?6, changed = ?7 WHERE id = ?1",
            params![
                id,
                to,
                reason,
                requested,
                started_at,
                ended_at,
                self.changed
            ],
        )?;
        self.event(id, EventKind::Entered(to), reason)
    }
}

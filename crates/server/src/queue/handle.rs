use std::{
    collections::BTreeMap,
    path::{Path, PathBuf, absolute},
    time::SystemTime,
};

use loraloom_scheduler::TaskId;
use rusqlite::{Connection, OptionalExtension, Params, Row};

use super::{
    FILE_NAME, HistoryEntry, Presence, QueueError, QueuedTask, Result, Submission,
    check::{check_digest, check_header, check_version},
    error::At,
    file::{open, with_suffix},
    lock, log,
    task::Sql,
};

/// One process's handle of the queue of a run directory.
///
/// Every method is one transaction: it is applied as a whole or not at all, and its writes are on the
/// disk when it returns. A method waits up to 10 s for transactions of other processes.
#[derive(Debug)]
pub struct Queue {
    pub(super) connection: Connection,
    pub(super) directory: PathBuf,
    pub(super) path: PathBuf,
    pub(super) clock: fn() -> SystemTime,
}

/// The changes of one [`Queue`] that a caller has seen; by default none.
#[derive(Debug, Clone, Default)]
pub struct Cursor {
    /// SQLite's counter of other connections' commits, and of rows written by this one.
    seen: Option<(i64, u64)>,
    /// The last transaction seen.
    changed: i64,
}

impl Queue {
    /// Opens the queue that a server has created.
    ///
    /// # Errors
    /// [`QueueError::Missing`] if there is none; other errors of the file, which is left unchanged. Damage
    /// inside the file is found when a server starts, or when the damaged part is read.
    pub fn open(directory: &Path) -> Result<Self> {
        // SQLite could take a relative path such as `file:x?mode=memory` for a URI.
        let directory =
            absolute(directory).map_err(|source| QueueError::io("find", directory, source))?;
        let path = directory.join(FILE_NAME);
        check_header(&path)?;
        log::inspect(&with_suffix(&path, "-wal"))?;
        let connection = open(&path)?;
        check_version(&connection, &path)?;
        Ok(Self {
            connection,
            directory,
            path,
            clock: SystemTime::now,
        })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// True if a server holds the run directory.
    ///
    /// # Errors
    /// [`QueueError::Io`] if the lock cannot be read.
    pub fn server(&self) -> Result<Presence> {
        lock::presence(&self.directory)
    }

    /// All tasks, in order of arrival.
    ///
    /// # Errors
    /// SQLite's errors.
    pub fn tasks(&self) -> Result<Vec<QueuedTask>> {
        self.select_tasks("id > 0", [])
    }

    /// Tasks accepted after `id`, in order of arrival.
    ///
    /// # Errors
    /// SQLite's errors.
    pub fn tasks_after(&self, id: TaskId) -> Result<Vec<QueuedTask>> {
        self.select_tasks("id > ?1", [Sql(id)])
    }

    /// Tasks with a pending request, in order of arrival. A request stays until a transition carries it out,
    /// so a server that dies meanwhile does not lose it.
    ///
    /// # Errors
    /// SQLite's errors.
    pub fn requests(&self) -> Result<Vec<QueuedTask>> {
        self.select_tasks("requested IS NOT NULL", [])
    }

    /// One task.
    ///
    /// # Errors
    /// [`QueueError::UnknownTask`] if there is none.
    pub fn task(&self, id: TaskId) -> Result<QueuedTask> {
        self.select_tasks("id = ?1", [Sql(id)])?
            .pop()
            .ok_or(QueueError::UnknownTask(id))
    }

    /// The task with this name or number: the live task of the name, else the last one that had it. Digits
    /// are a number, also where a task has them as its name: a reference never changes its task.
    ///
    /// # Errors
    /// [`QueueError::UnknownName`] or [`QueueError::UnknownNumber`] if there is none.
    pub fn find(&self, reference: &str) -> Result<QueuedTask> {
        let mut tasks = self.select_tasks("name = ?1", [reference])?;
        let live = tasks.iter().position(|task| !task.state.is_final());
        let named = live.or(tasks.len().checked_sub(1));
        let named = named.map(|index| tasks.swap_remove(index));
        if reference.is_empty() || !reference.bytes().all(|byte| byte.is_ascii_digit()) {
            return named.ok_or_else(|| QueueError::UnknownName(reference.to_owned()));
        }
        // An id beyond its type is no task's either.
        match self.task(TaskId(reference.parse().unwrap_or(u64::MAX))) {
            Err(QueueError::UnknownTask(_)) => Err(QueueError::UnknownNumber {
                number: reference.to_owned(),
                named: named.map(|task| task.id),
            }),
            found => found,
        }
    }

    /// A task's submission, verified against its digest.
    ///
    /// # Errors
    /// [`QueueError::UnknownTask`]; [`QueueError::Corrupt`] if it differs from what was accepted.
    pub fn spec(&self, id: TaskId) -> Result<Submission> {
        let sql = format!(
            "SELECT {}, digest FROM task JOIN spec ON spec.task = id WHERE id = ?1",
            Submission::COLUMNS
        );
        let read = |row: &Row<'_>| Ok((Submission::read(row)?, row.get(Submission::WIDTH)?));
        let found = self.row(&sql, [Sql(id)], read)?;
        let (submission, digest) = found.ok_or(QueueError::UnknownTask(id))?;
        check_digest(&self.path, id, &submission, digest)?;
        Ok(submission)
    }

    /// A task's history, in order.
    ///
    /// # Errors
    /// SQLite's errors.
    pub fn events(&self, id: TaskId) -> Result<Vec<HistoryEntry>> {
        let sql = format!(
            "SELECT {} FROM event WHERE task = ?1 ORDER BY sequence",
            HistoryEntry::COLUMNS
        );
        self.rows(&sql, [Sql(id)], HistoryEntry::read)
    }

    /// Tasks that changed since the last call with this cursor, in order of arrival. If none did, this
    /// returns without reading the file.
    ///
    /// # Errors
    /// SQLite's errors; the cursor does not move.
    pub fn changes(&self, cursor: &mut Cursor) -> Result<Vec<QueuedTask>> {
        let version = self.row("PRAGMA data_version", [], |row| row.get(0))?;
        let seen = version.map(|version| (version, self.connection.total_changes()));
        if cursor.seen == seen {
            return Ok(Vec::new());
        }
        // Without the hint SQLite scans the whole table for the order.
        let sql = format!(
            "SELECT {} FROM task INDEXED BY task_changed WHERE changed > ?1 ORDER BY id",
            QueuedTask::COLUMNS
        );
        let mut latest = cursor.changed;
        let tasks = self.rows(&sql, [cursor.changed], |row| {
            latest = latest.max(row.get(QueuedTask::CHANGED)?);
            QueuedTask::read(row)
        })?;
        cursor.seen = seen;
        cursor.changed = latest;
        Ok(tasks)
    }

    /// The texts that [`LockedQueue::record`](super::LockedQueue::record) has stored, by key.
    ///
    /// # Errors
    /// SQLite's errors.
    pub fn stored(&self) -> Result<BTreeMap<String, String>> {
        let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?));
        let stored = self.rows("SELECT key, value FROM stored", [], read)?;
        Ok(stored.into_iter().collect())
    }

    /// Tasks that match an SQL condition, in order of arrival.
    pub(super) fn select_tasks(
        &self,
        condition: &str,
        values: impl Params,
    ) -> Result<Vec<QueuedTask>> {
        let columns = QueuedTask::COLUMNS;
        let sql = format!("SELECT {columns} FROM task WHERE {condition} ORDER BY id");
        self.rows(&sql, values, QueuedTask::read)
    }

    /// All rows of a statement.
    pub(super) fn rows<T>(
        &self,
        sql: &str,
        values: impl Params,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>> {
        self.connection
            .prepare_cached(sql)
            .and_then(|mut statement| statement.query_map(values, read)?.collect())
            .at(&self.path)
    }

    /// Reads the rows of a statement one after another, without keeping them.
    pub(super) fn each(
        &self,
        sql: &str,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<()>,
    ) -> Result<()> {
        self.connection
            .prepare(sql)
            .and_then(|mut statement| statement.query_map([], read)?.collect())
            .at(&self.path)
    }

    /// The first row of a statement, if it has any.
    pub(super) fn row<T>(
        &self,
        sql: &str,
        values: impl Params,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Option<T>> {
        self.connection
            .prepare_cached(sql)
            .and_then(|mut statement| statement.query_row(values, read).optional())
            .at(&self.path)
    }
}

#[cfg(test)]
impl Queue {
    /// Lets the file grow to so many pages, for this connection: then the disk is full.
    pub(crate) fn limit_pages(&self, pages: u32) {
        let limited = self.row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(()));
        limited.expect("a limit");
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::queue::{LockedQueue, Progress, Transition};
    use loraloom_scheduler::TaskState;

    const DAY: Duration = Duration::from_hours(24);

    fn today() -> SystemTime {
        SystemTime::UNIX_EPOCH + DAY * 20_000
    }

    fn long_ago() -> SystemTime {
        SystemTime::UNIX_EPOCH - DAY
    }

    /// The clock jumps back between writes; order and states do not depend on it.
    #[test]
    fn nothing_is_decided_by_the_clock() {
        let directory = tempfile::tempdir().unwrap();
        let (mut server, _) = LockedQueue::acquire(directory.path()).unwrap();
        let mut cursor = Cursor::default();
        let mut ids = Vec::new();
        for clock in [today, long_ago, today, long_ago] {
            server.queue.clock = clock;
            let submission = Submission {
                name: format!("task-{}", ids.len()),
                tenant: "default".to_owned(),
                priority: 0,
                spec: "{}".to_owned(),
                dataset_hash: String::new(),
                total_steps: None,
                sweep: None,
                key: None,
            };
            let id = server.queue.submit(&submission).unwrap().id;
            ids.push(id);
            assert_eq!(server.queue.task(id).unwrap().submitted_at, clock());
            assert_eq!(server.queue.changes(&mut cursor).unwrap().len(), 1);
        }
        let listed: Vec<_> = server.queue.tasks().unwrap();
        assert!(listed.iter().map(|task| task.id).eq(ids.iter().copied()));
        let later = server.queue.tasks_after(ids[1]).unwrap();
        assert!(
            later
                .iter()
                .map(|task| task.id)
                .eq(ids[2..].iter().copied())
        );

        let id = ids[0];
        for (to, clock) in [
            (TaskState::Running, long_ago as fn() -> SystemTime),
            (TaskState::Parked, today),
            (TaskState::Done, long_ago),
        ] {
            server.queue.clock = clock;
            let reason = String::new();
            server.apply(&[Transition { id, to, reason }]).unwrap();
            let step = Progress {
                id,
                step: 1,
                last_loss: None,
                best_metric: None,
            };
            server.record(&[step], &[]).unwrap();
            assert_eq!(server.queue.changes(&mut cursor).unwrap().len(), 1);
        }
        let task = server.queue.task(id).unwrap();
        assert_eq!(task.started_at, Some(long_ago()));
        assert_eq!(
            (task.submitted_at, task.ended_at),
            (today(), Some(long_ago()))
        );
        let events = server.queue.events(id).unwrap();
        let kinds: Vec<_> = events.iter().map(|event| event.kind.to_string()).collect();
        assert_eq!(kinds, ["queued", "running", "parked", "done"]);
    }
}

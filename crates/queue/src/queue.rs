use std::{
    path::{Path, PathBuf, absolute},
    time::SystemTime,
};

use rusqlite::{Connection, OptionalExtension, Row, ToSql};

use crate::{
    Event, Presence, QueueError, Submission, Task, TaskId,
    check::{check_digest, check_version},
    connection::{At, open},
    create::beside,
    header, lock, log,
};

/// The queue's file in its run directory.
pub const FILE_NAME: &str = "queue.sqlite";

/// A process's way into the queue of a run directory.
///
/// Every method is one transaction: it happens as a whole or not at all, and what it wrote is on the
/// disk when it returns. A process waits up to 10 s for the transactions of others.
#[derive(Debug)]
pub struct Queue {
    pub(crate) connection: Connection,
    pub(crate) directory: PathBuf,
    pub(crate) path: PathBuf,
    pub(crate) clock: fn() -> SystemTime,
}

impl Queue {
    /// Opens the queue that a server has created.
    ///
    /// # Errors
    ///
    /// [`QueueError::Missing`] if there is none, and what else is wrong with the file. It is left as it
    /// is. Damage inside it is found by the server when it starts, or when it is met.
    pub fn open(directory: &Path) -> Result<Self, QueueError> {
        // Absolute, so that no name is taken for a URI.
        let directory = absolute(directory).map_err(|source| QueueError::Io {
            action: "find",
            path: directory.to_owned(),
            source,
        })?;
        let path = directory.join(FILE_NAME);
        header::inspect(&path)?;
        log::inspect(&beside(&path, "-wal"))?;
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

    /// Whether a server has the run directory.
    ///
    /// # Errors
    ///
    /// [`QueueError::Io`] if the lock cannot be looked at.
    pub fn server(&self) -> Result<Presence, QueueError> {
        lock::presence(&self.directory)
    }

    /// Every task ever accepted, in order of arrival.
    ///
    /// # Errors
    ///
    /// What SQLite reports.
    pub fn tasks(&self) -> Result<Vec<Task>, QueueError> {
        self.select_tasks("id > 0", [])
    }

    /// The tasks accepted after that one, in order of arrival.
    ///
    /// # Errors
    ///
    /// What SQLite reports.
    pub fn tasks_after(&self, id: TaskId) -> Result<Vec<Task>, QueueError> {
        self.select_tasks("id > ?1", [&id as &dyn ToSql])
    }

    /// The tasks whose owners have asked for something that is not carried out yet, in order of arrival.
    /// A request stays until a transition carries it out, so a server that dies with it loses nothing.
    ///
    /// # Errors
    ///
    /// What SQLite reports.
    pub fn requests(&self) -> Result<Vec<Task>, QueueError> {
        self.select_tasks("requested IS NOT NULL", [])
    }

    /// One task.
    ///
    /// # Errors
    ///
    /// [`QueueError::UnknownTask`] if there is none.
    pub fn task(&self, id: TaskId) -> Result<Task, QueueError> {
        self.select_tasks("id = ?1", [&id as &dyn ToSql])?
            .pop()
            .ok_or(QueueError::UnknownTask(id))
    }

    /// The task that a name or a number means: the live task of that name, else the last that had it,
    /// else the task with that number.
    ///
    /// # Errors
    ///
    /// [`QueueError::UnknownName`] if there is none.
    pub fn find(&self, reference: &str) -> Result<Task, QueueError> {
        let mut named = self.select_tasks("name = ?1", [&reference as &dyn ToSql])?;
        let live = named.iter().position(|task| !task.state.is_final());
        if let Some(index) = live.or(named.len().checked_sub(1)) {
            return Ok(named.swap_remove(index));
        }
        let unknown = || QueueError::UnknownName(reference.to_owned());
        let id = reference.parse().map_err(|_| unknown())?;
        match self.task(TaskId(id)) {
            Err(QueueError::UnknownTask(_)) => Err(unknown()),
            found => found,
        }
    }

    /// What was submitted as that task, verified: the same bytes, or an error.
    ///
    /// # Errors
    ///
    /// [`QueueError::UnknownTask`], and [`QueueError::Corrupt`] if it is not what was accepted.
    pub fn spec(&self, id: TaskId) -> Result<Submission, QueueError> {
        let sql = format!(
            "SELECT {}, digest FROM task JOIN spec ON spec.task = id WHERE id = ?1",
            Submission::COLUMNS
        );
        let read = |row: &Row<'_>| Ok((Submission::read(row)?, row.get(Submission::WIDTH)?));
        let (submission, digest) = self
            .connection
            .prepare_cached(&sql)
            .and_then(|mut statement| statement.query_row([id], read).optional())
            .at(&self.path)?
            .ok_or(QueueError::UnknownTask(id))?;
        check_digest(&self.path, id, &submission, digest)?;
        Ok(submission)
    }

    /// What happened to a task, in order.
    ///
    /// # Errors
    ///
    /// What SQLite reports.
    pub fn events(&self, id: TaskId) -> Result<Vec<Event>, QueueError> {
        let sql = format!(
            "SELECT {} FROM event WHERE task = ?1 ORDER BY sequence",
            Event::COLUMNS
        );
        self.connection
            .prepare_cached(&sql)
            .and_then(|mut statement| statement.query_map([id], Event::read)?.collect())
            .at(&self.path)
    }

    /// Tasks that meet a condition, in order of arrival.
    fn select_tasks<const N: usize>(
        &self,
        condition: &str,
        parameters: [&dyn ToSql; N],
    ) -> Result<Vec<Task>, QueueError> {
        let sql = format!(
            "SELECT {} FROM task WHERE {condition} ORDER BY id",
            Task::COLUMNS
        );
        self.connection
            .prepare_cached(&sql)
            .and_then(|mut statement| {
                statement
                    .query_map(parameters.as_slice(), Task::read)?
                    .collect()
            })
            .at(&self.path)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Progress, Server, TaskState, Transition};

    const DAY: Duration = Duration::from_hours(24);

    fn today() -> SystemTime {
        SystemTime::UNIX_EPOCH + DAY * 20_000
    }

    fn long_ago() -> SystemTime {
        SystemTime::UNIX_EPOCH - DAY
    }

    /// The clock jumps back between any two writes: order, states and changes do not care.
    #[test]
    fn nothing_is_decided_by_the_clock() {
        let directory = tempfile::tempdir().unwrap();
        let (mut server, _) = Server::start(directory.path()).unwrap();
        let mut cursor = crate::Cursor::default();
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

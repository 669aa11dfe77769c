use std::path::{Path, absolute};

use rusqlite::params;

use crate::{
    FILE_NAME, Queue, QueueError, Request, TaskId, TaskState, check::check_all, connection::At,
    create::create_if_missing, lock::ServerLock, write::Write,
};

/// The one process that carries out what a queue says, for as long as it lives.
#[derive(Debug)]
pub struct Server {
    pub(crate) queue: Queue,
    _lock: ServerLock,
}

/// A task that goes back to its last checkpoint because its server was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recovered {
    /// The task.
    pub id: TaskId,
    /// Steps that it had taken.
    pub from_step: u64,
    /// Steps that the checkpoint holds; it goes on from there.
    pub to_step: u64,
}

/// A task's way to another state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transition {
    /// The task.
    pub id: TaskId,
    /// Where it goes.
    pub to: TaskState,
    /// Why, for people.
    pub reason: String,
}

impl Server {
    /// Takes the lock of a run directory, creates the queue if there is none, reads all of it to be sure
    /// that it is whole, and takes up what a lost server left: tasks that ran are parked at their last
    /// saved step, and the step of every live task is its last saved one.
    ///
    /// # Errors
    ///
    /// [`QueueError::ServerRunning`] if another process, or another `Server` of this one, has the lock
    /// for a second; what is wrong with the file, which is left as it is.
    pub fn start(directory: &Path) -> Result<(Self, Vec<Recovered>), QueueError> {
        let directory = absolute(directory).map_err(|source| QueueError::Io {
            action: "find",
            path: directory.to_owned(),
            source,
        })?;
        let lock = ServerLock::acquire(&directory)?;
        let path = directory.join(FILE_NAME);
        create_if_missing(&path)?;
        let mut queue = Queue::open(&directory)?;
        check_all(&queue.connection, &path)?;
        use_log(&queue)?;
        let write = queue.write()?;
        let recovered = write.recover()?;
        write.commit()?;
        Ok((Self { queue, _lock: lock }, recovered))
    }

    /// The queue, to read.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// The queue, to submit and to ask as an owner does.
    pub fn queue_mut(&mut self) -> &mut Queue {
        &mut self.queue
    }

    /// Moves tasks along the arrows of [`TaskState`], all or none, in order. A request that is carried
    /// out by this is settled; one that a task's end has overtaken is, too.
    ///
    /// # Errors
    ///
    /// [`QueueError::IllegalTransition`] and [`QueueError::UnknownTask`], for the first that is.
    pub fn apply(&mut self, transitions: &[Transition]) -> Result<(), QueueError> {
        if transitions.is_empty() {
            return Ok(());
        }
        let write = self.queue.write()?;
        for Transition { id, to, reason } in transitions {
            write.enter(*id, *to, reason)?;
        }
        write.commit()
    }

    /// Carries out what owners have asked of tasks that do not train: pauses, resumes and cancels them.
    /// Returns the tasks that moved, and where to. What was asked of running tasks is left to
    /// [`Queue::requests`] and [`Server::apply`].
    ///
    /// # Errors
    ///
    /// What SQLite reports.
    pub fn carry_out_waiting(&mut self) -> Result<Vec<(TaskId, TaskState)>, QueueError> {
        let waits =
            |request: &Option<Request>, state| request.is_some() && state != TaskState::Running;
        let requests = self.queue.requests()?;
        if !requests
            .iter()
            .any(|task| waits(&task.requested, task.state))
        {
            return Ok(Vec::new());
        }
        let write = self.queue.write()?;
        let carried = write.carry_out_waiting()?;
        write.commit()?;
        Ok(carried)
    }
}

/// The log must be in use, and writable: a server that could not write would find out an iteration later.
fn use_log(queue: &Queue) -> Result<(), QueueError> {
    let path = queue.path();
    if queue.connection.is_readonly("main").at(path)? {
        return Err(QueueError::ReadOnly {
            path: path.to_owned(),
            problem: "the operating system lets it be read only".to_owned(),
        });
    }
    let mode: String = queue
        .connection
        .query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))
        .at(path)?;
    if mode != "wal" {
        return Err(QueueError::Sqlite {
            path: path.to_owned(),
            source: format!("its file system has no shared memory for a log: {mode}").into(),
        });
    }
    // A log that has grown is cut back when it is next begun anew.
    queue
        .connection
        .pragma_update(None, "journal_size_limit", 16 << 20)
        .at(path)
}

impl Write<'_> {
    /// Takes up what a lost server left. Only the holder of the lock may call this.
    pub(crate) fn recover(&self) -> Result<Vec<Recovered>, QueueError> {
        let behind: Vec<Recovered> = self
            .transaction()
            .prepare_cached(
                "SELECT id, step, saved_step FROM task WHERE state = 'running' \
                 OR state IN ('parked', 'paused') AND step != saved_step ORDER BY id",
            )
            .and_then(|mut statement| {
                statement
                    .query_map([], |row| {
                        Ok(Recovered {
                            id: row.get(0)?,
                            from_step: row.get(1)?,
                            to_step: row.get(2)?,
                        })
                    })?
                    .collect()
            })
            .at(self.path())?;
        for id in self.ids("state = 'running'")? {
            self.enter(id, TaskState::Parked, "server stopped")?;
        }
        for task in &behind {
            self.back_to_saved(task.id)?;
        }
        Ok(behind)
    }

    /// A task has the steps again that its last checkpoint holds.
    pub(crate) fn back_to_saved(&self, id: TaskId) -> Result<(), QueueError> {
        self.execute(
            "UPDATE task SET step = saved_step, changed = ?2 WHERE id = ?1",
            params![id, self.number()],
        )
        .map(drop)
    }
}

use std::path::{Path, absolute};

use loraloom_scheduler::{TaskId, TaskState};
use rusqlite::params;

use super::{
    FILE_NAME, Queue, QueueError, Result,
    check::check_all,
    error::At,
    file::create_if_missing,
    lock::ServerLock,
    task::{Sql, get},
    write::Write,
};

/// The queue under the server's lock, which one process holds for as long as this lives. A server
/// changes states through it.
#[derive(Debug)]
pub struct LockedQueue {
    pub(super) queue: Queue,
    _lock: ServerLock,
}

/// A task that goes back to its last checkpoint because its server was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recovered {
    /// The task.
    pub id: TaskId,
    /// Steps it had taken.
    pub from_step: u64,
    /// Steps that the checkpoint holds; it continues from there.
    pub to_step: u64,
}

/// A change of a task's state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transition {
    /// The task.
    pub id: TaskId,
    /// The new state.
    pub to: TaskState,
    /// The reason, as text.
    pub reason: String,
}

/// A task's progress.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    /// The task.
    pub id: TaskId,
    /// Optimizer steps taken.
    pub step: u64,
    /// Loss of the last step; `None` keeps the stored one.
    pub last_loss: Option<f64>,
    /// Best validation loss; `None` keeps the stored one.
    pub best_metric: Option<f64>,
}

impl LockedQueue {
    /// Takes the lock of a run directory, creates the queue if there is none, checks all of it, and
    /// recovers from a lost server: running tasks are parked, and every live task goes back to its last
    /// saved step.
    ///
    /// # Errors
    /// [`QueueError::ServerRunning`] if the lock stays taken for a second, by another process or by another
    /// `LockedQueue` of this one; errors of the file, which is left unchanged.
    pub fn acquire(directory: &Path) -> Result<(Self, Vec<Recovered>)> {
        let directory =
            absolute(directory).map_err(|source| QueueError::io("find", directory, source))?;
        let lock = ServerLock::acquire(&directory)?;
        create_if_missing(&directory.join(FILE_NAME))?;
        let mut queue = Queue::open(&directory)?;
        check_all(&queue)?;
        use_log(&queue)?;
        let write = queue.write()?;
        let recovered = write.recover()?;
        write.commit()?;
        Ok((Self { queue, _lock: lock }, recovered))
    }

    /// The queue, for reading.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// The queue, for submissions and requests of owners.
    pub fn queue_mut(&mut self) -> &mut Queue {
        &mut self.queue
    }

    /// Applies transitions of [`TaskState`] in order, all or none. Clears requests that they carry out, and
    /// all requests of tasks that end.
    ///
    /// # Errors
    /// [`QueueError::IllegalTransition`] or [`QueueError::UnknownTask`] for the first that is refused.
    pub fn apply(&mut self, transitions: &[Transition]) -> Result<()> {
        if transitions.is_empty() {
            return Ok(());
        }
        let write = self.queue.write()?;
        for Transition { id, to, reason } in transitions {
            write.enter(*id, *to, reason)?;
        }
        write.commit()
    }

    /// Carries out the requests of tasks that do not train. Returns the tasks that changed their state, with
    /// the new one. Requests of running tasks are left to [`Queue::requests`] and [`LockedQueue::apply`].
    ///
    /// # Errors
    /// SQLite's errors.
    pub fn carry_out_waiting(&mut self) -> Result<Vec<(TaskId, TaskState)>> {
        let requests = self.queue.requests()?;
        if requests.iter().all(|task| task.state == TaskState::Running) {
            return Ok(Vec::new());
        }
        let write = self.queue.write()?;
        let carried = write.carry_out_waiting()?;
        write.commit()?;
        Ok(carried)
    }

    /// Stores the progress of tasks, and texts by key, in one transaction. Tasks may have ended or been
    /// parked meanwhile, because losses arrive late. Without a loss a task keeps that of the same step.
    ///
    /// # Errors
    /// [`QueueError::UnknownTask`] and SQLite's errors; nothing is written then.
    pub fn record(&mut self, progress: &[Progress], stored: &[(&str, &str)]) -> Result<()> {
        if progress.is_empty() && stored.is_empty() {
            return Ok(());
        }
        let write = self.queue.write()?;
        for task in progress {
            write.update(
                task.id,
                "UPDATE task SET step = ?2, \
                 last_loss = coalesce(?3, iif(step = ?2, last_loss, NULL)), \
                 best_metric = coalesce(?4, best_metric), changed = ?5 WHERE id = ?1",
                params![
                    Sql(task.id),
                    task.step,
                    task.last_loss.map(Sql),
                    task.best_metric.map(Sql),
                    write.number
                ],
            )?;
        }
        for (key, value) in stored {
            write.execute(
                "INSERT INTO stored VALUES (?1, ?2) \
                 ON CONFLICT (key) DO UPDATE SET value = excluded.value",
                params![key, value],
            )?;
        }
        write.commit()
    }

    /// Stores the steps that checkpoints on the disk hold.
    ///
    /// # Errors
    /// [`QueueError::UnknownTask`] and SQLite's errors; nothing is written then.
    pub fn saved(&mut self, steps: &[(TaskId, u64)]) -> Result<()> {
        self.set_steps("saved_step = ?2, step = max(step, ?2)", steps)
    }

    /// Stores how many steps tasks will take in all.
    ///
    /// # Errors
    /// [`QueueError::UnknownTask`] and SQLite's errors; nothing is written then.
    pub fn planned(&mut self, steps: &[(TaskId, u64)]) -> Result<()> {
        self.set_steps("total_steps = ?2", steps)
    }

    /// Stores the reasons why tasks run or wait. Nothing is written if nothing changed.
    ///
    /// # Errors
    /// [`QueueError::UnknownTask`] and SQLite's errors; nothing is written then.
    pub fn explain<S: AsRef<str>>(&mut self, explanations: &[(TaskId, S)]) -> Result<()> {
        if explanations.is_empty() {
            return Ok(());
        }
        let write = self.queue.write()?;
        let mut changed = 0;
        for (id, text) in explanations {
            let rows = write.execute(
                "UPDATE task SET explanation = ?2, changed = ?3 WHERE id = ?1 AND explanation != ?2",
                params![Sql(*id), text.as_ref(), write.number],
            )?;
            if rows == 0 {
                write.row_state(*id)?;
            }
            changed += rows;
        }
        if changed == 0 { Ok(()) } else { write.commit() }
    }

    fn set_steps(&mut self, columns: &str, steps: &[(TaskId, u64)]) -> Result<()> {
        if steps.is_empty() {
            return Ok(());
        }
        let sql = format!("UPDATE task SET {columns}, changed = ?3 WHERE id = ?1");
        let write = self.queue.write()?;
        for (id, step) in steps {
            write.update(*id, &sql, params![Sql(*id), step, write.number])?;
        }
        write.commit()
    }
}

/// Enables the write-ahead log, and refuses a file that is read-only: otherwise a server would notice
/// only after an iteration.
fn use_log(queue: &Queue) -> Result<()> {
    let path = queue.path();
    if queue.connection.is_readonly("main").at(path)? {
        return Err(QueueError::ReadOnly {
            path: path.to_owned(),
            problem: "it is read-only".to_owned(),
        });
    }
    let mode: String = queue
        .connection
        .query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))
        .at(path)?;
    if mode != "wal" {
        return Err(QueueError::Sqlite {
            path: path.to_owned(),
            source: format!("its file system does not support a write-ahead log: {mode}").into(),
        });
    }
    // Truncates a log that has grown when it is next restarted.
    queue
        .connection
        .pragma_update(None, "journal_size_limit", 16 << 20)
        .at(path)
}

impl Write<'_> {
    /// Recovers from a lost server. Only the holder of the lock may call this.
    pub(super) fn recover(&self) -> Result<Vec<Recovered>> {
        let sql = "SELECT id, step, saved_step FROM task WHERE state = 'running' \
                   OR state IN ('parked', 'paused') AND step != saved_step ORDER BY id";
        let behind = self.queue.rows(sql, [], |row| {
            Ok(Recovered {
                id: get(row, 0)?,
                from_step: row.get(1)?,
                to_step: row.get(2)?,
            })
        })?;
        for id in self.ids("state = 'running'")? {
            self.enter(id, TaskState::Parked, "server stopped")?;
        }
        for task in &behind {
            self.back_to_saved(task.id)?;
        }
        Ok(behind)
    }

    /// Sets a task back to the step of its last checkpoint.
    pub(super) fn back_to_saved(&self, id: TaskId) -> Result<()> {
        self.update(
            id,
            "UPDATE task SET last_loss = iif(step = saved_step, last_loss, NULL), \
             step = saved_step, changed = ?2 WHERE id = ?1",
            params![Sql(id), self.number],
        )
    }
}

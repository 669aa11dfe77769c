use rusqlite::{OptionalExtension, Row, params};

use crate::{
    EventKind, Queue, QueueError, Submission, TaskId, TaskState, connection::At, write::Write,
};

const REASON: &str = "submitted";

/// A submission that is in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accepted {
    /// The task.
    pub id: TaskId,
    /// Whether it is new; not if it was accepted before with the same key.
    pub new: bool,
}

impl Queue {
    /// Accepts a task. Once this has returned it is on the disk.
    ///
    /// A submission whose key was used before for the same name, tenant, priority, specification,
    /// dataset and sweep is that task, whatever has become of it.
    ///
    /// # Errors
    ///
    /// [`QueueError::Invalid`], [`QueueError::NameTaken`], [`QueueError::KeyTaken`], and what SQLite
    /// reports; nothing is accepted then.
    pub fn submit(&mut self, submission: &Submission) -> Result<Accepted, QueueError> {
        submission.check()?;
        let write = self.write()?;
        let accepted = write.accept(submission)?;
        write.commit()?;
        Ok(accepted)
    }

    /// Accepts several tasks, in their order, or none of them.
    ///
    /// # Errors
    ///
    /// As [`Queue::submit`], for the first that is refused.
    pub fn submit_all(&mut self, submissions: &[Submission]) -> Result<Vec<Accepted>, QueueError> {
        submissions.iter().try_for_each(Submission::check)?;
        let write = self.write()?;
        let accepted = submissions
            .iter()
            .map(|submission| write.accept(submission))
            .collect::<Result<_, _>>()?;
        write.commit()?;
        Ok(accepted)
    }
}

impl Write<'_> {
    fn accept(&self, submission: &Submission) -> Result<Accepted, QueueError> {
        if let Some(key) = &submission.key
            && let Some((id, existing)) = self.accepted_with(key)?
        {
            let differs = submission.differences(&existing);
            if differs.is_empty() {
                return Ok(Accepted { id, new: false });
            }
            return Err(QueueError::KeyTaken {
                key: key.clone(),
                id,
                existing: existing.name,
                name: submission.name.clone(),
                differs,
            });
        }
        self.refuse_taken(&submission.name)?;
        let id = self.insert(submission)?;
        self.event(id, EventKind::Entered(TaskState::Queued), REASON)?;
        Ok(Accepted { id, new: true })
    }

    fn accepted_with(&self, key: &str) -> Result<Option<(TaskId, Submission)>, QueueError> {
        let sql = format!(
            "SELECT {}, id FROM task JOIN spec ON spec.task = id WHERE key = ?1",
            Submission::COLUMNS
        );
        let read = |row: &Row<'_>| Ok((row.get(Submission::WIDTH)?, Submission::read(row)?));
        self.transaction()
            .prepare_cached(&sql)
            .and_then(|mut statement| statement.query_row([key], read).optional())
            .at(self.path())
    }

    pub(crate) fn refuse_taken(&self, name: &str) -> Result<(), QueueError> {
        let taken = self
            .transaction()
            .prepare_cached(
                "SELECT id, state FROM task \
                 WHERE name = ?1 AND state IN ('queued', 'running', 'parked', 'paused')",
            )
            .and_then(|mut statement| {
                let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?));
                statement.query_row([name], read).optional()
            })
            .at(self.path())?;
        taken.map_or(Ok(()), |(id, state)| {
            Err(QueueError::NameTaken {
                name: name.to_owned(),
                id,
                state,
            })
        })
    }

    fn insert(&self, submission: &Submission) -> Result<TaskId, QueueError> {
        let id = self
            .transaction()
            .prepare_cached(
                "INSERT INTO task (name, tenant, priority, dataset_hash, sweep, key, state, reason, \
                 explanation, step, saved_step, total_steps, submitted_at, changed) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, '', 0, 0, ?9, ?10, ?11) RETURNING id",
            )
            .and_then(|mut statement| {
                let values = params![
                    submission.name,
                    submission.tenant,
                    submission.priority,
                    submission.dataset_hash,
                    submission.sweep,
                    submission.key,
                    TaskState::Queued,
                    REASON,
                    submission.total_steps,
                    self.now(),
                    self.number(),
                ];
                statement.query_row(values, |row| row.get(0))
            })
            .at(self.path())?;
        self.execute(
            "INSERT INTO spec (task, text, digest) VALUES (?1, ?2, ?3)",
            params![id, submission.spec, submission.digest()],
        )?;
        Ok(id)
    }
}

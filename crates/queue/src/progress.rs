use rusqlite::params;

use crate::{QueueError, Server, TaskId, metric::Metric, write::Write};

/// How far a task has come.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    /// The task.
    pub id: TaskId,
    /// Optimizer steps taken.
    pub step: u64,
    /// Loss of the last step; `None` leaves what was known.
    pub last_loss: Option<f64>,
    /// Best validation loss; `None` leaves what was known.
    pub best_metric: Option<f64>,
}

impl Server {
    /// Writes down how far tasks have come, and what the scheduler wants to find again after a crash, in
    /// one transaction: once an iteration.
    ///
    /// A task may have ended or been parked since: losses come late.
    ///
    /// # Errors
    ///
    /// [`QueueError::UnknownTask`], and what SQLite reports; nothing is written then.
    pub fn record(
        &mut self,
        progress: &[Progress],
        stored: &[(&str, &str)],
    ) -> Result<(), QueueError> {
        if progress.is_empty() && stored.is_empty() {
            return Ok(());
        }
        let write = self.queue.write()?;
        for task in progress {
            let rows = write.execute(
                "UPDATE task SET step = ?2, last_loss = coalesce(?3, last_loss), \
                 best_metric = coalesce(?4, best_metric), changed = ?5 WHERE id = ?1",
                params![
                    task.id,
                    task.step,
                    task.last_loss.map(Metric),
                    task.best_metric.map(Metric),
                    write.number()
                ],
            )?;
            expect_row(rows, task.id)?;
        }
        for (key, value) in stored {
            write.store(key, value)?;
        }
        write.commit()
    }

    /// Writes down that checkpoints on the disk hold these steps of these tasks.
    ///
    /// # Errors
    ///
    /// [`QueueError::UnknownTask`], and what SQLite reports; nothing is written then.
    pub fn saved(&mut self, steps: &[(TaskId, u64)]) -> Result<(), QueueError> {
        self.for_each(steps, |write, id, step| {
            write.execute(
                "UPDATE task SET saved_step = ?2, step = max(step, ?2), changed = ?3 WHERE id = ?1",
                params![id, step, write.number()],
            )
        })
    }

    /// Writes down how many steps these tasks will take, once that is known.
    ///
    /// # Errors
    ///
    /// [`QueueError::UnknownTask`], and what SQLite reports; nothing is written then.
    pub fn planned(&mut self, steps: &[(TaskId, u64)]) -> Result<(), QueueError> {
        self.for_each(steps, |write, id, step| {
            write.execute(
                "UPDATE task SET total_steps = ?2, changed = ?3 WHERE id = ?1",
                params![id, step, write.number()],
            )
        })
    }

    /// Writes down why tasks run or what they wait for. Where nothing is new, nothing is written.
    ///
    /// # Errors
    ///
    /// [`QueueError::UnknownTask`], and what SQLite reports; nothing is written then.
    pub fn explain(&mut self, explanations: &[(TaskId, &str)]) -> Result<(), QueueError> {
        if explanations.is_empty() {
            return Ok(());
        }
        let write = self.queue.write()?;
        let mut changed = 0;
        for (id, text) in explanations {
            let rows = write.execute(
                "UPDATE task SET explanation = ?2, changed = ?3 WHERE id = ?1 AND explanation != ?2",
                params![id, text, write.number()],
            )?;
            if rows == 0 {
                write.standing(*id)?;
            }
            changed += rows;
        }
        if changed == 0 { Ok(()) } else { write.commit() }
    }

    fn for_each(
        &mut self,
        steps: &[(TaskId, u64)],
        update: impl Fn(&Write<'_>, TaskId, u64) -> Result<usize, QueueError>,
    ) -> Result<(), QueueError> {
        if steps.is_empty() {
            return Ok(());
        }
        let write = self.queue.write()?;
        for (id, step) in steps {
            expect_row(update(&write, *id, *step)?, *id)?;
        }
        write.commit()
    }
}

fn expect_row(rows: usize, id: TaskId) -> Result<(), QueueError> {
    if rows == 0 {
        return Err(QueueError::UnknownTask(id));
    }
    Ok(())
}

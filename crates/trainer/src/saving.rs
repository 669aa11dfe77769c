//! What a run writes: adapters for PEFT, and checkpoints to go on from. The training stands still only
//! while adapters are copied to the host's memory.

use std::{sync::Arc, time::Instant};

use loraloom_scheduler::TaskId;
use serde_json::Value;

use crate::{
    Event, TrainerError,
    adapter::{ModelAdapter, on_host, peft_config},
    ledger::Ledger,
    report::Best,
    session::Session,
    snapshot::Running,
    standby::Standby,
    task::TrainingTask,
    waiting::WaitingTask,
    writer::{AdapterFiles, Before, Part, Parts, Writer},
};

/// A run ends when saves have failed at so many moments in a row.
const MOST_FAILURES: usize = 3;

/// What is known of a run's saves.
#[derive(Debug)]
pub(crate) struct Saving {
    /// Digest of the model's files.
    pub(crate) model: String,
    /// The configuration as checkpoints have it.
    pub(crate) config: Value,
    /// Wall time of the parts of the run before this one.
    pub(crate) seconds_before: f64,
    /// When this part began.
    pub(crate) started: Instant,
    /// Checkpoints that are kept.
    pub(crate) keep: usize,
    /// Something has changed that a checkpoint should have.
    due: bool,
    /// Writes what was saved at this moment or the one before.
    writer: Option<Writer>,
    /// Bytes that this process may have, if a stage is in its memory and there is a limit.
    pub(crate) limit: Option<u64>,
    /// Saves the run if it is to stop inside a step.
    pub(crate) standby: Option<Arc<Standby>>,
    /// The iteration after which the last checkpoint was begun here.
    pub(crate) written_at: Option<u64>,
    /// Tasks of which `last` or `best` could not be written, and what is there.
    unsaved: Vec<(TaskId, Before)>,
    /// Something was saved since the last moment.
    saved: bool,
    /// What could not be saved since then, and why.
    problems: Vec<String>,
    /// What cannot be saved on any disk.
    fatal: Option<TrainerError>,
    /// Moments in a row at which something could not be saved.
    failures: usize,
}

impl Saving {
    pub(crate) fn new(model: String, config: Value, seconds_before: f64, keep: usize) -> Self {
        Self {
            model,
            config,
            seconds_before,
            started: Instant::now(),
            keep,
            due: false,
            writer: None,
            limit: None,
            standby: None,
            written_at: None,
            unsaved: Vec::new(),
            saved: false,
            problems: Vec::new(),
            fatal: None,
            failures: 0,
        }
    }

    /// Wall time of the run.
    pub(crate) fn seconds(&self) -> f64 {
        self.seconds_before + self.started.elapsed().as_secs_f64()
    }

    /// Asks for a checkpoint at the end of this moment.
    pub(crate) fn ask(&mut self) {
        self.due = true;
    }

    /// Says what was written, if that has come to its end.
    pub(crate) fn poll(&mut self, ledger: &mut Ledger<'_>) {
        if self.writer.as_ref().is_some_and(Writer::is_finished) {
            self.wait(ledger);
        }
    }

    /// As [`poll`](Self::poll), once it has.
    pub(crate) fn wait(&mut self, ledger: &mut Ledger<'_>) {
        let Some(writer) = self.writer.take() else {
            return;
        };
        let written = writer.join();
        for (files, result) in written.adapters {
            if self.attempt(result).is_some() {
                ledger.emit(Event::Checkpoint {
                    adapter: files.name,
                    step: files.step,
                    path: ledger.directory.relative(&files.path),
                });
            } else {
                self.unsaved.push((files.task, files.before));
            }
        }
        let Some(checkpoint) = written.checkpoint else {
            return;
        };
        if let Some(path) = self.attempt(checkpoint.path) {
            ledger.emit(Event::RunCheckpoint {
                iteration: checkpoint.iteration,
                path: ledger.directory.relative(&path),
                steps: checkpoint.steps.into_iter().collect(),
            });
        }
    }

    /// A task knows again what its `last` and `best` are, if they could not be replaced.
    pub(crate) fn take_back(&self, task: &mut TrainingTask) {
        for (_, before) in self.unsaved.iter().filter(|(id, _)| *id == task.id) {
            match before {
                Before::Last(step) => task.saved_steps = *step,
                Before::Best(best) => task.best = *best,
            }
        }
    }

    /// What was saved, if it was. The run goes on without it if it is the disk's fault.
    fn attempt<T>(&mut self, saved: Result<T, TrainerError>) -> Option<T> {
        match saved {
            Ok(saved) => {
                self.saved = true;
                return Some(saved);
            }
            Err(error) if error.is_of_storage() => self.problems.push(error.to_string()),
            Err(error) => self.fatal = Some(error),
        }
        None
    }
}

impl Drop for Saving {
    /// A process that ends would cut off what is being written.
    fn drop(&mut self) {
        self.writer.take().map(Writer::join);
    }
}

/// Bytes below `limit` that the running tasks are not expected to need.
fn room(limit: Option<u64>, expected: Option<u64>) -> Option<u64> {
    limit.map(|limit| limit.saturating_sub(expected.unwrap_or(0)))
}

impl Session<'_> {
    /// Has a running adapter written as `last`, and its checkpoint with the same copy of it.
    pub(crate) fn save_last(&mut self, index: usize) -> Result<(), TrainerError> {
        let states = self.copy_and_write_last(index)?;
        let task = &self.ledger.running[index];
        let (id, step, name) = (task.id, task.steps, task.config.name.clone());
        let tensors = self.tensors(id, states)?;
        let room = self.room_for_copies();
        self.writer().draft((id, step), name, tensors, room);
        Ok(())
    }

    /// Has a running adapter written as `best`, now that an evaluation is.
    pub(crate) fn save_best(&mut self, index: usize, best: Best) -> Result<(), TrainerError> {
        // Knows first what became of the one before.
        self.writer();
        let before = self.ledger.running[index].best.replace(best);
        self.copy_and_write(index, Before::Best(before)).map(drop)
    }

    /// Writes a running adapter as `last` at once; whether the disk took it.
    pub(crate) fn save_now(&mut self, index: usize) -> Result<bool, TrainerError> {
        self.copy_and_write_last(index)?;
        self.wait_for_writer();
        self.check()?;
        let task = &self.ledger.running[index];
        Ok(task.saved_steps == Some(task.steps))
    }

    fn copy_and_write_last(&mut self, index: usize) -> Result<ModelAdapter, TrainerError> {
        self.writer();
        let task = &mut self.ledger.running[index];
        let before = task.saved_steps.replace(task.steps);
        self.saving.ask();
        self.copy_and_write(index, Before::Last(before))
    }

    /// Copies a running adapter to the host's memory and has it written as `last` or `best`.
    fn copy_and_write(
        &mut self,
        index: usize,
        before: Before,
    ) -> Result<ModelAdapter, TrainerError> {
        self.check_directory()?;
        let place = self.ledger.place(index);
        let states = on_host(self.pipeline.extract(place.group, place.slot)?)?;
        let part = self.files(&self.ledger.running[index], states.clone(), before);
        let room = self.room_for_copies();
        self.writer().send(part, room);
        Ok(states)
    }

    /// An adapter as it is to be written.
    fn files(&self, task: &TrainingTask, states: ModelAdapter, before: Before) -> Part {
        let which = match before {
            Before::Last(_) => "last",
            Before::Best(_) => "best",
        };
        let files = AdapterFiles {
            task: task.id,
            name: task.config.name.clone(),
            step: task.steps,
            path: self.ledger.directory.adapter(&task.config.name, which),
            before,
        };
        let like = self.shapes.get(&task.id);
        let config = peft_config(self.ledger.config, &task.config, like);
        Part::Adapter(files, Box::new(config), states)
    }

    /// Has every adapter written that has moved on since it was last written.
    pub(crate) fn save_begun(&mut self) -> Result<(), TrainerError> {
        self.writer();
        for index in 0..self.ledger.running.len() {
            let task = &self.ledger.running[index];
            if task.saved_steps != Some(task.steps) {
                self.save_last(index)?;
            }
        }
        let parked: Vec<TaskId> = self
            .waiting
            .values()
            .map(|waiting| waiting.task.id)
            .collect();
        for id in parked {
            let Some(WaitingTask { task, adapter }) = self.waiting.get(&id) else {
                continue;
            };
            let unsaved = task.steps > 0 && task.saved_steps != Some(task.steps);
            let Some(states) = adapter.clone().filter(|_| unsaved) else {
                continue;
            };
            let part = self.files(task, states, Before::Last(task.saved_steps));
            if let Some(WaitingTask { task, .. }) = self.waiting.get_mut(&id) {
                task.saved_steps = Some(task.steps);
            }
            let room = self.room_for_copies();
            self.writer().send(part, room);
        }
        Ok(())
    }

    /// Says what could not be saved, and begins to write what is to be written at this moment.
    ///
    /// # Errors
    /// [`TrainerError::SavesFailed`] if that has happened too often.
    pub(crate) fn settle(&mut self) -> Result<(), TrainerError> {
        self.check_directory()?;
        self.saving.poll(&mut self.ledger);
        self.take_back();
        self.check()?;
        let saved = std::mem::take(&mut self.saving.saved);
        if let Some(problem) = self.report_problems() {
            self.saving.failures += 1;
            let times = self.saving.failures;
            if times >= MOST_FAILURES {
                return Err(TrainerError::SavesFailed { times, problem });
            }
        } else if saved {
            self.saving.failures = 0;
        }
        self.start_writing(Running::There)
    }

    /// As [`settle`](Self::settle), when everything is written.
    ///
    /// # Errors
    /// As [`settle`](Self::settle).
    pub(crate) fn settle_now(&mut self) -> Result<(), TrainerError> {
        self.settle()?;
        self.wait_for_writer();
        self.settle()
    }

    /// As [`settle`](Self::settle) at the end of a run, where a checkpoint is written in any case.
    ///
    /// # Errors
    /// [`TrainerError::SavesFailed`] if anything could not be saved.
    pub(crate) fn settle_all(&mut self) -> Result<(), TrainerError> {
        self.saving.ask();
        self.start_writing(Running::There)?;
        self.wait_for_writer();
        self.check()?;
        let times = self.saving.failures + 1;
        match self.report_problems() {
            Some(problem) => Err(TrainerError::SavesFailed { times, problem }),
            None => Ok(()),
        }
    }

    /// What writes at this moment. What was saved before is written first, and what became of it known.
    fn writer(&mut self) -> &mut Parts {
        if self.saving.writer.as_ref().is_some_and(Writer::is_closed) {
            self.saving.wait(&mut self.ledger);
        }
        self.take_back();
        let ledger = &self.ledger;
        let (iteration, keep) = (ledger.iteration, self.saving.keep);
        let start = || Writer::start(ledger.directory.checkpoints(), iteration, keep);
        self.saving.writer.get_or_insert_with(start).parts()
    }

    /// Bytes that copies which are not yet written may take, beside what the running tasks are expected
    /// to; `None` if no memory is limited that they are in.
    pub(crate) fn room_for_copies(&self) -> Option<u64> {
        room(self.saving.limit, self.ledger.bytes_predicted)
    }

    /// Has a checkpoint written, if one was asked for; all that is to be written at this moment is sent
    /// then.
    fn start_writing(&mut self, running: Running<'_>) -> Result<(), TrainerError> {
        self.check_directory()?;
        if std::mem::take(&mut self.saving.due) {
            self.writer();
            if let Some(mut writer) = self.saving.writer.take() {
                let sent = self.write_checkpoint(writer.parts(), running);
                let writing = writer.writing();
                self.saving.writer = Some(writer);
                sent?;
                self.saving.written_at = Some(self.ledger.iteration);
                if let Some(standby) = &self.saving.standby {
                    standby.has_begun(writing);
                }
            }
        }
        if let Some(writer) = &mut self.saving.writer {
            writer.close();
        }
        Ok(())
    }

    /// Nothing is written into a directory that has taken the place of the run's.
    ///
    /// # Errors
    /// [`TrainerError::DirectoryGone`] if the run directory is not where it was.
    pub(crate) fn check_directory(&self) -> Result<(), TrainerError> {
        if self.ledger.directory.is_there() {
            return Ok(());
        }
        let parked = self.waiting.values().map(|waiting| &waiting.task);
        let begun = self.ledger.running.iter().chain(parked);
        let begun = begun.filter(|task| task.steps > 0);
        let lost = begun.map(|task| format!("{} at step {}", task.config.name, task.steps));
        Err(TrainerError::DirectoryGone {
            path: self.ledger.directory.path().to_owned(),
            lost: lost.collect(),
        })
    }

    /// Waits for what is being written.
    pub(crate) fn wait_for_writer(&mut self) {
        self.saving.wait(&mut self.ledger);
        self.take_back();
    }

    fn check(&mut self) -> Result<(), TrainerError> {
        self.saving.fatal.take().map_or(Ok(()), Err)
    }

    /// Every task knows again what its `last` and `best` are.
    fn take_back(&mut self) {
        let waiting = self.waiting.values_mut();
        let waiting = waiting.map(|waiting| &mut waiting.task);
        for task in waiting.chain(&mut self.ledger.running) {
            self.saving.take_back(task);
        }
        self.saving.unsaved.clear();
    }

    /// Says what could not be saved; the last of it.
    pub(crate) fn report_problems(&mut self) -> Option<String> {
        let mut problems = std::mem::take(&mut self.saving.problems);
        for problem in &problems {
            let message = format!("not saved: {problem}");
            self.ledger.emit(Event::Warning { message });
        }
        problems.pop()
    }

    /// Writes a checkpoint with what is left of a run that lost a stage: running tasks as the last
    /// checkpoint has them, parked ones as they are. Nothing is written if nothing is parked.
    pub(crate) fn rescue(&mut self) {
        self.wait_for_writer();
        let parked = |task: &TrainingTask| task.steps > 0;
        if self.waiting.values().any(|waiting| parked(&waiting.task)) {
            self.saving.ask();
            if let Err(error) = self.start_writing(Running::Lost) {
                self.saving.problems.push(error.to_string());
            }
            self.wait_for_writer();
        }
        self.report_problems();
    }
}

#[cfg(test)]
mod tests {
    use super::room;

    #[test]
    fn copies_have_what_the_running_tasks_leave() {
        assert_eq!(room(Some(10), Some(4)), Some(6));
        assert_eq!(room(Some(3), Some(4)), Some(0));
        assert_eq!(room(Some(3), None), Some(3));
        assert_eq!(room(None, Some(4)), None);
    }
}

//! What a run writes: adapters for PEFT, and checkpoints to go on from.

use std::{fs, time::Instant};

use loraloom_model::LayerAdapter;
use loraloom_scheduler::TaskId;
use serde_json::Value;

use crate::{
    Event, TrainerError, adapter::to_peft, session::Session, snapshot::Running, task::TrainingTask,
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
    /// Something was saved at this moment.
    saved: bool,
    /// What could not be saved at this moment, and why.
    problems: Vec<String>,
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
            saved: false,
            problems: Vec::new(),
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

    /// What was saved, if it was; whoever saved goes on without it if it is the disk's fault.
    fn attempt<T>(&mut self, saved: Result<T, TrainerError>) -> Result<Option<T>, TrainerError> {
        match saved {
            Ok(saved) => {
                self.saved = true;
                Ok(Some(saved))
            }
            Err(error) if error.is_of_storage() => {
                self.problems.push(error.to_string());
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

impl Session<'_> {
    /// Writes a running adapter as `last` or `best`; whether the disk took it.
    pub(crate) fn save(&mut self, index: usize, which: &str) -> Result<bool, TrainerError> {
        let place = self.ledger.place(index);
        let states = self.pipeline.extract(place.group, place.slot)?;
        let task = &self.ledger.running[index];
        let written = self.write_adapter(task, &states, which);
        let (adapter, step) = (task.config.name.clone(), task.steps);
        let Some(path) = self.saving.attempt(written)? else {
            return Ok(false);
        };
        if which == "last" {
            self.ledger.running[index].saved_steps = Some(step);
            self.saving.ask();
        }
        self.ledger.emit(Event::Checkpoint {
            adapter,
            step,
            path,
        });
        Ok(true)
    }

    /// Writes an adapter; where, relative to the run directory.
    fn write_adapter(
        &self,
        task: &TrainingTask,
        states: &[LayerAdapter],
        which: &str,
    ) -> Result<String, TrainerError> {
        let path = self.ledger.directory.adapter(&task.config.name, which);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(|error| TrainerError::write(parent, error))?;
        }
        let shape = self.shapes.get(&task.id);
        to_peft(self.ledger.config, &task.config, shape, states)?.save(&path)?;
        Ok(self.ledger.directory.relative(&path))
    }

    /// Writes every adapter that has moved on since it was last written.
    pub(crate) fn save_begun(&mut self) -> Result<(), TrainerError> {
        for index in 0..self.ledger.running.len() {
            let task = &self.ledger.running[index];
            if task.saved_steps != Some(task.steps) {
                self.save(index, "last")?;
            }
        }
        self.save_parked()
    }

    /// Writes the adapters of parked tasks that have moved on since they were last written.
    fn save_parked(&mut self) -> Result<(), TrainerError> {
        let ids: Vec<TaskId> = self.waiting.keys().copied().collect();
        for id in ids {
            let Some(waiting) = self.waiting.get(&id) else {
                continue;
            };
            let (task, step) = (&waiting.task, waiting.task.steps);
            let Some(states) = waiting.adapter.as_deref().filter(|_| step > 0) else {
                continue;
            };
            if task.saved_steps == Some(step) {
                continue;
            }
            let (adapter, written) = (
                task.config.name.clone(),
                self.write_adapter(task, states, "last"),
            );
            if let Some(path) = self.saving.attempt(written)? {
                if let Some(waiting) = self.waiting.get_mut(&id) {
                    waiting.task.saved_steps = Some(step);
                }
                self.ledger.emit(Event::Checkpoint {
                    adapter,
                    step,
                    path,
                });
            }
        }
        Ok(())
    }

    /// Writes a checkpoint if one was asked for, and says what could not be saved at this moment.
    ///
    /// # Errors
    /// [`TrainerError::SavesFailed`] if that has happened too often.
    pub(crate) fn settle(&mut self) -> Result<(), TrainerError> {
        if std::mem::take(&mut self.saving.due) {
            self.checkpoint(Running::There)?;
        }
        let saved = std::mem::take(&mut self.saving.saved);
        let Some(problem) = self.report_problems() else {
            if saved {
                self.saving.failures = 0;
            }
            return Ok(());
        };
        self.saving.failures += 1;
        let times = self.saving.failures;
        if times < MOST_FAILURES {
            return Ok(());
        }
        Err(TrainerError::SavesFailed { times, problem })
    }

    /// As [`settle`](Self::settle) at the end of a run, where a checkpoint is written in any case.
    ///
    /// # Errors
    /// [`TrainerError::SavesFailed`] if anything could not be saved.
    pub(crate) fn settle_all(&mut self) -> Result<(), TrainerError> {
        self.saving.due = false;
        self.checkpoint(Running::There)?;
        let times = self.saving.failures + 1;
        match self.report_problems() {
            Some(problem) => Err(TrainerError::SavesFailed { times, problem }),
            None => Ok(()),
        }
    }

    /// Says what could not be saved; the last of it.
    fn report_problems(&mut self) -> Option<String> {
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
        let parked = |task: &TrainingTask| task.steps > 0;
        if !self.waiting.values().any(|waiting| parked(&waiting.task)) {
            return;
        }
        if let Err(error) = self.checkpoint(Running::Lost) {
            self.saving.problems.push(error.to_string());
        }
        self.report_problems();
    }

    fn checkpoint(&mut self, running: Running) -> Result<(), TrainerError> {
        let written = self.write_checkpoint(running);
        if let Some(path) = self.saving.attempt(written)? {
            let iteration = self.ledger.iteration;
            let path = self.ledger.directory.relative(&path);
            self.ledger.emit(Event::RunCheckpoint { iteration, path });
        }
        Ok(())
    }
}

//! What a run writes: adapters for PEFT, and checkpoints to go on from.

use std::{collections::BTreeMap, fs, path::PathBuf, time::Instant};

use loraloom_model::LayerAdapter;
use loraloom_scheduler::TaskId;
use serde_json::Value;

use crate::{
    AdapterReport, Event, TrainerError,
    adapter::to_peft,
    checkpoint::{
        BestRecord, Exact, FORMAT, RECORD, RunRecord, SavedRun, Staged, Standing, TaskRecord,
        encode, prune, tensors_file,
    },
    session::Session,
    task::TrainingTask,
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
    /// Something has changed that a checkpoint should have.
    due: bool,
    /// Something was saved at this moment.
    saved: bool,
    /// What could not be saved at this moment, and why.
    problems: Vec<String>,
    /// Moments in a row at which something could not be saved.
    failures: usize,
}

/// Where running tasks' adapters are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Running {
    /// In the stages.
    There,
    /// Nowhere: a stage is lost.
    Lost,
}

impl Saving {
    pub(crate) fn new(model: String, config: Value, seconds_before: f64) -> Self {
        Self {
            model,
            config,
            seconds_before,
            started: Instant::now(),
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

    /// Writes the adapters of parked tasks that have moved on since they were last written.
    pub(crate) fn save_parked(&mut self) -> Result<(), TrainerError> {
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
        match self.report_problems() {
            Some(problem) => {
                self.saving.failures += 1;
                let times = self.saving.failures;
                if times < MOST_FAILURES {
                    return Ok(());
                }
                Err(TrainerError::SavesFailed { times, problem })
            }
            None => {
                if saved {
                    self.saving.failures = 0;
                }
                Ok(())
            }
        }
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

    fn write_checkpoint(&self, running: Running) -> Result<PathBuf, TrainerError> {
        let parent = self.ledger.directory.checkpoints();
        let before = if running == Running::Lost || !self.held.is_empty() {
            SavedRun::newest(self.ledger.directory.path()).ok()
        } else {
            None
        };
        let mut staged = Staged::create(&parent, self.ledger.iteration)?;
        let mut tasks: BTreeMap<TaskId, TaskRecord> = BTreeMap::new();
        for (id, report) in &self.ended {
            let record = if self.held.contains(id) {
                as_before(&mut staged, before.as_ref(), queued(report))?
            } else {
                ended(report)
            };
            tasks.insert(*id, record);
        }
        for (index, task) in self.ledger.running.iter().enumerate() {
            let record = if running == Running::Lost {
                let queued = queued_task(task);
                as_before(&mut staged, before.as_ref(), queued)?
            } else {
                let place = self.ledger.place(index);
                let states = self.pipeline.extract(place.group, place.slot)?;
                self.begun(&mut staged, task, &states)?
            };
            tasks.insert(task.id, record);
        }
        for waiting in self.waiting.values() {
            let task = &waiting.task;
            let record = match &waiting.adapter {
                Some(states) => self.begun(&mut staged, task, states)?,
                None => queued_task(task),
            };
            tasks.insert(task.id, record);
        }
        let record = RunRecord {
            format: FORMAT,
            loraloom: env!("CARGO_PKG_VERSION").to_owned(),
            iteration: self.ledger.iteration,
            tokens: self.ledger.tokens,
            seconds: self.saving.seconds(),
            model: self.saving.model.clone(),
            layers: self.pipeline.config().num_hidden_layers,
            config: self.saving.config.clone(),
            tasks: tasks.into_values().collect(),
        };
        let text = serde_json::to_vec_pretty(&record);
        let text = text.map_err(|error| TrainerError::write(&parent, error.into()))?;
        staged.write(RECORD, &text)?;
        let path = staged.commit()?;
        let keep = self.ledger.config.adapters.iter();
        let keep = keep.map(|adapter| adapter.save.keep).max();
        prune(&parent, keep.unwrap_or(1))?;
        Ok(path)
    }

    /// Writes the tensors of a task that has begun.
    fn begun(
        &self,
        staged: &mut Staged,
        task: &TrainingTask,
        states: &[LayerAdapter],
    ) -> Result<TaskRecord, TrainerError> {
        let initial = self.initial.get(&task.id);
        let (modules, file) = encode(states, initial.map(Vec::as_slice))?;
        staged.write(&tensors_file(&task.config.name), &file)?;
        let shape = self.shapes.get(&task.id);
        Ok(TaskRecord {
            has_moved: initial.is_none(),
            peft_config: shape.map(|shape| shape.to_json()).transpose()?,
            modules,
            ..task.record()
        })
    }
}

/// A task as the checkpoint before has it, with its tensors, or else without a step.
fn as_before(
    staged: &mut Staged,
    before: Option<&SavedRun>,
    queued: TaskRecord,
) -> Result<TaskRecord, TrainerError> {
    let found = before.and_then(|before| {
        let mut tasks = before.record().tasks.iter();
        Some((before, tasks.find(|task| task.name == queued.name)?))
    });
    let Some((before, record)) = found else {
        return Ok(queued);
    };
    if let Some(file) = before.tensors_of(record)? {
        staged.write(&tensors_file(&record.name), &file)?;
    }
    Ok(record.clone())
}

fn queued_task(task: &TrainingTask) -> TaskRecord {
    TaskRecord {
        data: task.data_digest().to_owned(),
        ..without_steps(&task.config.name, task.total_steps)
    }
}

fn queued(report: &AdapterReport) -> TaskRecord {
    without_steps(&report.name, report.total_steps)
}

fn without_steps(name: &str, total_steps: usize) -> TaskRecord {
    TaskRecord {
        name: name.to_owned(),
        standing: Standing::Queued,
        step: 0,
        total_steps,
        data: String::new(),
        first_loss: None,
        last_loss: None,
        best: None,
        evaluations_without_best: 0,
        saved_steps: None,
        samples: Vec::new(),
        has_moved: false,
        peft_config: None,
        modules: BTreeMap::new(),
    }
}

fn ended(report: &AdapterReport) -> TaskRecord {
    TaskRecord {
        standing: Standing::Ended(report.outcome.clone()),
        step: report.steps,
        first_loss: report.first_loss.map(Exact),
        last_loss: report.last_loss.map(Exact),
        best: report.best.map(|best| BestRecord {
            step: best.step,
            loss: Exact(best.loss),
        }),
        saved_steps: report.directory.as_ref().map(|_| report.steps),
        samples: report.samples.clone(),
        has_moved: true,
        ..without_steps(&report.name, report.total_steps)
    }
}

//! A run in progress as a checkpoint has it.

use std::{collections::BTreeMap, path::PathBuf};

use loraloom_model::{LayerAdapter, PeftLoraConfig};
use loraloom_scheduler::TaskId;

use crate::{
    AdapterReport, TrainerError,
    checkpoint::{
        BestRecord, Exact, FORMAT, LEARNT, LedgerRecord, RECORD, RunRecord, SavedRun, Staged,
        Standing, TaskRecord, encode, prune, tensors_file,
    },
    session::Session,
    task::TrainingTask,
};

/// Where running tasks' adapters are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Running {
    /// In the stages.
    There,
    /// Nowhere: a stage is lost.
    Lost,
}

impl Session<'_> {
    /// Writes a checkpoint; where.
    pub(crate) fn write_checkpoint(&self, running: Running) -> Result<PathBuf, TrainerError> {
        let parent = self.ledger.directory.checkpoints();
        let before = if running == Running::Lost || !self.held.is_empty() {
            SavedRun::newest(self.ledger.directory.path()).ok()
        } else {
            None
        };
        let mut staged = Staged::create(&parent, self.ledger.iteration)?;
        let mut tasks: BTreeMap<TaskId, TaskRecord> = BTreeMap::new();
        // Of tasks that came from a queue it knows itself which have ended.
        let reports = self.ended.iter().filter(|_| !self.numbered);
        for (id, report) in reports {
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
            fair_shares: self.fair_shares(),
            tasks: tasks
                .into_iter()
                .map(|(id, record)| TaskRecord {
                    number: self.numbered.then_some(id.0),
                    trial: self.trials.results(id),
                    waited: self.history.waited.get(&id).copied().unwrap_or(0.0),
                    ..record
                })
                .collect(),
        };
        let failed = |error: serde_json::Error| TrainerError::write(&parent, error.into());
        let text = serde_json::to_vec_pretty(&record).map_err(failed)?;
        staged.write(RECORD, &text)?;
        if let Some(learnt) = &self.history.learnt {
            staged.write(LEARNT, &serde_json::to_vec(learnt).map_err(failed)?)?;
        }
        let path = staged.commit()?;
        prune(&parent, self.saving.keep)?;
        Ok(path)
    }

    fn fair_shares(&self) -> Vec<LedgerRecord> {
        let ledgers = self.history.ledgers.iter();
        ledgers
            .map(|(&priority, ledger)| LedgerRecord {
                priority,
                level: ledger.level,
                counters: ledger.counters.clone(),
            })
            .collect()
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
            peft_config: shape.map(PeftLoraConfig::to_json).transpose()?,
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
        waited: 0.0,
        data: String::new(),
        first_loss: None,
        last_loss: None,
        best: None,
        evaluations_without_best: 0,
        saved_steps: None,
        samples: Vec::new(),
        has_moved: false,
        halvings: 0,
        peft_config: None,
        number: None,
        trial: Vec::new(),
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

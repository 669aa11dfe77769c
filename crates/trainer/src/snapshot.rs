//! A run in progress as a checkpoint has it.

use std::collections::BTreeMap;

use loraloom_model::PeftLoraConfig;
use loraloom_scheduler::TaskId;

use crate::{
    AdapterReport, TrainerError,
    adapter::{ModelAdapter, on_host},
    checkpoint::{
        BestRecord, Exact, FORMAT, LedgerRecord, RunRecord, SavedRun, Standing, TaskRecord, Tensors,
    },
    rewind::Snapshot,
    session::Session,
    task::TrainingTask,
    writer::{Part, Parts},
};

/// Where running tasks' adapters are.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Running<'a> {
    /// In the stages.
    There,
    /// Here, as they were; nothing is written before all is sent.
    Kept(&'a Snapshot),
    /// Nowhere: a stage is lost.
    Lost,
}

impl Session<'_> {
    /// Has a checkpoint of the run written.
    pub(crate) fn write_checkpoint(
        &self,
        writer: &mut Parts,
        running: Running<'_>,
    ) -> Result<(), TrainerError> {
        let old = !self.held.is_empty() || !self.carried.is_empty();
        let room = match running {
            Running::Kept(_) => None,
            _ => self.room_for_copies(),
        };
        let before = if matches!(running, Running::Lost) || old {
            SavedRun::newest(self.ledger.directory.path()).ok()
        } else {
            None
        };
        let mut tasks: BTreeMap<TaskId, TaskRecord> = BTreeMap::new();
        // Of tasks that came from a queue it knows itself which have ended.
        let reports = self.ended.iter().filter(|_| !self.numbered);
        for (id, report) in reports {
            let record = if self.held.contains(id) {
                as_before(writer, room, before.as_ref(), queued(report))?
            } else {
                ended(report)
            };
            tasks.insert(*id, record);
        }
        for id in self.carried.keys() {
            let records = before.iter().flat_map(|before| &before.record().tasks);
            let mut begun = records.filter(|record| record.standing == Standing::Begun);
            if let Some(record) = begun.find(|record| record.number == Some(id.0)) {
                let record = as_before(writer, room, before.as_ref(), record.clone())?;
                tasks.insert(*id, record);
            }
        }
        if let Running::Kept(snapshot) = running {
            for (task, states) in &snapshot.tasks {
                tasks.insert(
                    task.id,
                    self.begun(writer, room, task, || Ok(states.clone()))?,
                );
            }
        } else {
            for (index, task) in self.ledger.running.iter().enumerate() {
                let record = if matches!(running, Running::Lost) {
                    as_before(writer, room, before.as_ref(), queued_task(task))?
                } else {
                    let place = self.ledger.place(index);
                    let copy = || Ok(on_host(self.pipeline.extract(place.group, place.slot)?)?);
                    self.begun(writer, room, task, copy)?
                };
                tasks.insert(task.id, record);
            }
        }
        for waiting in self.waiting.values() {
            let task = &waiting.task;
            let record = match &waiting.adapter {
                Some(states) => self.begun(writer, room, task, || Ok(states.clone()))?,
                None => queued_task(task),
            };
            tasks.insert(task.id, record);
        }
        let (iteration, tokens) = match running {
            Running::Kept(snapshot) => (snapshot.iteration, snapshot.tokens),
            _ => (self.ledger.iteration, self.ledger.tokens),
        };
        let record = RunRecord {
            format: FORMAT,
            loraloom: env!("CARGO_PKG_VERSION").to_owned(),
            iteration,
            tokens,
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
        let learnt = self.history.learnt.clone();
        writer.send(Part::Checkpoint(Box::new(record), learnt), None);
        Ok(())
    }

    fn fair_shares(&self) -> Vec<LedgerRecord> {
        self.history
            .ledgers
            .iter()
            .map(|(&priority, ledger)| LedgerRecord {
                priority,
                level: ledger.level,
                counters: ledger.counters.clone(),
            })
            .collect()
    }

    /// A task that has begun. `copy` puts its adapter in the host's memory, where the optimizer does not
    /// change it; not needed if that was sent with its `last`.
    fn begun(
        &self,
        writer: &mut Parts,
        room: Option<u64>,
        task: &TrainingTask,
        copy: impl FnOnce() -> Result<ModelAdapter, TrainerError>,
    ) -> Result<TaskRecord, TrainerError> {
        if !writer.has_drafted(task.id, task.steps) {
            let tensors = self.tensors(task.id, copy()?)?;
            let name = task.config.name.clone();
            writer.draft((task.id, task.steps), name, tensors, room);
        }
        let shape = self.shapes.get(&task.id);
        Ok(TaskRecord {
            has_moved: !self.initial.contains_key(&task.id),
            peft_config: shape.map(PeftLoraConfig::to_json).transpose()?,
            ..task.record()
        })
    }

    /// A task's tensors for the checkpoint; `states` is in the host's memory.
    pub(crate) fn tensors(
        &self,
        task: TaskId,
        states: ModelAdapter,
    ) -> Result<Tensors, TrainerError> {
        let initial = self.initial.get(&task).cloned();
        Ok(Tensors::Adapter(states, initial.map(on_host).transpose()?))
    }
}

/// A task as the checkpoint before has it, with its tensors, or else without a step.
fn as_before(
    writer: &mut Parts,
    room: Option<u64>,
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
        let part = Part::Tensors(record.name.clone(), Tensors::File(file));
        writer.send(part, room);
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
        best: report.best.map(BestRecord::from),
        saved_steps: report.directory.as_ref().map(|_| report.steps),
        samples: report.samples.clone(),
        has_moved: true,
        ..without_steps(&report.name, report.total_steps)
    }
}

use std::collections::BTreeMap;

use loraloom_scheduler::{History, Ledger, TaskId};

use super::{
    Saver,
    writer::{SaveItem, WriterQueue},
};
use crate::{
    TrainerError,
    adapter::{ModelAdapter, kept_on_host},
    checkpoint::{FORMAT, LedgerRecord, RecordState, RunRecord, SavedRun, TaskRecord, Tensors},
    error::Result,
    events::EventLog,
    tasks::{Placement, Snapshot, State, Task, Trials},
};

/// A run between two iterations, in a state that can be saved.
pub(crate) struct Moment<'s, 'a> {
    pub(crate) saver: &'s mut Saver<'a>,
    pub(crate) placed: &'s mut Placement,
    pub(crate) log: &'s mut EventLog<'a>,
    pub(crate) trials: &'s Trials,
    /// The scheduler's history as of its last decision.
    pub(crate) history: &'s History,
    /// Iterations of the run so far.
    pub(crate) iteration: u64,
    /// Tokens trained on so far.
    pub(crate) tokens: u64,
    /// Upper bound on the bytes of the running tasks, by the scheduler.
    pub(crate) bytes_predicted: Option<u64>,
    /// True if tasks come from a queue, which assigns their ids.
    pub(crate) numbered: bool,
}

/// Location of running tasks' adapters.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Running<'a> {
    /// In the stages.
    There,
    /// In a snapshot; nothing is written before all is sent.
    Kept(&'a Snapshot),
    /// Lost with a stage.
    Lost,
}

impl Moment<'_, '_> {
    /// Prevents writes into a directory that has replaced the run's.
    ///
    /// # Errors
    /// [`TrainerError::DirectoryGone`] if the run directory is no longer at its path.
    pub(crate) fn check_directory(&self) -> Result<()> {
        let directory = &self.log.directory;
        if directory.is_there() {
            return Ok(());
        }
        let tasks = &self.placed.tasks;
        let begun = tasks.running().chain(tasks.waiting());
        let begun = begun.filter(|task| task.steps > 0);
        let lost = begun.map(|task| format!("{} at step {}", task.config.name, task.steps));
        Err(TrainerError::DirectoryGone {
            path: directory.path().to_owned(),
            lost: lost.collect(),
        })
    }

    /// Sends a checkpoint of the run to a writer.
    pub(super) fn send_checkpoint(
        &self,
        queue: &mut WriterQueue,
        running: Running<'_>,
    ) -> Result<()> {
        let tasks = &self.placed.tasks;
        let old = !tasks.held.is_empty() || !tasks.carried.is_empty();
        let reads = matches!(running, Running::Lost) || old;
        let newest = || SavedRun::newest(self.log.directory.path()).ok();
        let before = reads.then(newest).flatten();
        let before = before.as_ref();
        let mut records: BTreeMap<TaskId, TaskRecord> = BTreeMap::new();
        // A queue records by itself which of its tasks have ended.
        let reports = tasks.ended.iter().filter(|_| !self.numbered);
        for (id, report) in reports {
            let record = if tasks.held.contains(id) {
                let queued = TaskRecord::queued(&report.name, report.total_steps);
                as_before(queue, before, queued)?
            } else {
                TaskRecord::ended(report)
            };
            records.insert(*id, record);
        }
        for id in tasks.carried.keys() {
            let saved = before.iter().flat_map(|before| &before.record().tasks);
            let mut begun = saved.filter(|record| record.standing == RecordState::Begun);
            if let Some(record) = begun.find(|record| record.number == Some(id.0)) {
                let record = as_before(queue, before, record.clone())?;
                records.insert(*id, record);
            }
        }
        let begun: Vec<&Task> = match running {
            Running::Kept(snapshot) => {
                let kept = snapshot.tasks().map(|(_, task)| task);
                kept.chain(tasks.waiting()).collect()
            }
            // When a stage is lost, a task that was moving between groups is in none.
            Running::There | Running::Lost => tasks.live().collect(),
        };
        for task in begun {
            let record = if task.is_running() && matches!(running, Running::Lost) {
                as_before(queue, before, task.record_without_steps())?
            } else {
                self.send_tensors(queue, task)?;
                task.record()?
            };
            records.insert(task.id, record);
        }
        let (iteration, tokens) = match running {
            Running::Kept(snapshot) => (snapshot.iteration, snapshot.tokens),
            Running::There | Running::Lost => (self.iteration, self.tokens),
        };
        let records = records.into_iter().map(|(id, record)| TaskRecord {
            number: self.numbered.then_some(id.0),
            trial: self.trials.results(id),
            waited: self.history.waited.get(&id).copied().unwrap_or(0.0),
            ..record
        });
        let record = RunRecord {
            format: FORMAT,
            loraloom: env!("CARGO_PKG_VERSION").to_owned(),
            iteration,
            tokens,
            seconds: self.saver.seconds(),
            model: self.saver.model.to_owned(),
            layers: self.placed.pipeline.config().num_hidden_layers,
            config: self.saver.config.clone(),
            fair_shares: self.fair_shares(),
            tasks: records.collect(),
        };
        let learnt = self.history.learnt.clone();
        queue.send(SaveItem::Checkpoint(Box::new(record), learnt));
        Ok(())
    }

    fn fair_shares(&self) -> Vec<LedgerRecord> {
        let record = |(&priority, ledger): (&i64, &Ledger)| LedgerRecord {
            priority,
            level: ledger.level,
            counters: ledger.counters.clone(),
        };
        self.history.ledgers.iter().map(record).collect()
    }

    /// Sends a task's state, unless it was sent with its `last`.
    fn send_tensors(&self, queue: &mut WriterQueue, task: &Task) -> Result<()> {
        if queue.has_tensors(task.id, task.steps) {
            return Ok(());
        }
        let states = match &task.state {
            State::Waiting => return Ok(()),
            State::Parked(states) => states.clone(),
            State::Running => self.placed.copy(task.id)?,
        };
        let name = task.config.name.clone();
        queue.send_tensors((task.id, task.steps), name, tensors(task, states)?);
        Ok(())
    }
}

/// A task's tensors for the checkpoint; `states` is in host memory.
pub(super) fn tensors(task: &Task, states: ModelAdapter) -> Result<Tensors> {
    let initial = task.initial.clone();
    Ok(Tensors::Adapter(
        states,
        initial.map(kept_on_host).transpose()?,
    ))
}

/// A task as in the previous checkpoint, with its tensors, or without a step if it is not in that.
fn as_before(
    queue: &mut WriterQueue,
    before: Option<&SavedRun>,
    queued: TaskRecord,
) -> Result<TaskRecord> {
    let found = before.and_then(|before| {
        let mut tasks = before.record().tasks.iter();
        Some((before, tasks.find(|task| task.name == queued.name)?))
    });
    let Some((before, record)) = found else {
        return Ok(queued);
    };
    if let Some(file) = before.tensors_of(record)? {
        queue.send(SaveItem::Tensors(record.name.clone(), Tensors::File(file)));
    }
    Ok(record.clone())
}

//! A run whose tasks come and go.

use std::{collections::BTreeMap, sync::Arc};

use loraloom_scheduler::{
    Outcome as TaskOutcome, Parking, Scheduler, SchedulerError, TaskId, TaskState,
};

use crate::{
    Event, NewTask, Order, Outcome, SavedRun, Signals, TaskSource, TrainerError,
    checkpoint::{Standing, TaskRecord},
    prepare::{Materials, Tasks},
    reader::{ReadTask, Reader},
    rows::RowCache,
    scheduling::Overseer,
    session::Session,
    task::TaskData,
};

/// A session and where its tasks come from.
pub(crate) struct Serving<'s, 'a> {
    pub(crate) session: &'s mut Session<'a>,
    pub(crate) overseer: &'s mut Overseer,
    pub(crate) materials: Materials<'s>,
    /// Where tasks from before a restart go on from.
    pub(crate) saved: Option<&'s SavedRun>,
    pub(crate) reader: Reader,
    /// Tasks whose rows are being read.
    pub(crate) reading: BTreeMap<TaskId, Reading>,
}

/// A task whose rows are being read.
#[derive(Debug)]
pub(crate) struct Reading {
    adapter: String,
    /// Whether its owner holds it.
    held: bool,
}

impl Serving<'_, '_> {
    /// Follows orders and trains, until there will be no more or a stop is asked for.
    pub(crate) fn serve(
        &mut self,
        source: &mut dyn TaskSource,
        signals: Signals<'_>,
    ) -> Result<(), TrainerError> {
        let mut idle = true;
        loop {
            if signals.stop() {
                return self.session.interrupt();
            }
            let Some(orders) = source.orders(idle).map_err(TrainerError::Source)? else {
                return self.session.interrupt();
            };
            // Tasks that come together share what is read.
            let mut cache =
                RowCache::new(self.materials.tokenizer, self.materials.model.vocab_size);
            let news = !orders.is_empty();
            for order in orders {
                self.follow(order, &mut cache)?;
            }
            if news {
                self.tell(source)?;
            }
            let read: Vec<ReadTask> = self.reader.read().collect();
            for ReadTask { task, rows } in read {
                if let Some(reading) = self.reading.remove(&task.id) {
                    self.begin(&task, reading.held, rows)?;
                }
            }
            self.session.history = self.overseer.history();
            self.session.settle()?;
            idle = !self.session.train_some(self.overseer, signals)?;
            if idle {
                self.session.give_up_waiting(self.overseer)?;
                self.session.settle_now()?;
            }
            self.tell(source)?;
        }
    }

    /// Tells why tasks that wait do so.
    fn tell(&self, source: &mut dyn TaskSource) -> Result<(), TrainerError> {
        let waiting = self.session.waiting.keys();
        let why = |&id: &TaskId| Some((id, self.overseer.why(id)?));
        let read = |&id: &TaskId| (id, "its dataset is being read".to_owned());
        let reading = self.reading.keys().map(read);
        let waiting: Vec<_> = waiting.filter_map(why).chain(reading).collect();
        source.decided(&waiting).map_err(TrainerError::Source)
    }

    fn follow(&mut self, order: Order, cache: &mut RowCache<'_>) -> Result<(), TrainerError> {
        match order {
            // A checkpoint without what a task had done would lose that: it is there before the next.
            Order::Train(task) if self.has_begun(&task) => {
                let rows = cache.read(&task.adapter, &task.dataset, task.seed);
                self.begin(&task, task.paused, rows)
            }
            Order::Train(task) => {
                let reading = Reading {
                    adapter: task.adapter.name.clone(),
                    held: task.paused,
                };
                self.reading.insert(task.id, reading);
                self.reader.ask(task);
                Ok(())
            }
            Order::Pause(id) => {
                if let Some(reading) = self.reading.get_mut(&id) {
                    reading.held = true;
                } else if self
                    .overseer
                    .state(id)
                    .is_some_and(|state| !state.is_final())
                {
                    self.session.park(Parking {
                        task: id,
                        by: None,
                        reason: "its owner holds it".into(),
                    })?;
                    self.overseer.pause(id)?;
                }
                Ok(())
            }
            Order::Resume(id) => {
                if let Some(reading) = self.reading.get_mut(&id) {
                    reading.held = false;
                } else if self.overseer.state(id) == Some(TaskState::Paused) {
                    self.overseer.resume(id)?;
                }
                Ok(())
            }
            Order::Cancel(id) => {
                if let Some(Reading { adapter, .. }) = self.reading.remove(&id) {
                    let step = 0;
                    let event = Event::AdapterCancelled { adapter, step };
                    self.session.ledger.emit(event);
                } else if self.session.cancel(id)? {
                    self.overseer.finish(id, TaskOutcome::Cancelled)?;
                }
                Ok(())
            }
            Order::Fail(id, reason) => self.fail(id, reason),
        }
    }

    fn fail(&mut self, id: TaskId, reason: String) -> Result<(), TrainerError> {
        let outcome = if let Some(index) = self.session.ledger.index_of(id) {
            self.session.fail(index, reason)?;
            TaskOutcome::Failed
        } else if let Some(waiting) = self.session.waiting.remove(&id) {
            self.session.fail_waiting(waiting, reason);
            // To the scheduler it is one that nobody wants any more.
            TaskOutcome::Cancelled
        } else {
            if let Some(Reading { adapter, .. }) = self.reading.remove(&id) {
                self.refuse(adapter, reason);
            }
            return Ok(());
        };
        Ok(self.overseer.finish(id, outcome)?)
    }

    /// Takes a task up. Whatever is wrong with it is that task's end, and nobody else's.
    fn begin(
        &mut self,
        new: &NewTask,
        held: bool,
        rows: Result<Arc<TaskData>, TrainerError>,
    ) -> Result<(), TrainerError> {
        let id = new.id;
        let mut tasks = Tasks::default();
        if let Err(error) = rows.and_then(|rows| self.make(new, rows, &mut tasks)) {
            if error.is_out_of_memory() {
                return Err(error);
            }
            self.refuse(new.adapter.name.clone(), error.to_string());
            return Ok(());
        }
        if let Some(report) = tasks.ended.remove(&id) {
            let reason = match report.outcome {
                Outcome::Failed { reason } => reason,
                _ => "it had ended before".to_owned(),
            };
            self.refuse(new.adapter.name.clone(), reason);
            return Ok(());
        }
        if let Some((sweep, stopping)) = &new.sweep
            && let Some(trial) = tasks.trial(id)
        {
            self.session.trials.enter(sweep, stopping, trial)?;
        }
        let waiting = tasks.waiting.first();
        let bytes = waiting.map_or(0, |waiting| {
            tasks.adapter_bytes(waiting, self.materials.model)
        });
        let waited = tasks.waited(id);
        for message in self.session.take(tasks) {
            self.session.ledger.emit(Event::Warning { message });
        }
        let Some(waiting) = self.session.waiting.get(&id) else {
            return Ok(());
        };
        let keep = waiting.task.config.save.keep;
        self.session.saving.keep = self.session.saving.keep.max(keep);
        let split = self.session.ledger.config.pipeline.microbatches;
        let submitted = waiting.submit(self.overseer, bytes, split, waited);
        match submitted {
            Err(error @ SchedulerError::NeverFits { .. }) => {
                if let Some(waiting) = self.session.waiting.remove(&id) {
                    self.session.fail_waiting(waiting, error.to_string());
                }
                return Ok(());
            }
            submitted => submitted?,
        }
        if held {
            self.overseer.pause(id)?;
        }
        Ok(())
    }

    /// Whether a task is in the checkpoint that the run goes on from, with steps of it.
    fn has_begun(&self, new: &NewTask) -> bool {
        let saved = self.saved.iter().flat_map(|saved| &saved.record().tasks);
        let mut same = saved.filter(|record| is_of(record, new));
        same.any(|record| record.standing == Standing::Begun)
    }

    /// The task at its beginning or where it was saved.
    fn make(
        &self,
        new: &NewTask,
        rows: Arc<TaskData>,
        tasks: &mut Tasks,
    ) -> Result<(), TrainerError> {
        let changed = rows.digest != new.digest;
        let saved = match self.saved {
            Some(run) => run.task(&new.adapter.name)?.map(|task| (run, task)),
            None => None,
        };
        let saved = saved.filter(|(_, task)| is_of(&task.record, new));
        self.materials
            .add(tasks, new.id, &new.adapter, rows, saved)?;
        if changed && tasks.ended.is_empty() {
            return Err(TrainerError::DatasetChanged {
                dataset: new.adapter.dataset.clone(),
            });
        }
        Ok(())
    }

    /// Ends a task that was never taken up.
    fn refuse(&mut self, adapter: String, reason: String) {
        let step = 1;
        let event = Event::AdapterFailed {
            adapter,
            step,
            reason,
        };
        self.session.ledger.emit(event);
    }
}

/// Whether a record is of this task, and not of one that had its name before.
fn is_of(record: &TaskRecord, new: &NewTask) -> bool {
    record.name == new.adapter.name && record.number == Some(new.id.0)
}

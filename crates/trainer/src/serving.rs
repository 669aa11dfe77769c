//! A run whose tasks come and go.

use loraloom_scheduler::{
    Outcome as TaskOutcome, Parking, Scheduler, SchedulerError, TaskId, TaskState,
};

use crate::{
    Event, NewTask, Order, Outcome, SavedRun, Signals, TaskSource, TrainerError,
    checkpoint::{Standing, TaskRecord},
    prepare::{DataCache, Materials, Tasks, Wanted},
    scheduling::Overseer,
    session::Session,
};

/// A session and where its tasks come from.
pub(crate) struct Serving<'s, 'a> {
    pub(crate) session: &'s mut Session<'a>,
    pub(crate) overseer: &'s mut Overseer,
    pub(crate) materials: Materials<'s>,
    /// Where tasks from before a restart go on from.
    pub(crate) saved: Option<&'s SavedRun>,
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
            let mut data = DataCache::default();
            for order in orders {
                self.follow(order, &mut data)?;
            }
            self.session.settle()?;
            idle = !self.session.train_some(self.overseer, signals)?;
            if idle {
                self.session.give_up_waiting(self.overseer)?;
            }
            let ledgers = self.overseer.ledgers();
            source
                .decided(&self.waiting(), &ledgers)
                .map_err(TrainerError::Source)?;
        }
    }

    /// Why tasks that wait do so.
    fn waiting(&self) -> Vec<(TaskId, String)> {
        let waiting = self.session.waiting.keys();
        let why = |&id: &TaskId| Some((id, self.overseer.why(id)?));
        waiting.filter_map(why).collect()
    }

    fn follow(&mut self, order: Order, data: &mut DataCache) -> Result<(), TrainerError> {
        match order {
            Order::Train(task) => self.begin(&task, data),
            Order::Pause(id) => {
                if self
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
                if self.overseer.state(id) == Some(TaskState::Paused) {
                    self.overseer.resume(id)?;
                }
                Ok(())
            }
            Order::Cancel(id) => {
                if self.session.cancel(id)? {
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
            return Ok(());
        };
        Ok(self.overseer.finish(id, outcome)?)
    }

    /// Takes a task up. Whatever is wrong with it is that task's end, and nobody else's.
    fn begin(&mut self, new: &NewTask, data: &mut DataCache) -> Result<(), TrainerError> {
        let id = new.id;
        let mut tasks = Tasks::default();
        if let Err(error) = self.read(new, &mut tasks, data) {
            if error.is_out_of_memory() {
                return Err(error);
            }
            self.refuse(new, error.to_string());
            return Ok(());
        }
        if let Some(report) = tasks.ended.remove(&id) {
            let reason = match report.outcome {
                Outcome::Failed { reason } => reason,
                _ => "it had ended before".to_owned(),
            };
            self.refuse(new, reason);
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
        for message in self.session.take(tasks) {
            self.session.ledger.emit(Event::Warning { message });
        }
        let Some(waiting) = self.session.waiting.get(&id) else {
            return Ok(());
        };
        let keep = waiting.task.config.save.keep;
        self.session.saving.keep = self.session.saving.keep.max(keep);
        let split = self.session.ledger.config.pipeline.microbatches;
        let submitted = waiting.submit(self.overseer, bytes, split);
        match submitted {
            Err(error @ SchedulerError::NeverFits { .. }) => {
                if let Some(waiting) = self.session.waiting.remove(&id) {
                    self.session.fail_waiting(waiting, error.to_string());
                }
                return Ok(());
            }
            submitted => submitted?,
        }
        if new.paused {
            self.overseer.pause(id)?;
        }
        Ok(())
    }

    fn read(
        &self,
        new: &NewTask,
        tasks: &mut Tasks,
        data: &mut DataCache,
    ) -> Result<(), TrainerError> {
        let wanted = Wanted {
            id: new.id,
            adapter: &new.adapter,
            dataset: &new.dataset,
            seed: new.seed,
        };
        let saved = match self.saved {
            Some(run) => run.task(&new.adapter.name)?.map(|task| (run, task)),
            None => None,
        };
        let is_this = |record: &TaskRecord| {
            record.number == Some(new.id.0) && record.standing == Standing::Begun
        };
        let saved = saved.filter(|(_, task)| is_this(&task.record));
        self.materials.add(tasks, data, wanted, saved)?;
        let waiting = tasks.waiting.first().map(|waiting| &waiting.task);
        if waiting.is_some_and(|task| task.data_digest() != new.digest) {
            return Err(TrainerError::DatasetChanged {
                dataset: new.adapter.dataset.clone(),
            });
        }
        Ok(())
    }

    /// Ends a task that was never taken up.
    fn refuse(&mut self, new: &NewTask, reason: String) {
        self.session.ledger.emit(Event::AdapterFailed {
            adapter: new.adapter.name.clone(),
            step: 1,
            reason,
        });
    }
}

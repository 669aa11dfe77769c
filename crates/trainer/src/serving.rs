//! A run whose tasks come and go.

use std::{
    collections::BTreeMap,
    error::Error,
    fs::{self, File},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use loraloom_config::Validation;
use loraloom_scheduler::{
    DeviceMemory, GroupedRoom, Outcome as TaskOutcome, Parking, Scheduler, SchedulerError, TaskId,
    TaskState,
};

use crate::{
    AdapterReport, Event, NewTask, Order, Outcome, SavedRun, Signals, TrainerError,
    checkpoint::{Standing, TaskRecord},
    prepare::{TaskFactory, Tasks, short},
    reader::{ReadTask, Reader},
    rows::RowCache,
    session::Session,
    task::TaskData,
};

/// Files that cannot be read are looked for this often.
const LOOK_FOR_FILES: Duration = Duration::from_secs(1);

/// A session and where its tasks come from.
pub(crate) struct Serving<'s, 'a> {
    pub(crate) session: &'s mut Session<'a>,
    pub(crate) scheduler: &'s mut Scheduler<GroupedRoom<DeviceMemory>>,
    pub(crate) factory: TaskFactory<'s>,
    /// Where tasks from before a restart go on from.
    pub(crate) saved: Option<&'s SavedRun>,
    pub(crate) reader: Reader,
    /// Tasks whose rows are being read.
    pub(crate) reading: BTreeMap<TaskId, Reading>,
    /// Tasks that wait for a file to be back.
    pub(crate) absent: BTreeMap<TaskId, Absent>,
    /// When files were last looked for.
    pub(crate) looked: Instant,
}

/// A task that waits for a file to be back.
#[derive(Debug)]
pub(crate) struct Absent {
    task: Box<NewTask>,
    /// Whether its owner holds it.
    held: bool,
    /// Which file cannot be read, and why.
    reason: String,
    /// Its files when they were last looked at.
    seen: Vec<Option<Seen>>,
}

/// Length of a file with something in it, and when it was last written.
type Seen = (u64, SystemTime);

impl Absent {
    /// Looks at its files; whether all of them are there and nobody has written to them since the last
    /// look.
    fn is_back(&mut self) -> bool {
        let look = |path: &PathBuf| {
            let found = fs::metadata(path).ok()?;
            let readable = found.is_file() && found.len() > 0 && File::open(path).is_ok();
            readable.then_some((found.len(), found.modified().ok()?))
        };
        let now: Vec<_> = files(&self.task).map(look).collect();
        let is_back = now.iter().all(Option::is_some) && now == self.seen;
        self.seen = now;
        is_back
    }
}

/// A task whose rows are being read.
#[derive(Debug)]
pub(crate) struct Reading {
    adapter: String,
    /// Whether its owner holds it.
    held: bool,
}

impl Serving<'_, '_> {
    /// Carries out orders and trains, until the source or a signal ends the run.
    pub(crate) fn serve(&mut self, signals: Signals<'_>) -> Result<(), TrainerError> {
        let mut idle = true;
        loop {
            if signals.stop() {
                return self.end();
            }
            let orders = match self.session.ledger.source.orders(idle) {
                Ok(Some(orders)) => orders,
                Ok(None) => return self.end(),
                Err(error) => {
                    self.end()?;
                    return Err(TrainerError::Source(error));
                }
            };
            // Tasks that come together share what is read.
            let mut cache = RowCache::new(self.factory.tokenizer, self.factory.model.vocab_size);
            let news = !orders.is_empty();
            for order in orders {
                self.follow(order, &mut cache)?;
            }
            if news {
                self.explain()?;
            }
            self.look_for_files();
            let read: Vec<ReadTask> = self.reader.read().collect();
            for ReadTask { task, rows } in read {
                if let Some(reading) = self.reading.remove(&task.id) {
                    self.begin(task, reading.held, rows)?;
                }
            }
            self.session.history = self.scheduler.history(self.session.now());
            self.session.settle()?;
            idle = !self.session.train_some(self.scheduler, signals)?;
            if idle {
                self.session.give_up_waiting(self.scheduler)?;
                self.session.settle_now()?;
            }
            self.explain()?;
        }
    }

    /// Saves everything, and reports tasks that wait for a file.
    fn end(&mut self) -> Result<(), TrainerError> {
        for (id, Absent { task, reason, .. }) in std::mem::take(&mut self.absent) {
            let report = untrained(task.adapter.name, 0, reason);
            self.session.ended.insert(id, report);
        }
        self.session.interrupt()
    }

    /// Has the rows of tasks read whose files are back.
    fn look_for_files(&mut self) {
        if self.looked.elapsed() < LOOK_FOR_FILES {
            return;
        }
        self.looked = Instant::now();
        let back = self.absent.extract_if(.., |_, absent| absent.is_back());
        for (id, Absent { task, held, .. }) in back {
            let adapter = task.adapter.name.clone();
            self.reading.insert(id, Reading { adapter, held });
            self.reader.ask(task);
        }
    }

    /// Tells the source why each task trains or waits.
    fn explain(&mut self) -> Result<(), TrainerError> {
        let waiting = self.session.waiting.keys();
        let why = |&id: &TaskId| Some((id, self.scheduler.why(id)?));
        let read = |&id: &TaskId| (id, "its dataset is being read".to_owned());
        let reading = self.reading.keys().map(read);
        let absent = self
            .absent
            .iter()
            .map(|(&id, absent)| (id, absent.reason.clone()));
        let running = self.session.ledger.running.iter().map(|task| {
            let why = match task.parts {
                1 => "trains".to_owned(),
                parts => format!(
                    "trains; its step is spread over {parts} iterations, since it slows shorter steps \
                     of its group down by more than scheduler.max_slowdown otherwise"
                ),
            };
            (task.id, why)
        });
        let reasons: Vec<_> = waiting
            .filter_map(why)
            .chain(reading)
            .chain(absent)
            .chain(running)
            .collect();
        let source = &mut self.session.ledger.source;
        source.decided(&reasons).map_err(TrainerError::Source)
    }

    fn follow(&mut self, order: Order, cache: &mut RowCache<'_>) -> Result<(), TrainerError> {
        if let Order::Train(task) = &order {
            // A checkpoint has one task of a name.
            let carried = &mut self.session.carried;
            carried.retain(|&id, name| id == task.id || *name != task.adapter.name);
        }
        match order {
            // A checkpoint without what a task had done would lose that: it is there before the next.
            Order::Train(task) if self.has_begun(&task) => {
                let rows = cache.read(&task.adapter, &task.dataset, task.seed);
                self.begin(task.clone(), task.paused, rows)
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
                } else if let Some(absent) = self.absent.get_mut(&id) {
                    absent.held = true;
                } else if self
                    .scheduler
                    .state(id)
                    .is_some_and(|state| !state.is_final())
                {
                    self.session.park(Parking {
                        task: id,
                        by: None,
                        reason: "its owner holds it".into(),
                    })?;
                    self.scheduler.pause(id, self.session.now())?;
                }
                Ok(())
            }
            Order::Resume(id) => {
                if let Some(reading) = self.reading.get_mut(&id) {
                    reading.held = false;
                } else if let Some(absent) = self.absent.get_mut(&id) {
                    absent.held = false;
                } else if self.scheduler.state(id) == Some(TaskState::Paused) {
                    self.scheduler.resume(id, self.session.now())?;
                }
                Ok(())
            }
            Order::Cancel(id) => {
                self.session.carried.remove(&id);
                if let Some(adapter) = self.not_begun(id) {
                    let step = 0;
                    let event = Event::AdapterCancelled { adapter, step };
                    self.session.ledger.emit(event);
                } else if self.session.cancel(id)? {
                    self.scheduler
                        .finish(id, TaskOutcome::Cancelled, self.session.now())?;
                }
                Ok(())
            }
            Order::Fail(id, reason) => self.fail(id, reason),
            Order::Keep(id, name) => {
                self.session.carried.insert(id, name);
                Ok(())
            }
        }
    }

    /// Forgets a task whose rows are not there yet; its name.
    fn not_begun(&mut self, id: TaskId) -> Option<String> {
        let reading = self.reading.remove(&id).map(|reading| reading.adapter);
        reading.or_else(|| Some(self.absent.remove(&id)?.task.adapter.name))
    }

    fn fail(&mut self, id: TaskId, reason: String) -> Result<(), TrainerError> {
        if let Some(index) = self.session.ledger.index_of(id) {
            let step = self.session.ledger.running[index].steps + 1;
            self.session.fail(index, step, reason)?;
        } else if let Some(waiting) = self.session.waiting.remove(&id) {
            self.session.fail_waiting(waiting, reason);
        } else {
            if let Some(adapter) = self.not_begun(id) {
                self.refuse(id, adapter, 0, reason);
            }
            return Ok(());
        }
        let now = self.session.now();
        Ok(self.scheduler.finish(id, TaskOutcome::Failed, now)?)
    }

    /// Takes a task up. Whatever is wrong with it is that task's end, and nobody else's; a file that
    /// cannot be read is waited for.
    fn begin(
        &mut self,
        new: Box<NewTask>,
        held: bool,
        rows: Result<Arc<TaskData>, TrainerError>,
    ) -> Result<(), TrainerError> {
        let id = new.id;
        let name = new.adapter.name.clone();
        let mut tasks = Tasks::default();
        if let Err(error) = rows.and_then(|rows| self.make(&new, rows, &mut tasks)) {
            if error.is_out_of_memory() {
                return Err(error);
            }
            if error.is_of_an_absent_file() {
                let cause = error.source().map(|cause| format!(": {cause}"));
                let cause = cause.unwrap_or_default();
                let reason = format!("{error}{cause}; it goes on when that can be read again");
                let message = format!("`{name}` waits: {reason}");
                self.session.ledger.emit(Event::Warning { message });
                self.session.carried.insert(id, name);
                let absent = Absent {
                    task: new,
                    held,
                    reason,
                    seen: Vec::new(),
                };
                self.absent.insert(id, absent);
            } else {
                self.refuse(id, name, 0, error.to_string());
            }
            return Ok(());
        }
        if let Some(report) = tasks.ended.remove(&id) {
            let reason = match report.outcome {
                Outcome::Failed { reason } => reason,
                _ => "it had ended before".to_owned(),
            };
            self.refuse(id, name, report.steps, reason);
            return Ok(());
        }
        self.session.carried.remove(&id);
        self.session.ended.remove(&id);
        if let Some((sweep, stopping)) = &new.sweep
            && let Some(trial) = tasks.trial(id)
        {
            self.session.trials.enter(sweep, stopping, trial)?;
        }
        let waiting = tasks.waiting.first();
        let bytes = waiting.map_or(0, |waiting| {
            tasks.adapter_bytes(waiting, self.factory.model)
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
        let now = self.session.now();
        let submitted = waiting.submit(self.scheduler, bytes, split, waited, now);
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
            self.scheduler.pause(id, self.session.now())?;
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
        &mut self,
        new: &NewTask,
        rows: Arc<TaskData>,
        tasks: &mut Tasks,
    ) -> Result<(), TrainerError> {
        let digest = rows.digest.clone();
        let newest;
        let run = if self.session.carried.contains_key(&new.id) {
            // What this process has saved of it is newer.
            self.session.wait_for_writer();
            newest = SavedRun::newest(self.session.ledger.directory.path()).ok();
            newest.as_ref()
        } else {
            self.saved
        };
        let saved = match run {
            Some(run) => run.task(&new.adapter.name)?.map(|task| (run, task)),
            None => None,
        };
        let saved = saved.filter(|(_, task)| is_of(&task.record, new));
        self.factory.add(tasks, new.id, &new.adapter, rows, saved)?;
        if digest != new.digest && tasks.ended.is_empty() {
            return Err(TrainerError::DatasetChanged {
                dataset: new.adapter.dataset.clone(),
                before: short(&new.digest),
                now: short(&digest),
            });
        }
        Ok(())
    }

    /// Ends a task that was never taken up, and that has taken so many steps before.
    fn refuse(&mut self, id: TaskId, adapter: String, steps: usize, reason: String) {
        self.session.carried.insert(id, adapter.clone());
        let report = untrained(adapter.clone(), steps, reason.clone());
        self.session.ended.insert(id, report);
        let step = steps + 1;
        let event = Event::AdapterFailed {
            adapter,
            step,
            reason,
        };
        self.session.ledger.emit(event);
    }
}

/// The end of a task that was not taken up.
fn untrained(name: String, steps: usize, reason: String) -> AdapterReport {
    AdapterReport {
        name,
        outcome: Outcome::Failed { reason },
        steps,
        total_steps: 0,
        first_loss: None,
        last_loss: None,
        best: None,
        directory: None,
        samples: Vec::new(),
    }
}

/// What a task's rows are from.
fn files(task: &NewTask) -> impl Iterator<Item = &PathBuf> {
    let validation = match &task.dataset.validation {
        Validation::File(path) => Some(path),
        Validation::Fraction(_) => None,
    };
    task.dataset.path.iter().chain(validation)
}

/// Whether a record is of this task, and not of one that had its name before.
fn is_of(record: &TaskRecord, new: &NewTask) -> bool {
    record.name == new.adapter.name && record.number == Some(new.id.0)
}

//! A run whose tasks come from a queue.

use std::{
    collections::BTreeMap,
    error::Error,
    fs::{self, File},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use loraloom_config::Validation;
use loraloom_data::DataError;
use loraloom_inference::{Neighbour, TRAINED_TOKEN};
use loraloom_scheduler::{
    DeviceMemory, GroupedRoom, Parking, Scheduler, SchedulerError, TaskId, TaskOutcome, TaskState,
};

use super::{Signals, session::Session};
use crate::{
    AdapterReport, Event, NewTask, Outcome, SavedRun, TaskCommand, TrainerError,
    checkpoint::{RecordState, TaskRecord},
    error::Result,
    generate::LiveAsks,
    tasks::{Prepared, ReadTask, Reader, RowCache, RunShape, Task, TaskData, TaskFactory, short},
};

/// Interval at which files that could not be read are checked.
const LOOK_FOR_FILES: Duration = Duration::from_secs(1);

/// A session and its source of tasks.
pub(super) struct Serving<'s, 'a> {
    pub(super) session: &'s mut Session<'a>,
    pub(super) scheduler: &'s mut Scheduler<GroupedRoom<DeviceMemory>>,
    pub(super) factory: TaskFactory<'s>,
    /// Checkpoint from before a restart.
    pub(super) saved: Option<&'s SavedRun>,
    pub(super) run: RunShape<'s>,
    pub(super) reader: Reader,
    /// Tasks whose rows are not read yet.
    pub(super) unread: BTreeMap<TaskId, Unread>,
    /// When files were last looked for.
    pub(super) looked: Instant,
    pub(super) live: Option<&'s LiveAsks>,
}

/// A task whose rows are not read yet.
#[derive(Debug)]
pub(super) struct Unread {
    adapter: String,
    /// True if its owner paused it.
    held: bool,
    /// Present if it waits for a file; otherwise its rows are being read.
    absent: Option<Absent>,
}

/// A task that waits for a file.
#[derive(Debug)]
struct Absent {
    task: Box<NewTask>,
    /// The file that cannot be read, and the error.
    reason: String,
    /// Its files at the last check.
    seen: Vec<Option<Seen>>,
}

/// Length of a file that is not empty, and its modification time.
type Seen = (u64, SystemTime);

impl Absent {
    /// Checks its files. Returns whether all exist and are unchanged since the last check.
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

impl Serving<'_, '_> {
    /// Carries out commands and trains, until the source or a signal ends the run.
    pub(super) fn serve(&mut self, signals: Signals<'_>) -> Result<()> {
        let mut idle = true;
        loop {
            if signals.stop() {
                return self.end();
            }
            let commands = match self.session.log.source.commands(idle) {
                Ok(Some(commands)) => commands,
                Ok(None) => return self.end(),
                Err(error) => {
                    self.end()?;
                    return Err(TrainerError::Source(error));
                }
            };
            // Tasks that arrive together share the rows that are read.
            let cache = RowCache::new(self.factory.tokenizer, self.factory.model.vocab_size);
            let mut cache = cache.until(signals.stop);
            let news = !commands.is_empty();
            for command in commands {
                self.follow(command, &mut cache)?;
            }
            if news {
                self.explain()?;
            }
            self.look_for_files();
            let read: Vec<ReadTask> = self.reader.read().collect();
            for ReadTask { task, rows } in read {
                let is_read = |unread: &Unread| unread.absent.is_none();
                if self.unread.get(&task.id).is_some_and(is_read)
                    && let Some(unread) = self.unread.remove(&task.id)
                {
                    self.begin(task, unread.held, rows)?;
                }
            }
            self.session.history = self.scheduler.history(self.session.now());
            self.session.moment().settle()?;
            if let Some(live) = self.live {
                live.answer(&self.session.placed);
                self.settle_accounts(live.neighbour());
                live.neighbour().trains(!idle);
            }
            idle = !self.session.train_some(self.scheduler, signals)?;
            if idle {
                self.session.fail_unplaceable(self.scheduler)?;
                self.session.moment().settle_now()?;
            }
            self.explain()?;
        }
    }

    /// Charges tenants for answers, and the neighbour's accounts for training.
    fn settle_accounts(&mut self, neighbour: &Neighbour) {
        for (tenant, cost) in neighbour.take_answered() {
            self.scheduler.charge(&tenant, cost / TRAINED_TOKEN);
        }
        for (tenant, tokens) in std::mem::take(&mut self.session.trained) {
            neighbour.trained(&tenant, tokens as f64 * TRAINED_TOKEN);
        }
    }

    /// Saves everything, and reports tasks that wait for a file.
    fn end(&mut self) -> Result<()> {
        for (id, unread) in std::mem::take(&mut self.unread) {
            if let Some(absent) = unread.absent {
                let report = untrained(unread.adapter, 0, absent.reason);
                self.session.placed.tasks.ended.insert(id, report);
            }
        }
        self.session.interrupt()
    }

    /// Requests the rows of tasks whose files are back.
    fn look_for_files(&mut self) {
        if self.looked.elapsed() < LOOK_FOR_FILES {
            return;
        }
        self.looked = Instant::now();
        for unread in self.unread.values_mut() {
            if let Some(absent) = unread.absent.take_if(Absent::is_back) {
                self.reader.ask(absent.task);
            }
        }
    }

    /// Tells the source the reason why each task trains or waits.
    fn explain(&mut self) -> Result<()> {
        let tasks = &self.session.placed.tasks;
        let why = |task: &Task| Some((task.id, self.scheduler.why(task.id)?));
        let unread = self.unread.iter().map(|(&id, unread)| {
            let reason = unread.absent.as_ref().map(|absent| absent.reason.as_str());
            (id, reason.unwrap_or("its dataset is being read").to_owned())
        });
        let running = tasks.running().map(|task| {
            let why = match task.parts {
                1 => "trains".to_owned(),
                parts => format!(
                    "trains; its step is spread over {parts} iterations, since it would slow down \
                     shorter steps of its group by more than scheduler.max_slowdown"
                ),
            };
            (task.id, why)
        });
        let waiting = tasks.waiting().filter_map(why);
        let reasons: Vec<_> = waiting.chain(unread).chain(running).collect();
        let source = &mut self.session.log.source;
        source.decided(&reasons).map_err(TrainerError::Source)
    }

    fn follow(&mut self, command: TaskCommand, cache: &mut RowCache<'_>) -> Result<()> {
        if let TaskCommand::Train(task) = &command {
            // A checkpoint has one task of each name.
            let carried = &mut self.session.placed.tasks.carried;
            carried.retain(|&id, name| id == task.id || *name != task.adapter.name);
        }
        match command {
            // A checkpoint without the task would lose its progress, so it is added before the next one.
            TaskCommand::Train(task) if self.has_begun(&task) => {
                let rows = cache.read(&task.adapter, &task.dataset, task.seed);
                if matches!(rows, Err(TrainerError::Data(DataError::Stopped))) {
                    // The run ends, and its last checkpoint has what the task has trained.
                    let carried = &mut self.session.placed.tasks.carried;
                    carried.insert(task.id, task.adapter.name);
                    return Ok(());
                }
                self.begin(task.clone(), task.paused, rows)
            }
            TaskCommand::Train(task) => {
                let unread = Unread {
                    adapter: task.adapter.name.clone(),
                    held: task.paused,
                    absent: None,
                };
                self.unread.insert(task.id, unread);
                self.reader.ask(task);
                Ok(())
            }
            TaskCommand::Pause(id) => {
                let state = self.scheduler.state(id);
                // A command is repeated if its success could not be reported to the queue.
                let runs_or_waits = state.is_some_and(|state| state.can_become(TaskState::Paused));
                if !self.hold(id, true) && runs_or_waits {
                    self.session.park(Parking {
                        task: id,
                        by: None,
                        reason: "paused by its owner".into(),
                    })?;
                    self.scheduler.pause(id, self.session.now())?;
                    // The task may stay paused for days, and this process may end before.
                    self.session.saver.ask();
                }
                Ok(())
            }
            TaskCommand::Resume(id) => {
                let paused = self.scheduler.state(id) == Some(TaskState::Paused);
                if !self.hold(id, false) && paused {
                    self.scheduler.resume(id, self.session.now())?;
                }
                Ok(())
            }
            TaskCommand::Cancel(id) => {
                self.session.placed.tasks.carried.remove(&id);
                if let Some(Unread { adapter, .. }) = self.unread.remove(&id) {
                    let event = Event::AdapterCancelled { adapter, step: 0 };
                    self.session.log.emit(event);
                } else if self.session.cancel(id)? {
                    self.scheduler
                        .finish(id, TaskOutcome::Cancelled, self.session.now())?;
                }
                Ok(())
            }
            TaskCommand::Fail(id, reason) => self.fail(id, reason),
            TaskCommand::Keep(id, name) => {
                self.session.placed.tasks.carried.insert(id, name);
                Ok(())
            }
        }
    }

    /// Pauses or resumes a task whose rows are not read yet. Returns `false` if there is no such task.
    fn hold(&mut self, id: TaskId, held: bool) -> bool {
        let Some(unread) = self.unread.get_mut(&id) else {
            return false;
        };
        unread.held = held;
        true
    }

    fn fail(&mut self, id: TaskId, reason: String) -> Result<()> {
        if self.session.placed.tasks.get(id).is_none() {
            if let Some(unread) = self.unread.remove(&id) {
                self.refuse(id, unread.adapter, 0, reason);
            }
            return Ok(());
        }
        let (id, outcome) = self.session.fail_next(id, Outcome::failed(reason))?;
        Ok(self.scheduler.finish(id, outcome, self.session.now())?)
    }

    /// Adds a task. Its errors end only this task; one whose file cannot be read waits for the file.
    fn begin(&mut self, new: Box<NewTask>, held: bool, rows: Result<Arc<TaskData>>) -> Result<()> {
        let id = new.id;
        let name = new.adapter.name.clone();
        let mut prepared = Prepared::default();
        if let Err(error) = rows.and_then(|rows| self.make(&new, rows, &mut prepared)) {
            if error.is_out_of_memory() {
                return Err(error);
            }
            if error.is_of_an_absent_file() {
                let reason = reason(&error);
                let reason = format!("{reason}; it resumes when that is readable again");
                self.session.log.warn(format!("`{name}` waits: {reason}"));
                let carried = &mut self.session.placed.tasks.carried;
                carried.insert(id, name.clone());
                let unread = Unread {
                    adapter: name,
                    held,
                    absent: Some(Absent {
                        task: new,
                        reason,
                        seen: Vec::new(),
                    }),
                };
                self.unread.insert(id, unread);
            } else {
                self.refuse(id, name, 0, reason(&error));
            }
            return Ok(());
        }
        if let Some(report) = prepared.ended.remove(&id) {
            let reason = match report.outcome {
                Outcome::Failed { reason, .. } => reason,
                _ => "ended in an earlier run".to_owned(),
            };
            self.refuse(id, name, report.steps, reason);
            return Ok(());
        }
        let tasks = &mut self.session.placed.tasks;
        tasks.carried.remove(&id);
        tasks.ended.remove(&id);
        if let Some((sweep, stopping)) = &new.sweep
            && let Some(trial) = prepared.trial(id)
        {
            self.session.trials.enter(sweep, stopping, trial)?;
        }
        for message in self.session.take(prepared) {
            self.session.log.warn(message);
        }
        let Some(task) = self.session.placed.tasks.get(id) else {
            return Ok(());
        };
        let saver = &mut self.session.saver;
        saver.keep = saver.keep.max(task.config.save.keep);
        let now = self.session.now();
        match task.submit_to(self.scheduler, self.run, now) {
            Err(error @ SchedulerError::NeverFits { .. }) => {
                let never = Outcome::does_not_fit(error.to_string());
                self.session.fail_next(id, never)?;
                return Ok(());
            }
            submitted => submitted?,
        }
        if held {
            self.scheduler.pause(id, self.session.now())?;
        }
        Ok(())
    }

    /// True if a task has steps in the checkpoint that the run resumes from.
    fn has_begun(&self, new: &NewTask) -> bool {
        let saved = self.saved.iter().flat_map(|saved| &saved.record().tasks);
        let mut same = saved.filter(|record| is_of(record, new));
        same.any(|record| record.standing == RecordState::Begun)
    }

    /// The task at its beginning or as it was saved.
    fn make(&mut self, new: &NewTask, rows: Arc<TaskData>, prepared: &mut Prepared) -> Result<()> {
        let digest = rows.digest.clone();
        let newest;
        let run = if self.session.placed.tasks.carried.contains_key(&new.id) {
            // A save of this process is newer.
            self.session.moment().wait_for_writer();
            newest = SavedRun::newest(self.session.log.directory.path()).ok();
            newest.as_ref()
        } else {
            self.saved
        };
        let saved = match run {
            Some(run) => run.task(&new.adapter.name)?.map(|task| (run, task)),
            None => None,
        };
        let saved = saved.filter(|(_, task)| is_of(&task.record, new));
        self.factory
            .add(prepared, new.id, &new.adapter, rows, saved)?;
        if digest != new.digest && prepared.ended.is_empty() {
            return Err(TrainerError::DatasetChanged {
                dataset: new.adapter.dataset.clone(),
                before: short(&new.digest),
                now: short(&digest),
            });
        }
        Ok(())
    }

    /// Fails a task that was never added and has taken `steps` steps before.
    fn refuse(&mut self, id: TaskId, adapter: String, steps: usize, reason: String) {
        let tasks = &mut self.session.placed.tasks;
        tasks.carried.insert(id, adapter.clone());
        let report = untrained(adapter.clone(), steps, reason.clone());
        tasks.ended.insert(id, report);
        self.session.log.emit(Event::AdapterFailed {
            adapter,
            step: steps + 1,
            reason,
        });
    }
}

/// An error with its cause, and with the advice if the directory of temporary files fails.
fn reason(error: &TrainerError) -> String {
    let cause = error.source().map(|cause| format!(": {cause}"));
    let is_kept = matches!(error, TrainerError::Data(DataError::Kept { .. }));
    let hint = error.hint().filter(|_| is_kept);
    let hint = hint.map(|hint| format!("; {hint}"));
    format!(
        "{error}{}{}",
        cause.unwrap_or_default(),
        hint.unwrap_or_default()
    )
}

/// The report of a task that was not added.
fn untrained(name: String, steps: usize, reason: String) -> AdapterReport {
    AdapterReport {
        name,
        outcome: Outcome::failed(reason),
        steps,
        total_steps: 0,
        first_loss: None,
        last_loss: None,
        best: None,
        directory: None,
        samples: Vec::new(),
    }
}

/// The files that a task's rows are read from.
fn files(task: &NewTask) -> impl Iterator<Item = &PathBuf> {
    let validation = match &task.dataset.validation {
        Validation::File(path) => Some(path),
        Validation::Fraction(_) => None,
    };
    task.dataset.path.iter().chain(validation)
}

/// True if a record is of this task, and not of an earlier one of the same name.
fn is_of(record: &TaskRecord, new: &NewTask) -> bool {
    record.name == new.adapter.name && record.number == Some(new.id.0)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use loraloom_data::DataError;
    use loraloom_scheduler::TaskId;
    use serde_json::{from_value, json};

    use super::{Absent, reason};
    use crate::{NewTask, TrainerError};

    #[test]
    fn a_task_waits_for_each_of_its_files() {
        let directory = tempfile::tempdir().expect("a directory");
        let [rows, held] = ["rows", "held"].map(|name| directory.path().join(name));
        let dataset = json!({"path": [rows], "validation": held});
        let task = NewTask {
            id: TaskId(1),
            adapter: from_value(json!({"name": "a"})).expect("an adapter"),
            dataset: from_value(dataset).expect("a dataset"),
            seed: 0,
            digest: String::new(),
            sweep: None,
            paused: false,
        };
        let mut absent = Absent {
            task: Box::new(task),
            reason: String::new(),
            seen: Vec::new(),
        };
        fs::write(&rows, "rows").expect("written");
        assert_eq!([(); 3].map(|()| absent.is_back()), [false; 3]);
        fs::write(&held, "more rows").expect("written");
        // It may still be written when it is first seen.
        assert_eq!([(); 2].map(|()| absent.is_back()), [false, true]);
    }
    #[test]
    fn a_task_without_room_for_its_rows_says_where_and_why() {
        let error = DataError::Kept {
            directory: "/scratch".into(),
            source: std::io::ErrorKind::StorageFull.into(),
        };
        let said = reason(&error.into());
        for part in ["/scratch: no storage space; ", "set TMPDIR"] {
            assert!(said.contains(part), "{said}");
        }
    }

    /// Of a file that is being written, and of one that is wrong.
    #[test]
    fn a_task_waits_for_a_file_that_changes_under_it() {
        for (error, waits) in [
            (DataError::Changed("a.jsonl".into()), true),
            (DataError::Empty("a.jsonl".into()), false),
        ] {
            let error = TrainerError::from(error);
            assert_eq!(error.is_of_an_absent_file(), waits, "{error}");
        }
    }
}

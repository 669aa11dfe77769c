use std::{
    collections::BTreeMap,
    fs::File,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use loraloom_scheduler::{TaskId, TaskState};
use loraloom_trainer::{
    DeviceRoom, Event, Identity, NewTask, Pace, SourceError, TaskCommand, TaskSource,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    Result, ServerError,
    files::Files,
    queue::{LOCK_NAME, LockedQueue, Progress, Queue, QueueError, QueuedTask, Request, Transition},
    spec::Spec,
    watch::Watch,
};

/// Key of the memory of the server's devices among the queue's stored texts.
pub(crate) const ROOMS: &str = "device_rooms";

/// Key of the seconds per step of each task.
pub(crate) const PACES: &str = "seconds_per_step";

/// Key of the rewards of each task's best evaluation.
pub(crate) const REWARDS: &str = "best_rewards";

/// Rewards of the evaluation with the lowest loss.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct BestRewards {
    pub(crate) margins: Option<f64>,
    pub(crate) accuracies: Option<f64>,
}

/// The JSON text that the server stored under a key; the default value before it stored any.
pub(crate) fn stored<T: DeserializeOwned + Default>(queue: &Queue, key: &'static str) -> Result<T> {
    let stored = queue.stored()?;
    let Some(text) = stored.get(key) else {
        return Ok(T::default());
    };
    serde_json::from_str(text).map_err(|error| ServerError::Record {
        key,
        problem: error.to_string(),
    })
}

/// Progress is written this often, and whenever a task changes its state.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// Interval at which an idle server polls the queue.
const IDLE_SLEEP: Duration = Duration::from_millis(50);

/// The queue as the trainer's [`TaskSource`]: rows become commands, events become transitions.
pub(crate) struct QueueBridge<'o> {
    queue: LockedQueue,
    /// The queue and the lock, to notice if another file takes their place.
    own: [(PathBuf, Identity); 2],
    watch: Watch,
    /// End once nothing is left to train.
    drain: bool,
    /// The newest task that the trainer received.
    last: TaskId,
    /// Tasks that the trainer has, by name.
    live: BTreeMap<String, Live>,
    rewards: BTreeMap<TaskId, BestRewards>,
    files: Files,
    /// Transitions that could not be written yet.
    late: Vec<Transition>,
    /// The first error of recording an event.
    failed: Option<QueueError>,
    recorded: Instant,
    /// Also receives the trainer's events.
    observer: &'o mut dyn FnMut(&Event),
}

/// A task that the trainer has. Its state is in the queue.
#[derive(Debug)]
struct Live {
    spec: Spec,
    progress: Progress,
    pace: Pace,
    /// True if it took a step in the current iteration.
    stepped: bool,
    /// True if `progress` has changed since it was written.
    moved: bool,
    /// True if its owner wants it paused when it leaves its place.
    holds: bool,
}

impl<'o> QueueBridge<'o> {
    /// # Errors
    /// If the queue's file is gone already.
    pub(crate) fn new(
        queue: LockedQueue,
        watch: Watch,
        drain: bool,
        observer: &'o mut dyn FnMut(&Event),
    ) -> Result<Self> {
        let files = Files::start(watch.news());
        let path = queue.queue().path();
        let identified = |path: PathBuf| match Identity::of(&path) {
            Ok(identity) => Ok((path, identity)),
            Err(source) => Err(ServerError::Path { path, source }),
        };
        let lock = path.with_file_name(LOCK_NAME);
        let own = [identified(path.to_owned())?, identified(lock)?];
        let rewards = stored(queue.queue(), REWARDS)?;
        Ok(Self {
            queue,
            rewards,
            own,
            watch,
            drain,
            last: TaskId(0),
            live: BTreeMap::new(),
            files,
            late: Vec::new(),
            failed: None,
            recorded: Instant::now(),
            observer,
        })
    }

    /// The queue's commands for the trainer; `None` once a server that drains has nothing left to train.
    fn next_commands(&mut self, idle: bool) -> Result<Option<Vec<TaskCommand>>> {
        if let Some(error) = self.failed.take() {
            return Err(error.into());
        }
        if let Some((path, _)) = self.own.iter().find(|(path, own)| !own.is_at(path)) {
            let path = path.clone();
            return Err(ServerError::QueueGone { path });
        }
        self.flush(!self.late.is_empty())?;
        self.watch.clear();
        let mut commands = Vec::new();
        self.carry_out_waiting(&mut commands)?;
        self.new_tasks(&mut commands)?;
        self.requests_of_running(&mut commands)?;
        commands.extend(self.changed_files());
        if idle && commands.is_empty() {
            if self.drain && !self.can_train()? {
                return Ok(None);
            }
            thread::sleep(IDLE_SLEEP);
        }
        Ok(Some(commands))
    }

    /// Carries out requests of tasks that do not run, and tells the trainer.
    fn carry_out_waiting(&mut self, commands: &mut Vec<TaskCommand>) -> Result<()> {
        for (id, state) in self.queue.carry_out_waiting()? {
            let live = self.live.iter().find(|(_, live)| live.progress.id == id);
            let Some(name) = live.map(|(name, _)| name.clone()) else {
                // A failed task that is resumed. One that the trainer has not received yet is among the new tasks.
                if id <= self.last && !state.is_final() {
                    let task = self.queue.queue().task(id)?;
                    commands.extend(self.take_up(task)?);
                }
                continue;
            };
            commands.push(match state {
                TaskState::Paused => TaskCommand::Pause(id),
                TaskState::Cancelled => {
                    self.forget(&name);
                    TaskCommand::Cancel(id)
                }
                _ => TaskCommand::Resume(id),
            });
        }
        Ok(())
    }

    fn new_tasks(&mut self, commands: &mut Vec<TaskCommand>) -> Result<()> {
        for task in self.queue.queue().tasks_after(self.last)? {
            self.last = task.id;
            if task.state == TaskState::Failed {
                commands.push(TaskCommand::Keep(task.id, task.name));
            } else if !task.state.is_final() {
                commands.extend(self.take_up(task)?);
            }
        }
        Ok(())
    }

    fn requests_of_running(&mut self, commands: &mut Vec<TaskCommand>) -> Result<()> {
        for task in self.queue.queue().requests()? {
            // A newer request for a task that does not run is carried out the next time.
            let Some(live) = self.live.get_mut(&task.name) else {
                continue;
            };
            match task.requested.filter(|_| task.state == TaskState::Running) {
                Some(Request::Pause) => {
                    live.holds = true;
                    commands.push(TaskCommand::Pause(task.id));
                }
                Some(Request::Cancel) => commands.push(TaskCommand::Cancel(task.id)),
                Some(Request::Resume) | None => {}
            }
        }
        Ok(())
    }

    /// True if a task of the trainer is not paused and all its files can be opened.
    fn can_train(&self) -> Result<bool, QueueError> {
        let tasks = self.queue.queue().tasks()?;
        let is_paused = |task: &QueuedTask| task.state == TaskState::Paused;
        let can_train = |live: &Live| {
            !tasks
                .iter()
                .any(|task| task.id == live.progress.id && is_paused(task))
                && live
                    .spec
                    .files()
                    .iter()
                    .all(|path| File::open(path).is_ok())
        };
        Ok(self.live.values().any(can_train))
    }

    /// The command to train a task. A task that this version cannot read fails instead.
    fn take_up(&mut self, task: QueuedTask) -> Result<Option<TaskCommand>> {
        let submission = self.queue.queue().spec(task.id)?;
        let spec = match Spec::from_text(&submission.spec) {
            Ok(spec) => spec,
            Err(error) => {
                self.queue.apply(&[Transition {
                    id: task.id,
                    to: TaskState::Failed,
                    reason: error.to_string(),
                }])?;
                return Ok(None);
            }
        };
        self.files.watch(spec.files());
        let (name, stopping) = spec.sweep.clone().unzip();
        let command = TaskCommand::Train(Box::new(NewTask {
            id: task.id,
            adapter: spec.adapter.clone(),
            dataset: spec.dataset.clone(),
            seed: spec.seed,
            digest: task.dataset_hash,
            sweep: name.zip(stopping.flatten()),
            paused: task.state == TaskState::Paused,
        }));
        let live = Live {
            spec,
            progress: Progress {
                id: task.id,
                step: task.step,
                last_loss: None,
                best_metric: None,
            },
            pace: Pace::default(),
            stepped: false,
            moved: false,
            holds: false,
        };
        self.live.insert(task.name, live);
        Ok(Some(command))
    }

    /// Fails tasks whose files have changed since they were read.
    fn changed_files(&mut self) -> Vec<TaskCommand> {
        let changed = self.files.changed();
        let live = self.live.values();
        let failed = live.filter_map(|live| {
            let mut files = live.spec.files().into_iter();
            let (path, change) = files.find_map(|path| changed.get_key_value(&path))?;
            let reason = format!(
                "dataset `{}` changed during training: {} had BLAKE3 {} and now has {}; restore it, \
                 then resume the task",
                live.spec.adapter.dataset,
                path.display(),
                change.before,
                change.now
            );
            Some(TaskCommand::Fail(live.progress.id, reason))
        });
        failed.collect()
    }

    /// Records the effects of an event.
    fn note(&mut self, event: &Event) -> Result<(), QueueError> {
        match event {
            Event::Admit {
                adapter,
                step,
                total_steps,
                reason,
            } => {
                let Some(live) = self.live.get_mut(adapter) else {
                    return Ok(());
                };
                // Steps may be repeated.
                if live.progress.step != *step as u64 {
                    live.progress.step = *step as u64;
                    live.progress.last_loss = None;
                    live.moved = true;
                }
                self.queue
                    .planned(&[(live.progress.id, *total_steps as u64)])?;
                self.enter(adapter, TaskState::Running, reason)
            }
            Event::Park {
                adapter, reason, ..
            } => {
                let Some(live) = self.live.get_mut(adapter) else {
                    return Ok(());
                };
                live.pace.pause();
                let to = if std::mem::take(&mut live.holds) {
                    TaskState::Paused
                } else {
                    TaskState::Parked
                };
                self.enter(adapter, to, reason)
            }
            Event::Step {
                adapter,
                step,
                loss,
                ..
            } => {
                if let Some(live) = self.live.get_mut(adapter) {
                    live.progress.step = *step as u64;
                    live.progress.last_loss = Some(*loss);
                    live.stepped = true;
                    live.moved = true;
                }
                Ok(())
            }
            Event::Eval {
                adapter,
                loss,
                best: true,
                rewards,
                ..
            } => {
                if let Some(live) = self.live.get_mut(adapter) {
                    if let Some(rewards) = rewards {
                        let best = BestRewards {
                            margins: rewards.margins,
                            accuracies: rewards.accuracies,
                        };
                        self.rewards.insert(live.progress.id, best);
                    }
                    live.progress.best_metric = *loss;
                    live.moved = true;
                }
                Ok(())
            }
            Event::Iteration { seconds, .. } => {
                let now = Instant::now();
                for live in self.live.values_mut() {
                    if std::mem::take(&mut live.stepped) {
                        live.pace.add(1, *seconds, now);
                    }
                }
                self.flush(false)
            }
            Event::RunCheckpoint { steps, .. } => {
                self.flush(true)?;
                let of_task = |(name, &step): (&String, &usize)| {
                    Some((self.live.get(name)?.progress.id, step as u64))
                };
                let steps: Vec<_> = steps.iter().filter_map(of_task).collect();
                self.queue.saved(&steps)
            }
            Event::AdapterDone {
                adapter, reason, ..
            } => self.end(adapter, TaskState::Done, reason),
            Event::AdapterFailed {
                adapter, reason, ..
            } => self.end(adapter, TaskState::Failed, reason),
            Event::AdapterCancelled { adapter, .. } => {
                self.end(adapter, TaskState::Cancelled, "cancelled by its owner")
            }
            _ => Ok(()),
        }
    }

    fn end(&mut self, name: &str, to: TaskState, reason: &str) -> Result<(), QueueError> {
        self.flush(true)?;
        self.enter(name, to, reason)?;
        self.forget(name);
        Ok(())
    }

    fn forget(&mut self, name: &str) {
        self.live.remove(name);
        let live = self.live.values();
        let files = live.flat_map(|live| live.spec.files()).collect();
        self.files.keep_only(files);
    }

    fn enter(&mut self, name: &str, to: TaskState, reason: &str) -> Result<(), QueueError> {
        if let Some(live) = self.live.get(name) {
            self.late.push(Transition {
                id: live.progress.id,
                to,
                reason: reason.to_owned(),
            });
            self.flush(true)?;
        }
        Ok(())
    }

    /// Writes progress and transitions, if `due` or once per [`PROGRESS_INTERVAL`]. If the disk is full
    /// or the file busy, they are written the next time.
    fn flush(&mut self, due: bool) -> Result<(), QueueError> {
        if !due && self.recorded.elapsed() < PROGRESS_INTERVAL {
            return Ok(());
        }
        self.recorded = Instant::now();
        match self.write() {
            Err(QueueError::DiskFull { .. } | QueueError::Busy { .. }) => Ok(()),
            written => written,
        }
    }

    fn write(&mut self) -> Result<(), QueueError> {
        let moved = self.live.values().filter(|live| live.moved);
        let progress: Vec<Progress> = moved.map(|live| live.progress).collect();
        if !progress.is_empty() {
            let pace = |live: &Live| Some((live.progress.id, live.pace.seconds_per_step()?));
            let paces: BTreeMap<TaskId, f64> = self.live.values().filter_map(pace).collect();
            let paces = serde_json::json!(paces).to_string();
            let rewards = serde_json::json!(self.rewards).to_string();
            let texts = [(PACES, paces.as_str()), (REWARDS, rewards.as_str())];
            self.queue.record(&progress, &texts)?;
        }
        self.queue.apply(&self.late)?;
        self.late.clear();
        for live in self.live.values_mut() {
            live.moved = false;
        }
        Ok(())
    }

    /// Parks all running tasks for the next server. Returns whether any task is left to train.
    pub(crate) fn close(&mut self, reason: &str) -> Result<bool> {
        self.flush(true)?;
        let tasks = self.queue.queue().tasks()?;
        // Otherwise the queue's states are outdated; the next server parks the tasks that it finds running.
        if self.late.is_empty() {
            let running = tasks.iter().filter(|task| task.state == TaskState::Running);
            self.late.extend(running.map(|task| Transition {
                id: task.id,
                to: TaskState::Parked,
                reason: reason.to_owned(),
            }));
            self.flush(true)?;
        }
        Ok(tasks
            .iter()
            .any(|task| !task.state.is_final() && task.state != TaskState::Paused))
    }
}

impl TaskSource for QueueBridge<'_> {
    /// A write error ends the server when it next asks for commands.
    fn event(&mut self, event: &Event) {
        if let Err(error) = self.note(event) {
            self.failed.get_or_insert(error);
        }
        (self.observer)(event);
    }

    fn rooms(&mut self, rooms: &[DeviceRoom]) -> Result<(), SourceError> {
        let text = serde_json::json!(rooms).to_string();
        let recorded = self.queue.record(&[], &[(ROOMS, &text)]);
        Ok(recorded.map_err(ServerError::from)?)
    }

    fn commands(&mut self, idle: bool) -> Result<Option<Vec<TaskCommand>>, SourceError> {
        Ok(self.next_commands(idle)?)
    }

    fn decided(&mut self, reasons: &[(TaskId, String)]) -> Result<(), SourceError> {
        Ok(self.queue.explain(reasons).map_err(ServerError::from)?)
    }
}

#[cfg(test)]
mod tests {
    use loraloom_scheduler::TaskState;
    use rusqlite::Connection;

    use super::QueueBridge;
    use crate::{
        queue::{LockedQueue, Submission, Transition},
        watch::Watch,
    };

    /// A process that stands still inside a transaction keeps the queue busy, and a disk may be full for a
    /// while; training goes on.
    #[test]
    fn what_a_queue_does_not_take_is_written_the_next_time() {
        let directory = tempfile::tempdir().expect("a directory");
        let (mut queue, _) = LockedQueue::acquire(directory.path()).expect("a queue");
        let submission = Submission {
            name: "a".to_owned(),
            tenant: "default".to_owned(),
            priority: 0,
            spec: String::new(),
            dataset_hash: String::new(),
            total_steps: None,
            sweep: None,
            key: None,
        };
        let id = queue.queue_mut().submit(&submission).expect("accepted").id;
        let other = Connection::open(queue.queue().path()).expect("opened");
        let watch = Watch::start(directory.path()).expect("watched");
        let mut observer = |_: &_| ();
        let bridge = QueueBridge::new(queue, watch, false, &mut observer);
        let mut bridge = bridge.expect("the queue is there");
        bridge.late.push(Transition {
            id,
            to: TaskState::Running,
            reason: String::new(),
        });
        for (statement, state) in [
            ("BEGIN IMMEDIATE", TaskState::Queued),
            ("ROLLBACK", TaskState::Running),
        ] {
            other.execute_batch(statement).expect(statement);
            bridge.flush(true).expect(statement);
            let task = bridge.queue.queue().task(id).expect("a task");
            assert_eq!(task.state, state, "{statement}");
        }
        bridge.late.push(Transition {
            id,
            to: TaskState::Parked,
            // More than a page.
            reason: "long ".repeat(9999),
        });
        for (pages, state) in [(1, TaskState::Running), (u32::MAX, TaskState::Parked)] {
            bridge.queue.queue().limit_pages(pages);
            bridge.flush(true).expect("a disk may be full");
            let task = bridge.queue.queue().task(id).expect("a task");
            assert_eq!(task.state, state, "{pages} pages");
        }
    }
}

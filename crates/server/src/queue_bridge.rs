//! Between queue and trainer: orders one way, what becomes of them the other.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use loraloom_queue::{
    LOCK_NAME, Progress, QueueError, Request, Task, TaskId, TaskState, Transition,
};
use loraloom_scheduler::TaskId as TrainedId;
use loraloom_trainer::{DeviceRoom, Event, Identity, NewTask, Order, Pace};

use crate::{ServerError, files::Files, spec::Spec, watch::Watch};

/// Where the rooms of the server's devices are kept.
pub(crate) const ROOMS: &str = "device_rooms";

/// Where the seconds of a step of each task that trains are kept, by its number.
pub(crate) const PACES: &str = "seconds_per_step";

/// How far tasks have come is written down this often, and whenever one of them changes its state.
const EVERY: Duration = Duration::from_secs(1);

/// How long an idle server sleeps before it looks again.
const NAP: Duration = Duration::from_millis(50);

/// The queue as the trainer sees it.
#[derive(Debug)]
pub(crate) struct QueueBridge {
    queue: loraloom_queue::Server,
    /// The queue and the lock, which another file may take the place of.
    own: [(PathBuf, Identity); 2],
    watch: Watch,
    /// Whether the server ends once nothing is left to train.
    drain: bool,
    /// The last task that the trainer was told of.
    last: TaskId,
    /// Tasks that the trainer has, by name.
    live: BTreeMap<String, Live>,
    files: Files,
    /// What could not be written down yet.
    late: Vec<Transition>,
    /// What an event could not be written down for.
    failed: Option<QueueError>,
    recorded: Instant,
}

/// A task that the trainer has.
#[derive(Debug)]
struct Live {
    id: TaskId,
    spec: Spec,
    progress: Progress,
    pace: Pace,
    /// Whether it took a step in the iteration under way.
    stepped: bool,
    /// Whether there is progress that was not written down.
    moved: bool,
    state: TaskState,
    /// Whether its owner wants it held when it leaves its place.
    holds: bool,
}

impl QueueBridge {
    /// # Errors
    /// If the queue's file is gone already.
    pub(crate) fn new(
        queue: loraloom_queue::Server,
        watch: Watch,
        drain: bool,
    ) -> Result<Self, ServerError> {
        let files = Files::start(watch.news());
        let path = queue.queue().path();
        let identified = |path: PathBuf| match Identity::of(&path) {
            Ok(identity) => Ok((path, identity)),
            Err(source) => Err(ServerError::Path { path, source }),
        };
        let own = [
            identified(path.to_owned())?,
            identified(path.with_file_name(LOCK_NAME))?,
        ];
        Ok(Self {
            queue,
            own,
            watch,
            drain,
            last: TaskId(0),
            live: BTreeMap::new(),
            files,
            late: Vec::new(),
            failed: None,
            recorded: Instant::now(),
        })
    }

    pub(crate) fn rooms(&mut self, rooms: &[DeviceRoom]) -> Result<(), ServerError> {
        let text = serde_json::json!(rooms).to_string();
        Ok(self.queue.record(&[], &[(ROOMS, &text)])?)
    }

    /// What the queue asks of the trainer; `None` once a server that drains has nothing left.
    pub(crate) fn orders(&mut self, idle: bool) -> Result<Option<Vec<Order>>, ServerError> {
        if let Some(error) = self.failed.take() {
            return Err(error.into());
        }
        if let Some((path, _)) = self.own.iter().find(|(path, own)| !own.is_at(path)) {
            let path = path.clone();
            return Err(ServerError::QueueGone { path });
        }
        self.flush(!self.late.is_empty())?;
        self.watch.clear();
        let mut orders = self.asked()?;
        orders.extend(self.changed_files());
        if idle && orders.is_empty() {
            let there = |path: PathBuf| File::open(path).is_ok();
            let left = |live: &Live| {
                live.state != TaskState::Paused && live.spec.files().into_iter().all(there)
            };
            if self.drain && !self.live.values().any(left) {
                return Ok(None);
            }
            thread::sleep(NAP);
        }
        Ok(Some(orders))
    }

    fn asked(&mut self) -> Result<Vec<Order>, ServerError> {
        let mut orders = Vec::new();
        for (id, state) in self.queue.carry_out_waiting()? {
            let Some(live) = self.live.values_mut().find(|live| live.id == id) else {
                // It had failed. One that the trainer was not told of yet comes below.
                if id <= self.last && !state.is_final() {
                    let task = self.queue.queue().task(id)?;
                    orders.extend(self.take_up(task)?);
                }
                continue;
            };
            live.state = state;
            let id = TrainedId(id.0);
            orders.push(match state {
                TaskState::Paused => Order::Pause(id),
                TaskState::Cancelled => Order::Cancel(id),
                _ => Order::Resume(id),
            });
        }
        for task in self.queue.queue().tasks_after(self.last)? {
            self.last = task.id;
            if task.state == TaskState::Failed {
                orders.push(Order::Keep(TrainedId(task.id.0), task.name));
            } else if !task.state.is_final() {
                orders.extend(self.take_up(task)?);
            }
        }
        for task in self.queue.queue().requests()? {
            let Some(live) = self.live.get_mut(&task.name) else {
                continue;
            };
            let id = TrainedId(task.id.0);
            match task.requested {
                Some(Request::Pause) => {
                    live.holds = true;
                    orders.push(Order::Pause(id));
                }
                Some(Request::Cancel) => orders.push(Order::Cancel(id)),
                Some(Request::Resume) | None => {}
            }
        }
        Ok(orders)
    }

    /// Has a task trained; `None` if this version cannot read it.
    fn take_up(&mut self, task: Task) -> Result<Option<Order>, ServerError> {
        let submission = self.queue.queue().spec(task.id)?;
        let spec = match Spec::from_text(&submission.spec) {
            Ok(spec) => spec,
            Err(error) => {
                self.end_unread(task.id, task.state, error.to_string())?;
                return Ok(None);
            }
        };
        self.files.watch(spec.files());
        let (name, stopping) = spec.sweep.clone().unzip();
        let order = Order::Train(Box::new(NewTask {
            id: TrainedId(task.id.0),
            adapter: spec.adapter.clone(),
            dataset: spec.dataset.clone(),
            seed: spec.seed,
            digest: task.dataset_hash,
            sweep: name.zip(stopping.flatten()),
            paused: task.state == TaskState::Paused,
        }));
        let live = Live {
            id: task.id,
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
            state: task.state,
            holds: false,
        };
        self.live.insert(task.name, live);
        Ok(Some(order))
    }

    /// Ends a task that this version cannot read.
    fn end_unread(
        &mut self,
        id: TaskId,
        state: TaskState,
        reason: String,
    ) -> Result<(), ServerError> {
        let mut way = Vec::new();
        if state == TaskState::Paused {
            way.push(TaskState::Parked);
        }
        way.push(TaskState::Failed);
        let transition = |to| Transition {
            id,
            to,
            reason: reason.clone(),
        };
        let way: Vec<Transition> = way.into_iter().map(transition).collect();
        Ok(self.queue.apply(&way)?)
    }

    /// Tasks whose files have changed since they were read.
    fn changed_files(&mut self) -> Vec<Order> {
        let changed = self.files.changed();
        let live = self.live.values();
        let failed = live.filter_map(|live| {
            let mut files = live.spec.files().into_iter();
            let (path, change) = files.find_map(|path| changed.get_key_value(&path))?;
            let reason = format!(
                "dataset `{}` changed while it trained: {} was BLAKE3 {} and is {}; restore it, then \
                 resume the task",
                live.spec.adapter.dataset,
                path.display(),
                change.before,
                change.now
            );
            Some(Order::Fail(TrainedId(live.id.0), reason))
        });
        failed.collect()
    }

    /// Writes down why tasks wait.
    pub(crate) fn decided(&mut self, waiting: &[(TrainedId, String)]) -> Result<(), ServerError> {
        let known: BTreeSet<TaskId> = self.live.values().map(|live| live.id).collect();
        let mut texts: Vec<(TaskId, &str)> = waiting
            .iter()
            .map(|(id, reason)| (TaskId(id.0), reason.as_str()))
            .filter(|(id, _)| known.contains(id))
            .collect();
        let told: BTreeSet<TaskId> = texts.iter().map(|(id, _)| *id).collect();
        let running = |live: &&Live| live.state == TaskState::Running && !told.contains(&live.id);
        let running = self.live.values().filter(running);
        texts.extend(running.map(|live| (live.id, "trains")));
        self.queue.explain(&texts)?;
        Ok(())
    }

    /// Writes down what happened. What cannot be written ends the server at its next look at the queue,
    /// unless the disk is full: then it is tried again.
    pub(crate) fn observe(&mut self, event: &Event) {
        if let Err(error) = self.note(event) {
            self.failed.get_or_insert(error);
        }
    }

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
                live.progress.step = *step as u64;
                self.queue.planned(&[(live.id, *total_steps as u64)])?;
                self.enter(adapter, TaskState::Running, reason)
            }
            Event::Park {
                adapter, reason, ..
            } => {
                let mut holds = false;
                if let Some(live) = self.live.get_mut(adapter) {
                    live.pace.pause();
                    holds = std::mem::take(&mut live.holds);
                }
                let to = if holds {
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
                ..
            } => {
                if let Some(live) = self.live.get_mut(adapter) {
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
                let saved = steps.iter();
                let saved =
                    saved.filter_map(|(name, &step)| Some((self.live.get(name)?.id, step as u64)));
                let steps: Vec<(TaskId, u64)> = saved.collect();
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
        self.live.remove(name);
        let files = self
            .live
            .values()
            .flat_map(|live| live.spec.files())
            .collect();
        self.files.keep_only(files);
        Ok(())
    }

    fn enter(&mut self, name: &str, to: TaskState, reason: &str) -> Result<(), QueueError> {
        let Some(live) = self.live.get_mut(name) else {
            return Ok(());
        };
        if live.state == to {
            return Ok(());
        }
        let id = live.id;
        let mut way = vec![to];
        if live.state == TaskState::Paused && to == TaskState::Failed {
            way.insert(0, TaskState::Parked);
        }
        live.state = to;
        self.late.extend(way.into_iter().map(|to| Transition {
            id,
            to,
            reason: reason.to_owned(),
        }));
        self.flush(true)
    }

    /// Writes down how far tasks are, and what became of them: if it is `due`, or once in a while.
    fn flush(&mut self, due: bool) -> Result<(), QueueError> {
        if !due && self.recorded.elapsed() < EVERY {
            return Ok(());
        }
        self.recorded = Instant::now();
        let moved = self.live.values().filter(|live| live.moved);
        let progress: Vec<Progress> = moved.map(|live| live.progress).collect();
        let running = |live: &&Live| live.state == TaskState::Running;
        let paces = self.live.values().filter(running);
        let paces: BTreeMap<u64, f64> = paces
            .filter_map(|live| Some((live.id.0, live.pace.seconds_per_step()?)))
            .collect();
        let paces = serde_json::json!(paces).to_string();
        let stored: &[_] = if progress.is_empty() {
            &[]
        } else {
            &[(PACES, paces.as_str())]
        };
        let written = self
            .queue
            .record(&progress, stored)
            .and_then(|()| self.queue.apply(&self.late));
        match written {
            Ok(()) => {
                self.late.clear();
                for live in self.live.values_mut() {
                    live.moved = false;
                }
                Ok(())
            }
            Err(QueueError::DiskFull { .. } | QueueError::Busy { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Says of all running tasks that they wait for the next server; whether any task is left to train.
    pub(crate) fn close(&mut self, reason: &str) -> Result<bool, ServerError> {
        let running = |(_, live): &(&String, &Live)| live.state == TaskState::Running;
        let names = self.live.iter().filter(running);
        let names: Vec<String> = names.map(|(name, _)| name.clone()).collect();
        for name in names {
            self.enter(&name, TaskState::Parked, reason)?;
        }
        self.flush(true)?;
        let tasks = self.queue.queue().tasks()?;
        let paused = |state| state == TaskState::Paused;
        Ok(tasks
            .iter()
            .any(|task| !task.state.is_final() && !paused(task.state)))
    }
}

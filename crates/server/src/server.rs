use std::{
    cell::RefCell,
    fs,
    path::{Path, PathBuf},
    rc::Rc,
    sync::atomic::Ordering,
};

use loraloom_config::{LoadOptions, RunConfig};
use loraloom_queue::{FILE_NAME, Presence, Queue, Recovered};
use loraloom_scheduler::TaskId;
use loraloom_trainer::{
    DeviceRoom, Event, OpenedStage, Order, Run, RunReport, SavedRun, Signals, SourceError,
    TaskSource, TrainerError, refuse_in_use,
};

use crate::{Client, ServerError, queue_bridge::QueueBridge, watch::Watch};

/// The configuration that a run directory keeps.
const CONFIG_FILE: &str = "config.resolved.yaml";
const EVENTS: &str = "events.jsonl";

/// How a server trains.
#[derive(Debug, Clone, Copy, Default)]
pub struct ServeOptions {
    /// End once nothing is left to train, instead of waiting for tasks.
    pub drain: bool,
}

/// The configuration of a run directory's server, as the directory keeps it, or as it is given in a
/// file; and what is odd about it. Adapters in it are not the server's but the first to be submitted.
///
/// # Errors
/// [`ServerError::NoConfiguration`] if there is none, and what is wrong with it.
pub fn configuration(
    directory: &Path,
    file: Option<&Path>,
    options: &LoadOptions,
) -> Result<(RunConfig, Vec<String>), ServerError> {
    let kept = directory.join(CONFIG_FILE);
    let path = file.unwrap_or(&kept);
    if file.is_none() && !kept.exists() {
        return Err(ServerError::NoConfiguration {
            path: directory.to_owned(),
        });
    }
    let options = LoadOptions {
        output_dir: Some(directory.to_owned()),
        without_adapters: true,
        ..options.clone()
    };
    let loaded = RunConfig::load_with(path, &options)?;
    Ok((loaded.config, loaded.warnings))
}

/// The one process that trains what the queue of a run directory holds.
#[derive(Debug)]
pub struct Server {
    queue: loraloom_queue::Server,
    directory: PathBuf,
    config: RunConfig,
    recovered: Vec<Recovered>,
    /// Adapters of the configuration that became tasks just now.
    submitted: usize,
}

impl Server {
    /// Takes a run directory, makes it where it is missing, and takes up what a lost server left. The
    /// adapters of the configuration are submitted if the queue is new.
    ///
    /// # Errors
    /// [`ServerError::Queue`] if another server has the directory or the queue is damaged, and
    /// [`ServerError::NotServed`] if it holds a run of another kind.
    pub fn start(directory: &Path, mut config: RunConfig) -> Result<Self, ServerError> {
        let is_new = !directory.join(FILE_NAME).exists();
        if is_new && directory.join(EVENTS).exists() {
            let path = directory.to_owned();
            return Err(ServerError::NotServed { path });
        }
        fs::create_dir_all(directory).map_err(|source| ServerError::Path {
            path: directory.to_owned(),
            source,
        })?;
        if !is_new && Queue::open(directory)?.server()? == Presence::Absent {
            // Its lock may have been removed while it runs.
            refuse_in_use(directory)?;
        }
        let (mut queue, recovered) = loraloom_queue::Server::start(directory)?;
        let first = config.clone();
        config.adapters.clear();
        config.datasets.clear();
        config.sweep.clear();
        let mut submitted = 0;
        if queue.queue().tasks()?.is_empty() && !first.adapters.is_empty() {
            let client = Client::new(directory, config.clone());
            let (submissions, _) = client.submissions(&first, None, &[])?;
            submitted = queue.queue_mut().submit_all(&submissions)?.len();
        }
        Ok(Self {
            queue,
            directory: directory.to_owned(),
            config,
            recovered,
            submitted,
        })
    }

    /// What the server computes with; without adapters.
    pub fn config(&self) -> &RunConfig {
        &self.config
    }

    /// Tasks that go back to their last checkpoint because their server was lost.
    pub fn recovered(&self) -> &[Recovered] {
        &self.recovered
    }

    /// How many adapters of the configuration became tasks just now.
    pub fn submitted(&self) -> usize {
        self.submitted
    }

    /// Trains until a signal to stop is set, or there is nothing left if it drains. Tasks that still run
    /// then are saved and parked; the report says `interrupted` if a signal left any to train. What a
    /// caller's signals say of news is not looked at.
    ///
    /// # Errors
    /// If the model cannot be loaded, a device is lost, or the directory or the queue cannot be written.
    pub fn run<'s>(
        self,
        stages: &[OpenedStage],
        options: ServeOptions,
        signals: impl Into<Signals<'s>>,
        observer: &mut dyn FnMut(&Event),
    ) -> Result<RunReport, ServerError> {
        let saved = match SavedRun::claim(&self.directory) {
            Ok(saved) => Some(saved),
            Err(TrainerError::NoCheckpoint { problems, .. }) if problems.is_empty() => {
                self.nothing_is_lost()?;
                None
            }
            Err(error) => return Err(error.into()),
        };
        let run = match saved {
            Some(saved) => Run::resume(self.config, stages, saved)?,
            None => Run::prepare(self.config, stages)?,
        };
        let watch = Watch::start(&self.directory)?;
        let signals = signals.into();
        let stop = signals.stop;
        let news = watch.news();
        let bridge = Rc::new(RefCell::new(QueueBridge::new(
            self.queue,
            watch,
            options.drain,
        )?));
        let signals = Signals {
            news: &news,
            ..signals
        };
        let mut source = Shared(Rc::clone(&bridge));
        let trained = run.serve(&mut source, signals, &mut |event| {
            bridge.borrow_mut().observe(event);
            observer(event);
        });
        let reason = match &trained {
            Ok(_) => "the server was stopped".to_owned(),
            Err(error) => format!("the server ended: {error}"),
        };
        let left = bridge.borrow_mut().close(&reason);
        let report = trained?;
        let interrupted = left? && stop.load(Ordering::Relaxed);
        Ok(RunReport {
            interrupted,
            ..report
        })
    }

    /// Checks that no task that is to go on had steps saved, where there is no checkpoint.
    fn nothing_is_lost(&self) -> Result<(), ServerError> {
        let tasks = self.queue.queue().tasks()?;
        let saved = tasks
            .iter()
            .filter(|task| !task.state.is_final() && task.saved_step > 0);
        let tasks: Vec<String> = saved
            .map(|task| format!("{} at step {}", task.name, task.saved_step))
            .collect();
        if tasks.is_empty() {
            return Ok(());
        }
        let path = self.directory.join("checkpoints");
        Err(ServerError::CheckpointsGone { path, tasks })
    }
}

/// The bridge, which also hears of events while it is a source.
struct Shared(Rc<RefCell<QueueBridge>>);

impl TaskSource for Shared {
    fn rooms(&mut self, rooms: &[DeviceRoom]) -> Result<(), SourceError> {
        Ok(self.0.borrow_mut().rooms(rooms)?)
    }

    fn orders(&mut self, idle: bool) -> Result<Option<Vec<Order>>, SourceError> {
        Ok(self.0.borrow_mut().orders(idle)?)
    }

    fn decided(&mut self, waiting: &[(TaskId, String)]) -> Result<(), SourceError> {
        Ok(self.0.borrow_mut().decided(waiting)?)
    }
}

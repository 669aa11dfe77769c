use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use loraloom_config::{LoadOptions, RunConfig};
use loraloom_trainer::{
    CHECKPOINTS, CONFIG_FILE, EVENTS_FILE, Event, LiveAsks, OpenedStage, Run, RunReport, SavedRun,
    Signals, TrainerError, refuse_in_use,
};

use crate::{
    Client, Result, ServerError,
    queue::{FILE_NAME, LockedQueue, Presence, Queue, Recovered},
    queue_bridge::QueueBridge,
    watch::Watch,
};

/// The configuration of a run directory's server, from `file` or else from the directory, with warnings.
/// Its adapters are submitted when the server creates the queue.
///
/// # Errors
/// [`ServerError::NoConfiguration`] if there is none; errors of the configuration.
pub fn configuration(
    directory: &Path,
    file: Option<&Path>,
    options: &LoadOptions,
) -> Result<(RunConfig, Vec<String>)> {
    let kept = directory.join(CONFIG_FILE);
    let path = file.unwrap_or(&kept);
    if file.is_none() && !kept.exists() {
        let path = directory.to_owned();
        return Err(ServerError::NoConfiguration { path });
    }
    let options = LoadOptions {
        output_dir: Some(directory.to_owned()),
        without_adapters: true,
        ..options.clone()
    };
    let loaded = RunConfig::load_with(path, &options)?.complete()?;
    Ok((loaded.config, loaded.warnings))
}

/// The process that trains the tasks of a run directory's queue.
#[derive(Debug)]
pub struct Server {
    queue: LockedQueue,
    directory: PathBuf,
    /// Its configuration, without adapters.
    pub config: RunConfig,
    /// Tasks that go back to their last checkpoint because their server was lost.
    pub recovered: Vec<Recovered>,
    /// Number of adapters of the configuration that were submitted at this start.
    pub submitted: usize,
}

impl Server {
    /// Takes a run directory, creates it if it is missing, and recovers from a lost server. Submits the
    /// adapters of the configuration if the queue is new.
    ///
    /// # Errors
    /// [`ServerError::Queue`] if another server has the directory or the queue is damaged;
    /// [`ServerError::NotServed`] if the directory holds a run of `train`.
    pub fn start(directory: &Path, mut config: RunConfig) -> Result<Self> {
        let is_new = !directory.join(FILE_NAME).exists();
        if is_new && directory.join(EVENTS_FILE).exists() {
            let path = directory.to_owned();
            return Err(ServerError::NotServed { path });
        }
        fs::create_dir_all(directory).map_err(|source| ServerError::Path {
            path: directory.to_owned(),
            source,
        })?;
        if !is_new && Queue::open(directory)?.server()? == Presence::Absent {
            // The lock of a running server may have been removed.
            refuse_in_use(directory)?;
        }
        let (mut queue, recovered) = LockedQueue::acquire(directory)?;
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

    /// Loads the model.
    ///
    /// # Errors
    /// If it cannot be loaded, or the run's checkpoints cannot be read.
    pub fn load(self, stages: &[OpenedStage]) -> Result<LoadedServer> {
        let client = Client::new(&self.directory, self.config.clone());
        let run = match SavedRun::claim(&self.directory) {
            Ok(saved) => Run::resume(self.config, stages, saved)?,
            Err(TrainerError::NoCheckpoint { problems, .. }) if problems.is_empty() => {
                self.nothing_is_lost()?;
                Run::prepare(self.config, stages)?
            }
            Err(error) => return Err(error.into()),
        };
        let watch = Watch::start(&self.directory)?;
        let queue = self.queue;
        Ok(LoadedServer {
            queue,
            run,
            client,
            watch,
        })
    }

    /// Checks that no live task has saved steps, for a directory without checkpoints.
    fn nothing_is_lost(&self) -> Result<()> {
        let tasks = self.queue.queue().tasks()?;
        let tasks: Vec<String> = tasks
            .iter()
            .filter(|task| !task.state.is_final() && task.saved_step > 0)
            .map(|task| format!("{} at step {}", task.name, task.saved_step))
            .collect();
        if tasks.is_empty() {
            return Ok(());
        }
        let path = self.directory.join(CHECKPOINTS);
        Err(ServerError::CheckpointsGone { path, tasks })
    }
}

/// A server whose model is loaded.
#[derive(Debug)]
pub struct LoadedServer {
    queue: LockedQueue,
    /// Trains the tasks.
    pub run: Run,
    /// Submits tasks to it, also before the run has written its configuration.
    pub client: Client,
    watch: Watch,
}

impl LoadedServer {
    /// The signal that ends a window of iterations.
    pub fn news(&self) -> Arc<AtomicBool> {
        self.watch.news()
    }

    /// Trains until a signal to stop is set or, with `drain`, nothing is left. Then running tasks are saved
    /// and parked. The report's `interrupted` is set if a signal left tasks to train. `signals.news` is
    /// ignored.
    ///
    /// # Errors
    /// If a device is lost, or the directory or the queue cannot be written.
    pub fn train<'s>(
        self,
        drain: bool,
        signals: impl Into<Signals<'s>>,
        live: Option<&LiveAsks>,
        observer: &mut dyn FnMut(&Event),
    ) -> Result<RunReport> {
        let signals = signals.into();
        let stop = signals.stop;
        let news = self.watch.news();
        let mut bridge = QueueBridge::new(self.queue, self.watch, drain, observer)?;
        let signals = Signals {
            news: &news,
            ..signals
        };
        let trained = self.run.serve(&mut bridge, signals, live);
        let reason = match &trained {
            Ok(_) => "the server was stopped".to_owned(),
            Err(error) => format!("the server ended: {error}"),
        };
        let left = bridge.close(&reason);
        let report = trained?;
        let interrupted = left? && stop.load(Ordering::Relaxed);
        Ok(RunReport {
            interrupted,
            ..report
        })
    }
}

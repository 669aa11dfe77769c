use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    path::Path,
    time::Instant,
};

use burn::tensor::Device;
use loraloom_config::RunConfig;
use loraloom_data::Tokenizer;
use loraloom_pipeline::Pipeline;
use loraloom_scheduler::{History, TaskId};

use crate::{
    Event, SavedRun, TaskSource, TrainerError,
    answers::Answers,
    checkpoint::config_value,
    ledger::Ledger,
    prepare::Tasks,
    run_directory::{Claim, RunDirectory, is_run},
    saving::Saving,
    scheduling::devices,
    session::Session,
    trials::{Trial, Trials},
};

/// What a run has read and checked, but for its stages and tasks.
#[derive(Debug)]
pub(crate) struct RunContext {
    pub(crate) config: RunConfig,
    pub(crate) tokenizer: Tokenizer,
    /// Where adapters begin.
    pub(crate) device: Device,
    /// Digest of the model's files.
    pub(crate) model: String,
    /// What the run goes on from.
    pub(crate) saved: Option<SavedRun>,
}

/// Where tasks come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TaskOrigin {
    /// The configuration.
    Configuration,
    /// A queue, which numbers them.
    Queue,
}

impl<'a> Session<'a> {
    /// Opens the run directory, says that the run begins or goes on, and sees to it that there is
    /// something to go on from before the first step. `claim` is that on the directory, if it is had
    /// already.
    pub(crate) fn open(
        context: &'a RunContext,
        claim: Option<Claim>,
        pipeline: Pipeline,
        tasks: Tasks,
        origin: TaskOrigin,
        source: &'a mut dyn TaskSource,
    ) -> Result<Self, TrainerError> {
        let RunContext {
            config,
            tokenizer,
            device,
            model,
            saved,
        } = context;
        let (saved, numbered) = (saved.as_ref(), origin == TaskOrigin::Queue);
        let directory = directory(config, saved, claim, numbered)?;
        let before = saved.map(SavedRun::record);
        let ledger = Ledger {
            config,
            directory,
            devices: devices(&pipeline)
                .into_iter()
                .map(|(device, _)| device)
                .collect(),
            memory: pipeline.memory_gauges(),
            source,
            running: Vec::new(),
            iteration: before.map_or(0, |before| before.iteration),
            pending: VecDeque::new(),
            failures: Vec::new(),
            arrived: None,
            tokens: before.map_or(0, |before| before.tokens),
            measured: Vec::new(),
            bytes_predicted: None,
            unwritten: 0,
        };
        let seconds = before.map_or(0.0, |before| before.seconds);
        let keep = config.adapters.iter().map(|adapter| adapter.save.keep);
        let saving = Saving::new(
            model.clone(),
            config_value(config)?,
            seconds,
            keep.max().unwrap_or(1),
        );
        let mut session = Self {
            pipeline,
            schedule: config.pipeline.schedule,
            ledger,
            tokenizer,
            device: device.clone(),
            initial: HashMap::new(),
            shapes: HashMap::new(),
            waiting: BTreeMap::new(),
            ended: BTreeMap::new(),
            held: BTreeSet::new(),
            carried: BTreeMap::new(),
            trials: Trials::default(),
            answers: Answers::default(),
            history: History::default(),
            begun: Instant::now(),
            snapshot: None,
            arrivals: BTreeMap::new(),
            saving,
            numbered,
        };
        session.enter_trials(&tasks)?;
        let warnings = session.take(tasks);
        session.announce(saved);
        for message in warnings {
            session.ledger.emit(Event::Warning { message });
        }
        if saved.is_none() {
            session.saving.ask();
            session.settle_now()?;
        }
        Ok(session)
    }

    /// Takes tasks up, without a place; what is odd about them.
    pub(crate) fn take(&mut self, tasks: Tasks) -> Vec<String> {
        let waiting = tasks.waiting.into_iter();
        self.waiting
            .extend(waiting.map(|waiting| (waiting.task.id, waiting)));
        self.ended.extend(tasks.ended);
        self.held.extend(tasks.held);
        self.initial.extend(tasks.initial);
        self.shapes.extend(tasks.shapes);
        tasks.warnings
    }

    /// Has the sweeps of the configuration compare their adapters.
    fn enter_trials(&mut self, tasks: &Tasks) -> Result<(), TrainerError> {
        let config = self.ledger.config;
        for sweep in &config.sweep {
            let Some(stopping) = &sweep.early_stopping else {
                continue;
            };
            for (index, adapter) in config.adapters.iter().enumerate() {
                if !sweep.adapters.contains(&adapter.name) {
                    continue;
                }
                if let Some(trial) = tasks.trial(TaskId(index as u64)) {
                    self.trials.enter(&sweep.name, stopping, trial)?;
                }
            }
        }
        Ok(())
    }
}

impl Tasks {
    /// A task as a trial of a sweep.
    pub(crate) fn trial(&self, id: TaskId) -> Option<Trial> {
        let mut waiting = self.waiting.iter();
        let task = waiting.find(|waiting| waiting.task.id == id);
        let ended = || self.ended.get(&id);
        let (total_steps, first_loss) = match task {
            Some(waiting) => (waiting.task.total_steps, waiting.task.first_loss),
            None => ended().map(|report| (report.total_steps, report.first_loss))?,
        };
        Some(Trial {
            id,
            total_steps,
            first_loss,
            results: self.trials.get(&id).cloned().unwrap_or_default(),
        })
    }
}

/// The run's directory, made or gone on with.
fn directory(
    config: &RunConfig,
    saved: Option<&SavedRun>,
    claim: Option<Claim>,
    numbered: bool,
) -> Result<RunDirectory, TrainerError> {
    let text = config.to_yaml()?;
    if let Some(saved) = saved {
        let claim = match claim {
            Some(claim) => claim,
            None => Claim::take(saved.directory())?,
        };
        return RunDirectory::resume(saved.directory(), &text, claim);
    }
    let path: &Path = &config.output_dir;
    // A server that was killed before its first checkpoint begins anew: its queue has the tasks.
    if numbered && is_run(path) {
        return RunDirectory::resume(path, &text, Claim::take(path)?);
    }
    RunDirectory::create(path, &text)
}

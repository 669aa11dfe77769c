use std::{
    collections::VecDeque,
    sync::atomic::{AtomicBool, Ordering},
};

use burn::tensor::Device;
use loraloom_config::{RunConfig, ScheduleChoice};
use loraloom_data::{EncodeReport, Tokenizer};
use loraloom_model::{Checkpoint, LlamaConfig};
use loraloom_pipeline::{Pipeline, schedule::Schedule};
use loraloom_scheduler::Scheduler;
use serde::Serialize;

use crate::{
    AdapterReport, Event, Outcome, RunReport, SavedRun, TrainerError,
    announce::now,
    balance::spread,
    checkpoint::{config_value, model_digest},
    home::{Home, Household, StagePlace},
    ledger::Ledger,
    prepare::{Materials, Tasks},
    run_directory::{Claim, RunDirectory},
    saving::Saving,
    scheduling::{Overseer, adapter_bytes, budgets, described},
    session::Session,
    trials::Trials,
};

/// What was read for one adapter.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DatasetSummary {
    /// Name of the adapter.
    pub adapter: String,
    /// Name of its dataset.
    pub dataset: String,
    /// Its training rows.
    pub train: EncodeReport,
    /// Its validation rows, if it has any.
    pub validation: Option<EncodeReport>,
}

/// A run that is ready to begin, or to go on: everything is read and checked, nothing is trained yet.
#[derive(Debug)]
pub struct Run {
    config: RunConfig,
    tokenizer: Tokenizer,
    pipeline: Pipeline,
    tasks: Tasks,
    /// Digest of the model's files.
    model: String,
    /// What the run goes on from.
    saved: Option<SavedRun>,
}

impl Run {
    /// Reads data, tokenizer, adapters and weights, and checks that they fit together. Writes
    /// nothing here; workers read their layers. There is a place for each stage; the
    /// configuration's own names for them are not looked at.
    ///
    /// # Errors
    /// If anything is missing, damaged or does not fit.
    pub fn prepare<P: Into<StagePlace> + Clone>(
        config: RunConfig,
        places: &[P],
    ) -> Result<Self, TrainerError> {
        let places = places.iter().cloned().map(Into::into).collect();
        Self::prepare_on(config, places, None)
    }

    /// As [`prepare`](Self::prepare), to go on with a run in the directory that it was saved in:
    /// adapters, optimizers, schedules and the order of the data go on where they were. On the CPU
    /// every adapter ends with the bits of a run that was never interrupted. A task whose rows have
    /// changed since fails, and the others go on.
    ///
    /// # Errors
    /// As [`prepare`](Self::prepare), and [`TrainerError::ConfigChanged`] if the configuration, or
    /// the model, is not that of the run.
    pub fn resume<P: Into<StagePlace> + Clone>(
        config: RunConfig,
        places: &[P],
        saved: SavedRun,
    ) -> Result<Self, TrainerError> {
        saved.check(&config)?;
        let places = places.iter().cloned().map(Into::into).collect();
        Self::prepare_on(config, places, Some(saved))
    }

    fn prepare_on(
        config: RunConfig,
        places: Vec<StagePlace>,
        saved: Option<SavedRun>,
    ) -> Result<Self, TrainerError> {
        let device = match places.first().ok_or(TrainerError::NoStage)? {
            StagePlace::Device(device) => device.clone(),
            #[cfg(feature = "remote")]
            StagePlace::Worker(_) => Device::flex(),
        };
        let model = LlamaConfig::from_directory(&config.model)?;
        let checkpoint = Checkpoint::open(&config.model)?;
        checkpoint.verify(&model)?;
        let digest = model_digest(&checkpoint, &model, &config.model)?;
        if let Some(saved) = &saved {
            saved.check_model(&digest, &config.model)?;
        }
        let tokenizer = Tokenizer::load(&config.model)?;
        let materials = Materials {
            config: &config,
            model: &model,
            tokenizer: &tokenizer,
            device: &device,
        };
        let tasks = materials.tasks(saved.as_ref())?;

        let household = Household {
            config: &config,
            model: &model,
            checkpoint: &checkpoint,
        };
        let homes = household.reach(&places)?;
        let dtype = household.dtype(&homes)?;
        let measure_on = match &homes[0] {
            Home::Device(device) => Some((device, dtype)),
            #[cfg(feature = "remote")]
            Home::Worker(_) => None,
        };
        let layers = spread(&config, &model, homes.len(), &tasks.waiting, measure_on)?;
        let pipeline = Pipeline::of(household.load(homes, layers, dtype)?)?;
        Ok(Self {
            config,
            tokenizer,
            pipeline,
            tasks,
            model: digest,
            saved,
        })
    }

    /// What was read for each adapter, in the order of the configuration.
    pub fn datasets(&self) -> &[DatasetSummary] {
        &self.tasks.datasets
    }

    /// Trains until every adapter has come to its end or `stop` is set, which saves all adapters
    /// after the iteration under way. Every event goes to `events.jsonl` and to `observer`.
    ///
    /// # Errors
    /// If the run directory cannot be written or holds a run already, or the device fails. An
    /// adapter that cannot go on is no error but an [`Outcome`] in the report.
    pub fn train(
        mut self,
        stop: &AtomicBool,
        observer: &mut dyn FnMut(&Event),
    ) -> Result<RunReport, TrainerError> {
        let scheduler = &self.config.scheduler;
        let checkpointing = self.config.gradient_checkpointing;
        let devices = budgets(&self.pipeline, scheduler.memory_limit, checkpointing)?;
        let groups = self.config.pipeline.groups();
        let mut scheduler = Overseer::new(scheduler, groups, devices)?;
        self.pipeline.limit_memory(scheduler.host_limit());
        self.train_with(&mut scheduler, stop, observer)
    }

    /// As [`train`](Self::train), with a scheduler of the caller's, which is given all tasks that have
    /// not ended here, in the order of the configuration. The run ends when it names no group: tasks that it still keeps
    /// waiting then are reported as interrupted.
    ///
    /// # Errors
    /// As [`train`](Self::train), and [`TrainerError::Decision`] for decisions that cannot be carried
    /// out.
    pub fn train_with<S: Scheduler + ?Sized>(
        self,
        scheduler: &mut S,
        stop: &AtomicBool,
        observer: &mut dyn FnMut(&Event),
    ) -> Result<RunReport, TrainerError> {
        let Self {
            config,
            tokenizer,
            pipeline,
            tasks,
            model,
            mut saved,
        } = self;
        let directory = match &mut saved {
            None => RunDirectory::create(&config.output_dir, &config.to_yaml()?)?,
            Some(saved) => {
                let claim = match saved.take_claim() {
                    Some(claim) => claim,
                    None => Claim::take(saved.directory())?,
                };
                RunDirectory::resume(saved.directory(), &config.to_yaml()?, claim)?
            }
        };
        for waiting in &tasks.waiting {
            let adapter = waiting.adapter.as_ref();
            let adapter = adapter.or_else(|| tasks.initial.get(&waiting.task.id));
            let bytes = adapter.map_or(0, adapter_bytes);
            scheduler.submit(described(
                &waiting.task,
                bytes,
                config.pipeline.microbatches,
            ))?;
        }
        let before = saved.as_ref().map(SavedRun::record);
        let seconds_before = before.map_or(0.0, |before| before.seconds);
        let ledger = Ledger {
            config: &config,
            directory,
            memory: pipeline.memory_gauges(),
            observer,
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
        let trials = Trials::of(&config, |name| {
            let mut waiting = tasks.waiting.iter();
            let found = waiting.find(|waiting| waiting.task.config.name == name)?;
            Some((found.task.id, found.task.total_steps))
        })?;
        let waiting = tasks.waiting.into_iter();
        let mut session = Session {
            pipeline,
            schedule: schedule(config.pipeline.schedule),
            ledger,
            tokenizer: &tokenizer,
            initial: tasks.initial,
            shapes: tasks.shapes,
            waiting: waiting.map(|waiting| (waiting.task.id, waiting)).collect(),
            ended: tasks.ended,
            held: tasks.held,
            trials,
            snapshot: None,
            saving: Saving::new(model, config_value(&config)?, seconds_before),
        };
        session.announce(saved.as_ref());
        for message in tasks.warnings {
            session.ledger.emit(Event::Warning { message });
        }
        if saved.is_none() {
            // Before the first step there is something to go on from, too.
            session.saving.ask();
            session.settle()?;
        }

        if let Err(error) = train_all(&mut session, scheduler, stop) {
            // A read that failed does not know why.
            let error = session.pipeline.failure().map_or(error, TrainerError::from);
            session.rescue();
            return Err(error);
        }

        Ok(session.end(scheduler.memory_error()))
    }
}

impl Session<'_> {
    /// Says how the run ended. `memory_error` is how far predictions of memory were off, and of how many
    /// iterations.
    fn end(&mut self, memory_error: Option<(f64, u64)>) -> RunReport {
        let interrupted = self
            .ended
            .values()
            .any(|report: &AdapterReport| report.outcome == Outcome::Interrupted)
            || !self.waiting.is_empty();
        self.report_waiting();
        let adapters: Vec<AdapterReport> = self.ended.values().cloned().collect();
        let count = |wanted: fn(&Outcome) -> bool| {
            adapters
                .iter()
                .filter(|adapter| wanted(&adapter.outcome))
                .count()
        };
        let (seconds, tokens) = (self.saving.seconds(), self.ledger.tokens);
        let (memory_error_percent, memory_predictions) =
            memory_error.map_or((None, 0), |(percent, count)| (Some(percent), count));
        self.ledger.emit(Event::RunEnd {
            time: now(),
            seconds,
            tokens,
            done: count(|outcome| *outcome == Outcome::Done),
            failed: count(|outcome| matches!(outcome, Outcome::Failed { .. })),
            interrupted,
            memory_error_percent,
            memory_predictions,
        });
        RunReport {
            adapters,
            interrupted,
            seconds,
            tokens,
        }
    }
}

/// Trains until every task has come to its end or `stop` is set.
fn train_all<S: Scheduler + ?Sized>(
    session: &mut Session<'_>,
    scheduler: &mut S,
    stop: &AtomicBool,
) -> Result<(), TrainerError> {
    loop {
        let decision = scheduler.decide();
        let most = decision.max_steps;
        session.carry_out(decision)?;
        if session.ledger.running.is_empty() {
            session.give_up_waiting(scheduler);
            return Ok(());
        }
        let ended = match session.train(stop, most) {
            Err(error) if error.is_out_of_memory() => {
                session.go_on_with_less(error, scheduler)?;
                continue;
            }
            ended => ended?,
        };
        for iteration in std::mem::take(&mut session.ledger.measured) {
            scheduler.measured(&iteration)?;
        }
        for (task, outcome) in ended {
            scheduler.finish(task, outcome)?;
        }
        if stop.load(Ordering::Relaxed) {
            return session.interrupt();
        }
    }
}

fn schedule(choice: ScheduleChoice) -> Schedule {
    match choice {
        ScheduleChoice::Lorapp => Schedule::LoraPp,
        ScheduleChoice::OneFOneB => Schedule::OneFOneB,
        ScheduleChoice::Gpipe => Schedule::GPipe,
    }
}

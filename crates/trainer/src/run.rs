use std::sync::atomic::AtomicBool;

use burn::tensor::Device;
use loraloom_config::RunConfig;
use loraloom_data::{EncodeReport, Tokenizer};
use loraloom_model::{Checkpoint, LlamaConfig};
use loraloom_pipeline::Pipeline;
use loraloom_scheduler::Scheduler;
use serde::Serialize;

use crate::{
    Event, RunReport, SavedRun, Signals, TaskSource, TrainerError,
    balance::spread,
    begin::Beginning,
    checkpoint::model_digest,
    home::{Home, Household, StagePlace},
    prepare::{Materials, Tasks},
    scheduling::{Overseer, budgets},
    serving::Serving,
    session::Session,
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
    /// Where adapters begin.
    device: Device,
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
            model: &model,
            tokenizer: &tokenizer,
            device: &device,
        };
        let tasks = materials.tasks(&config, saved.as_ref())?;

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
        let partitions = spread(&config, &model, homes.len(), &tasks.waiting, measure_on)?;
        let pipeline = Pipeline::of(household.load(homes, &partitions, dtype)?)?;
        Ok(Self {
            config,
            tokenizer,
            device,
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
    /// adapter that cannot go on is no error but an [`Outcome`](crate::Outcome) in the report.
    pub fn train(
        mut self,
        stop: &AtomicBool,
        observer: &mut dyn FnMut(&Event),
    ) -> Result<RunReport, TrainerError> {
        let mut scheduler = self.overseer()?;
        self.train_with(&mut scheduler, stop, observer)
    }

    /// As [`train`](Self::train), with a scheduler of the caller's, which is given all tasks that have
    /// not ended here, in the order of the configuration. The run ends when it names no group: tasks
    /// that it still keeps waiting then are reported as interrupted.
    ///
    /// # Errors
    /// As [`train`](Self::train), and [`TrainerError::Decision`] for decisions that cannot be carried
    /// out.
    pub fn train_with<S: Scheduler + ?Sized>(
        mut self,
        scheduler: &mut S,
        stop: &AtomicBool,
        observer: &mut dyn FnMut(&Event),
    ) -> Result<RunReport, TrainerError> {
        let tasks = std::mem::take(&mut self.tasks);
        let split = self.config.pipeline.microbatches;
        for waiting in &tasks.waiting {
            let bytes = tasks.adapter_bytes(waiting, self.pipeline.config());
            waiting.submit(scheduler, bytes, split)?;
        }
        let claim = self.saved.as_mut().and_then(SavedRun::take_claim);
        let mut session = Session::open(Beginning {
            config: &self.config,
            tokenizer: &self.tokenizer,
            pipeline: self.pipeline,
            device: self.device.clone(),
            tasks,
            model: self.model,
            saved: self.saved.as_ref(),
            claim,
            observer,
            numbered: false,
        })?;
        let signals = Signals {
            stop,
            news: &AtomicBool::new(false),
        };
        let trained = session.train_all(scheduler, signals);
        session.saved_if_it_failed(trained)?;
        Ok(session.end(scheduler.memory_error()))
    }

    /// Trains what `source` asks for, until it asks for no more or a signal to stop, which saves all
    /// adapters after the iteration under way. The configuration's adapters are not trained: it says
    /// where and how.
    ///
    /// # Errors
    /// As [`train`](Self::train), and [`TrainerError::Source`].
    pub fn serve(
        mut self,
        source: &mut dyn TaskSource,
        signals: Signals<'_>,
        observer: &mut dyn FnMut(&Event),
    ) -> Result<RunReport, TrainerError> {
        let mut overseer = self.overseer()?;
        source
            .rooms(&overseer.rooms())
            .map_err(TrainerError::Source)?;
        for (priority, ledger) in source.ledgers().map_err(TrainerError::Source)? {
            overseer.set_ledger(priority, ledger);
        }
        let model = self.pipeline.config().clone();
        let materials = Materials {
            model: &model,
            tokenizer: &self.tokenizer,
            device: &self.device,
        };
        let claim = self.saved.as_mut().and_then(SavedRun::take_claim);
        let mut session = Session::open(Beginning {
            config: &self.config,
            tokenizer: &self.tokenizer,
            pipeline: self.pipeline,
            device: self.device.clone(),
            tasks: Tasks::default(),
            model: self.model,
            saved: self.saved.as_ref(),
            claim,
            observer,
            numbered: true,
        })?;
        let mut serving = Serving {
            session: &mut session,
            overseer: &mut overseer,
            materials,
            saved: self.saved.as_ref(),
        };
        let served = serving.serve(source, signals);
        session.saved_if_it_failed(served)?;
        Ok(session.end(overseer.memory_error()))
    }

    /// The scheduler of the configuration, for the pipeline's devices.
    fn overseer(&mut self) -> Result<Overseer, TrainerError> {
        let scheduler = &self.config.scheduler;
        let checkpointing = self.config.gradient_checkpointing;
        let devices = budgets(&self.pipeline, scheduler.memory_limit, checkpointing)?;
        let groups = self.config.pipeline.groups();
        let overseer = Overseer::new(scheduler, groups, devices)?;
        self.pipeline.limit_memory(overseer.host_limit());
        Ok(overseer)
    }
}

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Instant,
};

use burn::tensor::{DType, Device};
use loraloom_config::RunConfig;
use loraloom_data::Tokenizer;
use loraloom_model::Checkpoint;
use loraloom_pipeline::Pipeline;
use loraloom_scheduler::{DeviceMemory, GroupedRoom, Ledger, Room, Scheduler};

use super::{
    Signals,
    serving::Serving,
    session::{RunContext, Session, SessionOptions},
};
use crate::{
    DatasetSummary, Event, RunReport, SavedRun, TaskSource, TrainerError,
    error::Result,
    generate::{LiveAsks, SampleCounts},
    run_directory::Claim,
    scheduling::{DeviceRoom, devices, limit_warnings, memories, rooms, scheduler},
    stages::{OpenedStage, ReachedStage, StageLoader, model_config, spread},
    tasks::{EncodedRows, Prepared, Reader, RowCache, RunShape, TaskFactory},
};

/// A prepared run: everything is read and checked, and no step is taken yet.
#[derive(Debug)]
pub struct Run {
    context: RunContext,
    pipeline: Pipeline,
    prepared: Prepared,
    sample_counts: SampleCounts,
    /// Bytes of each device of this process that the run leaves to others.
    left_bytes: u64,
}

impl Run {
    /// Default number of adapters that answer prompts, from the first on.
    pub const ANSWERING: usize = 4;

    /// Reads data, tokenizer, adapters and weights, and checks that they fit together. Writes nothing here; workers
    /// read their layers. `stages` replace the configuration's.
    ///
    /// # Errors
    /// If anything is missing, damaged or inconsistent.
    pub fn prepare<P: Into<OpenedStage> + Clone>(config: RunConfig, stages: &[P]) -> Result<Self> {
        let stages = stages.iter().cloned().map(Into::into).collect();
        Self::prepare_on(config, stages, None)
    }

    /// As [`prepare`](Self::prepare), to resume a run in its directory with adapters, optimizers, schedules and data
    /// order where they were. On the CPU every adapter ends with the bits of an uninterrupted run. A task whose rows
    /// have changed fails, and the others continue.
    ///
    /// # Errors
    /// As [`prepare`](Self::prepare), and [`TrainerError::ConfigChanged`] if the configuration or the model is not
    /// that of the run.
    pub fn resume<P: Into<OpenedStage> + Clone>(
        config: RunConfig,
        stages: &[P],
        saved: SavedRun,
    ) -> Result<Self> {
        saved.check(&config)?;
        let stages = stages.iter().cloned().map(Into::into).collect();
        Self::prepare_on(config, stages, Some(saved))
    }

    fn prepare_on(
        config: RunConfig,
        stages: Vec<OpenedStage>,
        saved: Option<SavedRun>,
    ) -> Result<Self> {
        let device = match stages.first().ok_or(TrainerError::NoStage)? {
            OpenedStage::Device(device) => device.clone(),
            OpenedStage::Remote(_) => Device::flex(),
        };
        let model = model_config(&config.model, config.quantization.as_ref())?;
        let checkpoint = Checkpoint::open(&config.model)?;
        checkpoint.verify(&model)?;
        let digest = checkpoint.digest(&model)?;
        if let Some(saved) = &saved {
            saved.check_model(&digest, &config.model)?;
        }
        let tokenizer = Tokenizer::load(&config.model)?;
        let factory = TaskFactory {
            model: &model,
            directory: &config.model,
            tokenizer: &tokenizer,
            device: &device,
        };
        let mut prepared = factory.tasks(&config, saved.as_ref(), EncodedRows::new())?;

        let loader = StageLoader {
            config: &config,
            model: &model,
            checkpoint: &checkpoint,
        };
        let reached = loader.reach(&stages)?;
        let dtype = loader.dtype(&reached)?;
        let measure_on = match &reached[0] {
            ReachedStage::Device(device) => Some((device, dtype)),
            #[cfg(feature = "remote")]
            ReachedStage::Worker(_) => None,
        };
        let typical = prepared.typical_microbatch(&config);
        let partitions = spread(&config, &model, reached.len(), typical, measure_on)?;
        let pipeline = Pipeline::new(loader.load(reached, &partitions, dtype)?)?;
        let limit = config.scheduler.memory_limit;
        prepared.warnings.extend(limit_warnings(&pipeline, limit));
        let context = RunContext {
            config,
            tokenizer,
            device,
            model: digest,
            element_bytes: DType::from(dtype).size(),
            saved,
        };
        Ok(Self {
            context,
            pipeline,
            prepared,
            sample_counts: SampleCounts {
                rows: 2,
                adapters: Self::ANSWERING,
            },
            left_bytes: 0,
        })
    }

    /// A pipeline over the run's weights, for a thread beside it; `None` if a stage is in another process.
    ///
    /// # Errors
    /// As [`Pipeline::twin`].
    pub fn twin(&self) -> Result<Option<Pipeline>> {
        Ok(self.pipeline.twin()?)
    }

    /// Leaves bytes of each device of this process to others.
    pub fn leave(&mut self, bytes: u64) {
        self.left_bytes = bytes;
    }

    /// The type that the stages compute in.
    pub fn element_bytes(&self) -> usize {
        self.context.element_bytes
    }

    /// The rows of each adapter, in the order of the configuration.
    pub fn datasets(&self) -> &[DatasetSummary] {
        &self.prepared.datasets
    }

    /// Lets every adapter answer prompts of `rows` rows of its dataset before and after training, for the report. By
    /// default, the [first few](Self::ANSWERING) answer two.
    pub fn answer(&mut self, rows: usize) {
        let adapters = usize::MAX;
        self.sample_counts = SampleCounts { rows, adapters };
    }

    /// Steps taken and steps in all of each adapter that is not finished.
    pub fn steps(&self) -> Vec<(usize, usize)> {
        let tasks = self.prepared.tasks.iter();
        tasks.map(|task| (task.steps, task.total_steps)).collect()
    }

    /// Trains until every adapter has ended or a stop signal is set (a flag alone is one), which saves all adapters
    /// after the current iteration. Every event goes to `events.jsonl` and to `observer`.
    ///
    /// # Errors
    /// If the run directory cannot be written or already holds a run, or the device fails. A failed adapter is an
    /// [`Outcome`](crate::Outcome) in the report instead.
    pub fn train<'s>(
        self,
        signals: impl Into<Signals<'s>>,
        observer: &mut dyn FnMut(&Event),
    ) -> Result<RunReport> {
        let scheduler = self.scheduler()?;
        self.train_with(scheduler, signals, observer)
    }

    /// As [`train`](Self::train), with the caller's scheduler, which is given all unfinished tasks in the order of
    /// the configuration. The run ends when it names no group; tasks that still wait then are reported as
    /// interrupted.
    ///
    /// # Errors
    /// As [`train`](Self::train), and [`TrainerError::Decision`] for decisions that cannot be carried out.
    pub fn train_with<'s, R: Room>(
        mut self,
        mut scheduler: Scheduler<R>,
        signals: impl Into<Signals<'s>>,
        mut observer: &mut dyn FnMut(&Event),
    ) -> Result<RunReport> {
        let signals: Signals<'_> = signals.into();
        let options = SessionOptions {
            sample_counts: self.sample_counts,
            ..self.options(signals)
        };
        let model = self.pipeline.config().clone();
        let run = RunShape::new(&model, &self.context.config, self.context.element_bytes);
        for task in &self.prepared.tasks {
            task.submit_to(&mut scheduler, run, 0.0)?;
        }
        let (pipeline, prepared) = (self.pipeline, self.prepared);
        let mut session = Session::open(&self.context, options, pipeline, prepared, &mut observer)?;
        let trained = session.train_all(&mut scheduler, signals);
        session.saved_if_it_failed(trained)?;
        session.end(&scheduler.forecasts())
    }

    /// Trains the tasks of `source` until it ends the run or a stop signal is set, which saves all adapters after the
    /// current iteration. The configuration's adapters are not trained. Between iterations copies of adapters are given to
    /// whoever asks for them by `live`.
    ///
    /// # Errors
    /// As [`train`](Self::train), and [`TrainerError::Source`].
    pub fn serve(
        mut self,
        source: &mut dyn TaskSource,
        signals: Signals<'_>,
        live: Option<&LiveAsks>,
    ) -> Result<RunReport> {
        let options = SessionOptions {
            numbered: true,
            ..self.options(signals)
        };
        let mut scheduler = self.scheduler()?;
        let mut rooms = self.rooms();
        rooms.retain(DeviceRoom::is_limited);
        source.rooms(&rooms).map_err(TrainerError::Source)?;
        let (context, pipeline, prepared) = (self.context, self.pipeline, self.prepared);
        let model = pipeline.config().clone();
        let factory = TaskFactory {
            model: &model,
            directory: &context.config.model,
            tokenizer: &context.tokenizer,
            device: &context.device,
        };
        let mut session = Session::open(&context, options, pipeline, prepared, source)?;
        let ended = AtomicBool::new(false);
        let rows = RowCache::new(&context.tokenizer, model.vocab_size).until(&ended);
        let served = thread::scope(|scope| {
            let mut serving = Serving {
                session: &mut session,
                scheduler: &mut scheduler,
                factory,
                saved: context.saved.as_ref(),
                run: RunShape::new(&model, &context.config, context.element_bytes),
                reader: Reader::start(scope, rows, signals.news),
                unread: BTreeMap::new(),
                looked: Instant::now(),
                live,
            };
            let served = serving.serve(signals);
            // The scope waits for the reader.
            ended.store(true, Ordering::Relaxed);
            served
        });
        session.saved_if_it_failed(served)?;
        session.end(&scheduler.forecasts())
    }

    /// Takes the claim on a run directory, and determines the limit on this process's memory.
    fn options(&mut self, signals: Signals<'_>) -> SessionOptions {
        let claim: Option<Claim> = self.context.saved.as_mut().and_then(SavedRun::take_claim);
        let rooms = self.rooms();
        SessionOptions {
            claim,
            limit: self.host_limit(&rooms),
            rooms,
            standby: signals.standby.cloned(),
            ..SessionOptions::default()
        }
    }

    /// Memory of the pipeline's devices.
    fn rooms(&self) -> Vec<DeviceRoom> {
        let config = &self.context.config;
        let limit = config.scheduler.memory_limit;
        let mut rooms = rooms(
            &self.pipeline,
            limit,
            config.gradient_checkpointing,
            self.context.element_bytes,
            self.prepared.waiting_bytes(),
        );
        for room in &mut rooms {
            room.fixed_bytes += self.left_bytes;
        }
        rooms
    }

    /// Bytes that stages in this process's memory may use, if there is a limit.
    fn host_limit(&self, rooms: &[DeviceRoom]) -> Option<u64> {
        let devices = devices(&self.pipeline);
        let mut limited = devices
            .iter()
            .zip(rooms)
            .filter(|(_, room)| room.is_limited());
        let host = limited.find(|((device, _), _)| *device == Device::flex());
        host.map(|(_, room)| room.limit_bytes)
    }

    /// The scheduler of the configuration, for the pipeline's devices.
    fn scheduler(&self) -> Result<Scheduler<GroupedRoom<DeviceMemory>>> {
        let config = &self.context.config;
        let devices = memories(&self.pipeline, &self.rooms())?;
        let mut scheduler = scheduler(&config.scheduler, config.pipeline.groups(), devices)?;
        if let Some(saved) = &self.context.saved {
            for record in &saved.record().fair_shares {
                let ledger = Ledger {
                    level: record.level,
                    counters: record.counters.clone(),
                };
                scheduler.set_ledger(record.priority, ledger);
            }
            if let Some(learnt) = saved.learnt() {
                scheduler.room_mut().remember(learnt);
            }
        }
        Ok(scheduler)
    }
}

#[cfg(test)]
mod tests;

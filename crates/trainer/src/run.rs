use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    rc::Rc,
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

use burn::tensor::Device;
use loraloom_config::{RunConfig, ScheduleChoice};
use loraloom_data::{Dataset, EncodeReport, Encoded, Tokenizer};
use loraloom_model::{Checkpoint, LlamaConfig, PeftAdapter, PeftLoraConfig};
use loraloom_pipeline::{Pipeline, schedule::Schedule};
use loraloom_scheduler::{FirstComeFirstServed, Load, Scheduler, Task, TaskId};
use serde::Serialize;

use crate::{
    AdapterReport, Event, Outcome, RunReport, TrainerError, Versions,
    adapter::{ModelAdapter, fresh, from_peft, shape_warning},
    balance::spread,
    home::{Home, Household, StagePlace},
    ledger::Ledger,
    run_directory::RunDirectory,
    session::Session,
    task::{TrainingTask, tokens_per_step},
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

/// A run that is ready to begin: everything is read and checked, nothing is trained yet.
#[derive(Debug)]
pub struct Run {
    config: RunConfig,
    tokenizer: Tokenizer,
    pipeline: Pipeline,
    tasks: Vec<TrainingTask>,
    initial: HashMap<TaskId, ModelAdapter>,
    shapes: HashMap<TaskId, PeftLoraConfig>,
    datasets: Vec<DatasetSummary>,
    warnings: Vec<String>,
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
        Self::prepare_on(config, places)
    }

    fn prepare_on(config: RunConfig, places: Vec<StagePlace>) -> Result<Self, TrainerError> {
        // Where adapters begin: a stage takes its part from there.
        let device = match places.first().ok_or(TrainerError::NoStage)? {
            StagePlace::Device(device) => device.clone(),
            #[cfg(feature = "remote")]
            StagePlace::Worker(_) => Device::flex(),
        };
        let model = LlamaConfig::from_directory(&config.model)?;
        let checkpoint = Checkpoint::open(&config.model)?;
        checkpoint.verify(&model)?;
        let tokenizer = Tokenizer::load(&config.model)?;
        let mut warnings = Vec::new();

        let mut raw: BTreeMap<&str, Dataset> = BTreeMap::new();
        for (name, dataset) in &config.datasets {
            if config
                .adapters
                .iter()
                .any(|adapter| adapter.dataset == *name)
            {
                raw.insert(name, Dataset::load(name, dataset, config.seed)?);
            }
        }
        let mut encoded: HashMap<(&str, usize, bool), Rc<Encoded>> = HashMap::new();
        let (mut tasks, mut datasets) = (Vec::new(), Vec::new());
        let (mut initial, mut shapes) = (HashMap::new(), HashMap::new());
        for (index, adapter) in config.adapters.iter().enumerate() {
            let id = TaskId(index as u64);
            let name = adapter.dataset.as_str();
            let key = (
                name,
                adapter.train.max_seq_len,
                adapter.train.train_on_prompt,
            );
            let data = if let Some(data) = encoded.get(&key) {
                data.clone()
            } else {
                let data = Rc::new(raw[name].encode(&tokenizer, key.1, key.2)?);
                check_vocabulary(name, &data, model.vocab_size)?;
                encoded.entry(key).or_insert(data).clone()
            };
            if data.train.report.longest > model.max_position_embeddings {
                warnings.push(format!(
                    "adapter `{}` has rows of {} tokens, but the model was made for {}",
                    adapter.name, data.train.report.longest, model.max_position_embeddings
                ));
            }
            datasets.push(DatasetSummary {
                adapter: adapter.name.clone(),
                dataset: adapter.dataset.clone(),
                train: data.train.report.clone(),
                validation: data.validation.as_ref().map(|rows| rows.report.clone()),
            });
            let state = match &adapter.init_from {
                Some(directory) => {
                    let peft = PeftAdapter::load(directory)?;
                    warnings.extend(shape_warning(adapter, &peft.config));
                    let state = from_peft(&peft, adapter.lora.lora_dropout, &model, &device)?;
                    shapes.insert(id, peft.config);
                    state
                }
                None => fresh(adapter, &model, &device)?,
            };
            initial.insert(id, state);
            tasks.push(TrainingTask::new(id, adapter.clone(), data)?);
        }

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
        let layers = spread(&config, &model, homes.len(), &tasks, measure_on)?;
        let pipeline = Pipeline::of(household.load(homes, layers, dtype)?)?;
        Ok(Self {
            config,
            tokenizer,
            pipeline,
            tasks,
            initial,
            shapes,
            datasets,
            warnings,
        })
    }

    /// What was read for each adapter, in the order of the configuration.
    pub fn datasets(&self) -> &[DatasetSummary] {
        &self.datasets
    }

    /// Trains until every adapter has come to its end or `stop` is set, which saves all adapters
    /// after the iteration under way. Every event goes to `events.jsonl` and to `observer`.
    ///
    /// # Errors
    /// If the run directory cannot be written or holds a run already, or the device fails. An
    /// adapter that cannot go on is no error but an [`Outcome`] in the report.
    pub fn train(
        self,
        stop: &AtomicBool,
        observer: &mut dyn FnMut(&Event),
    ) -> Result<RunReport, TrainerError> {
        let started = Instant::now();
        let directory = RunDirectory::create(&self.config.output_dir, &self.config.to_yaml()?)?;
        let mut scheduler = FirstComeFirstServed::new(self.config.scheduler.max_adapters)?;
        for task in &self.tasks {
            scheduler.submit(description(task))?;
        }
        let names = self
            .tasks
            .iter()
            .map(|task| task.config.name.clone())
            .collect();
        let stages = self.pipeline.names().collect();
        let layers = self.pipeline.layers();
        let layers = layers.map(|layers| [layers.start, layers.end]).collect();
        let weight_bytes = self.pipeline.weight_bytes().collect();
        let waiting = self.tasks.into_iter().map(|task| (task.id, task)).collect();
        let ledger = Ledger {
            config: &self.config,
            directory,
            memory: self.pipeline.memory_gauges(),
            observer,
            running: Vec::new(),
            iteration: 0,
            pending: VecDeque::new(),
            failures: Vec::new(),
            arrived: None,
            tokens: 0,
        };
        let mut session = Session {
            pipeline: self.pipeline,
            schedule: schedule(self.config.pipeline.schedule),
            ledger,
            tokenizer: &self.tokenizer,
            initial: self.initial,
            shapes: self.shapes,
            waiting,
            ended: BTreeMap::new(),
        };
        session.ledger.emit(Event::RunStart {
            time: now(),
            adapters: names,
            stages,
            layers,
            weight_bytes,
            versions: Versions::default(),
        })?;
        for message in self.warnings {
            session.ledger.emit(Event::Warning { message })?;
        }

        if let Err(error) = train_all(&mut session, &mut scheduler, stop) {
            // A read that failed does not know why.
            return Err(session.pipeline.failure().map_or(error, TrainerError::from));
        }

        let interrupted = session
            .ended
            .values()
            .any(|report: &AdapterReport| report.outcome == Outcome::Interrupted)
            || !session.waiting.is_empty();
        session.report_waiting();
        let adapters: Vec<AdapterReport> = session.ended.values().cloned().collect();
        let count = |wanted: fn(&Outcome) -> bool| {
            adapters
                .iter()
                .filter(|adapter| wanted(&adapter.outcome))
                .count()
        };
        let (seconds, tokens) = (started.elapsed().as_secs_f64(), session.ledger.tokens);
        session.ledger.emit(Event::RunEnd {
            time: now(),
            seconds,
            tokens,
            done: count(|outcome| *outcome == Outcome::Done),
            failed: count(|outcome| matches!(outcome, Outcome::Failed { .. })),
            interrupted,
        })?;
        Ok(RunReport {
            adapters,
            interrupted,
            seconds,
            tokens,
        })
    }
}

/// Trains until every task has come to its end or `stop` is set.
fn train_all(
    session: &mut Session<'_>,
    scheduler: &mut FirstComeFirstServed,
    stop: &AtomicBool,
) -> Result<(), TrainerError> {
    loop {
        let decision = scheduler.decide();
        session.admit(decision.admitted)?;
        if session.ledger.running.is_empty() {
            return Ok(());
        }
        for (task, outcome) in session.train(stop)? {
            scheduler.finish(task, outcome)?;
        }
        if stop.load(Ordering::Relaxed) {
            return session.interrupt();
        }
    }
}

fn description(task: &TrainingTask) -> Task {
    Task {
        id: task.id,
        name: task.config.name.clone(),
        tenant: task.config.tenant.clone(),
        priority: task.config.priority,
        arrival: task.id.0,
        rank: task.config.lora.r,
        rows_per_step: task.rows_per_step(),
        tokens_per_step: tokens_per_step(task),
        total_steps: task.total_steps,
        load: Load::default(),
    }
}

fn schedule(choice: ScheduleChoice) -> Schedule {
    match choice {
        ScheduleChoice::Lorapp => Schedule::LoraPp,
        ScheduleChoice::OneFOneB => Schedule::OneFOneB,
        ScheduleChoice::Gpipe => Schedule::GPipe,
    }
}

fn check_vocabulary(dataset: &str, data: &Encoded, vocabulary: usize) -> Result<(), TrainerError> {
    let parts = [Some(&data.train), data.validation.as_ref()];
    let samples = parts.into_iter().flatten().flat_map(|part| &part.samples);
    match samples
        .flat_map(|sample| &sample.ids)
        .find(|&&id| id as usize >= vocabulary)
    {
        Some(&token) => Err(TrainerError::TokenBeyondVocabulary {
            dataset: dataset.into(),
            token,
            vocabulary,
        }),
        None => Ok(()),
    }
}

fn now() -> String {
    jiff::Timestamp::now().to_string()
}

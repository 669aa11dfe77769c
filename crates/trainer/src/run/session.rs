use std::{collections::BTreeMap, path::Path, sync::Arc, time::Instant};

use burn::tensor::Device;
use loraloom_config::RunConfig;
use loraloom_data::Tokenizer;
use loraloom_pipeline::Pipeline;
use loraloom_scheduler::{
    Admission, Decision, Forecasts, History, Parking, Room, Scheduler, TaskId, TaskOutcome,
};

use super::{
    Signals,
    announce::{announce, now},
    iterations::Iterations,
};
use crate::{
    AdapterReport, Event, Outcome, RunReport, SavedRun, Standby, TaskSource, TrainerError,
    error::Result,
    events::EventLog,
    generate::{Answers, SampleCounts},
    run_directory::{Claim, RunDirectory, is_run},
    save::{Moment, Saver},
    scheduling::DeviceRoom,
    tasks::{Placement, Prepared, Rewind, StartCost, Trials},
};

/// Everything a run needs apart from its stages and tasks, already validated.
#[derive(Debug)]
pub(super) struct RunContext {
    pub(super) config: RunConfig,
    pub(super) tokenizer: Tokenizer,
    /// Device on which adapters are created.
    pub(super) device: Device,
    /// Digest of the model's files.
    pub(super) model: String,
    /// Bytes of an element of weights and activations.
    pub(super) element_bytes: usize,
    /// The checkpoint that the run resumes from.
    pub(super) saved: Option<SavedRun>,
}

/// Options of a session.
#[derive(Debug, Default)]
pub(super) struct SessionOptions {
    /// The claim on the run directory, if it was already taken.
    pub(super) claim: Option<Claim>,
    /// The prompts that adapters answer.
    pub(super) sample_counts: SampleCounts,
    /// Memory of the pipeline's devices.
    pub(super) rooms: Vec<DeviceRoom>,
    /// Bytes that this process may use, if it has a stage in its memory and there is a limit.
    pub(super) limit: Option<u64>,
    /// Saves the run if a stop comes inside a step.
    pub(super) standby: Option<Arc<Standby>>,
    /// True if tasks come from a queue, which assigns their ids.
    pub(super) numbered: bool,
}

/// A task that has ended, for the scheduler.
pub(super) type Ended = (TaskId, TaskOutcome);

/// A run in progress: the stages, their tasks and the state that they share.
pub(super) struct Session<'a> {
    pub(super) config: &'a RunConfig,
    pub(super) placed: Placement,
    pub(super) iterations: Iterations,
    pub(super) log: EventLog<'a>,
    pub(super) saver: Saver<'a>,
    pub(super) trials: Trials,
    pub(super) answers: Answers<'a>,
    pub(super) rewind: Rewind,
    /// The scheduler's history as of its last decision.
    pub(super) history: History,
    /// Tokens trained since they were last taken, by tenant.
    pub(super) trained: BTreeMap<String, u64>,
    /// Zero of the scheduler's clock.
    begun: Instant,
    /// True if tasks come from a queue, which assigns their ids.
    pub(super) numbered: bool,
}

impl<'a> Session<'a> {
    /// Opens the run directory, emits the start or resume event, and writes an initial checkpoint.
    pub(super) fn open(
        context: &'a RunContext,
        options: SessionOptions,
        pipeline: Pipeline,
        prepared: Prepared,
        source: &'a mut dyn TaskSource,
    ) -> Result<Self> {
        let config = &context.config;
        let saved = context.saved.as_ref();
        let (iteration, tokens, seconds) =
            saved.map(SavedRun::record).map_or((0, 0, 0.0), |before| {
                (before.iteration, before.tokens, before.seconds)
            });
        let directory = directory(config, saved, options.claim, options.numbered)?;
        let mut saver = Saver::new(config, &context.model, seconds)?;
        saver.limit = options.limit;
        saver.standby = options.standby;
        let mut session = Self {
            config,
            iterations: Iterations::after(iteration, tokens, &pipeline, options.rooms),
            placed: Placement::new(
                pipeline,
                context.device.clone(),
                config.pipeline.microbatches,
            ),
            log: EventLog::new(directory, source),
            saver,
            trials: Trials::default(),
            answers: Answers::new(options.sample_counts, &context.tokenizer),
            rewind: Rewind::default(),
            history: History::default(),
            trained: BTreeMap::new(),
            begun: Instant::now(),
            numbered: options.numbered,
        };
        session.enter_trials(&prepared)?;
        let warnings = session.take(prepared);
        announce(&mut session.log, config, &session.placed, saved);
        for message in warnings {
            session.log.warn(message);
        }
        if saved.is_none() {
            session.saver.ask();
            session.moment().settle_now()?;
        }
        Ok(session)
    }

    /// Adds prepared tasks, without a place. Returns warnings.
    pub(super) fn take(&mut self, prepared: Prepared) -> Vec<String> {
        let tasks = &mut self.placed.tasks;
        for task in prepared.tasks {
            tasks.insert(task);
        }
        tasks.ended.extend(prepared.ended);
        tasks.held.extend(prepared.held);
        prepared.warnings
    }

    /// Adds the adapters of the configuration's sweeps to their comparison.
    fn enter_trials(&mut self, prepared: &Prepared) -> Result<()> {
        for sweep in &self.config.sweep {
            let Some(stopping) = &sweep.early_stopping else {
                continue;
            };
            for (index, adapter) in self.config.adapters.iter().enumerate() {
                if !sweep.adapters.contains(&adapter.name) {
                    continue;
                }
                if let Some(trial) = prepared.trial(TaskId(index as u64)) {
                    self.trials.enter(&sweep.name, stopping, trial)?;
                }
            }
        }
        Ok(())
    }

    /// Seconds on the scheduler's clock.
    pub(super) fn now(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }

    /// The current state of the run, to be saved.
    pub(super) fn moment(&mut self) -> Moment<'_, 'a> {
        Moment {
            saver: &mut self.saver,
            placed: &mut self.placed,
            log: &mut self.log,
            trials: &self.trials,
            history: &self.history,
            iteration: self.iterations.submitted,
            tokens: self.iterations.tokens,
            bytes_predicted: self.iterations.bytes_predicted,
            numbered: self.numbered,
        }
    }

    /// Trains until every task has ended or a stop is requested.
    pub(super) fn train_all<R: Room>(
        &mut self,
        scheduler: &mut Scheduler<R>,
        signals: Signals<'_>,
    ) -> Result<()> {
        self.history = scheduler.history(self.now());
        loop {
            if !self.train_some(scheduler, signals)? {
                self.fail_unplaceable(scheduler)?;
                return self.moment().settle_now();
            }
            if signals.stop() {
                return self.interrupt();
            }
        }
    }

    /// Saves if that is requested, decides, and trains until a step has consequences. Returns whether any task has a
    /// place.
    pub(super) fn train_some<R: Room>(
        &mut self,
        scheduler: &mut Scheduler<R>,
        signals: Signals<'_>,
    ) -> Result<bool> {
        if signals.take_save() {
            self.moment().save_begun()?;
            self.saver.ask();
            self.moment().settle()?;
        }
        let decision = scheduler.decide(self.now());
        let most = decision.max_steps;
        let standby = self.saver.standby.clone();
        if let Some(standby) = &standby {
            standby.compute();
        }
        let mut unbegun = Vec::new();
        let trained = self.carry_out(decision).and_then(|failed| {
            unbegun = failed;
            let any = self.placed.tasks.running().next().is_some();
            any.then(|| self.train(signals, most)).transpose()
        });
        let some_failed = !unbegun.is_empty();
        for (task, outcome) in unbegun {
            scheduler.finish(task, outcome, self.now())?;
        }
        if let Some(standby) = &standby {
            standby.wait();
        }
        let ended = match trained {
            // Others may take their places.
            Ok(None) => return Ok(some_failed),
            Ok(Some(ended)) => ended,
            Err(error) if error.is_out_of_memory() => {
                self.recover_from_oom(error, scheduler)?;
                return Ok(true);
            }
            Err(error) => return Err(error),
        };
        for iteration in std::mem::take(&mut self.iterations.measured) {
            scheduler.measured(&iteration)?;
            for trained in &iteration.tasks {
                if let Some(task) = self.placed.tasks.get(trained.task) {
                    *self.trained.entry(task.config.tenant.clone()).or_default() += trained.tokens;
                }
            }
        }
        for (task, outcome) in ended {
            scheduler.finish(task, outcome, self.now())?;
        }
        self.history = scheduler.history(self.now());
        self.moment().settle()?;
        Ok(true)
    }

    /// Parks, admits and groups tasks by a decision. No iteration may be under way.
    ///
    /// Returns tasks that cannot begin.
    ///
    /// # Errors
    /// [`TrainerError::Decision`] for a decision that contradicts itself or the running tasks; then nothing is
    /// changed.
    fn carry_out(&mut self, mut decision: Decision) -> Result<Vec<Ended>> {
        let mut groups = self.placed.groups_of(&decision)?;
        self.iterations.bytes_predicted = decision.expected_bytes;
        for parking in decision.parked {
            self.park(parking)?;
        }
        let (mut coming, mut failed) = (BTreeMap::new(), Vec::new());
        for &Admission { task: id, .. } in &decision.admitted {
            if let Some(task) = self.placed.tasks.get(id) {
                self.rewind.arrivals.insert(id, task.clone());
            }
            match self.placed.begin(id) {
                Ok(cost) => {
                    // Computed start values outlive a lack of memory.
                    if let Some(task) = self.placed.tasks.get(id).filter(|_| cost.is_some()) {
                        self.rewind.arrivals.insert(id, task.clone());
                    }
                    self.report_start(id, cost);
                }
                Err(error @ TrainerError::Start { .. }) => {
                    self.rewind.arrivals.remove(&id);
                    let hint = error
                        .hint()
                        .map_or_else(String::new, |hint| format!("; {hint}"));
                    failed.push(self.fail_next(id, Outcome::failed(format!("{error}{hint}")))?);
                    continue;
                }
                Err(error) => return Err(error),
            }
            coming.extend(self.placed.adapter(id)?.map(|adapter| (id, adapter)));
        }
        let goes_on = |id: TaskId| failed.iter().all(|(failed, _)| *failed != id);
        for group in &mut groups {
            group.retain(|id| goes_on(*id));
        }
        groups.retain(|group| !group.is_empty());
        decision.admitted.retain(|admitted| goes_on(admitted.task));
        self.placed.form(&groups, coming)?;
        let tasks = &mut self.placed.tasks;
        for member in decision.groups.iter().flatten() {
            if let Some(task) = tasks.get_mut(member.task) {
                task.parts = member.parts;
            }
        }
        let admitted: Vec<TaskId> = decision.admitted.iter().map(|begun| begun.task).collect();
        self.answers.ask_before(&mut self.placed, &admitted)?;
        for Admission { task, reason, .. } in decision.admitted {
            if let Some(task) = self.placed.tasks.get(task) {
                self.log.emit(Event::Admit {
                    adapter: task.config.name.clone(),
                    step: task.steps,
                    total_steps: task.total_steps,
                    reason,
                });
            }
        }
        if let Some(reason) = decision.regrouped {
            let groups = self.placed.tasks.group_names();
            self.log.emit(Event::Regroup { groups, reason });
        }
        Ok(failed)
    }

    fn report_start(&mut self, id: TaskId, cost: Option<StartCost>) {
        if let (Some(cost), Some(adapter)) = (cost, self.placed.tasks.name_of(id)) {
            self.log.emit(Event::StartValues {
                adapter,
                batches: cost.batches,
                tokens: cost.tokens,
                decompositions: cost.decompositions,
                seconds: cost.seconds,
                bytes: cost.bytes,
            });
        }
    }

    /// Takes a task out of the stages, with its adapter and moments.
    pub(super) fn park(&mut self, parking: Parking) -> Result<()> {
        let by = parking.by.and_then(|by| self.placed.tasks.name_of(by));
        if let Some(task) = self.placed.park(parking.task)? {
            self.log.emit(Event::Park {
                adapter: task.config.name.clone(),
                step: task.steps,
                reason: parking.reason,
                by,
            });
        }
        Ok(())
    }

    /// Saves every adapter that has begun and a checkpoint, and ends the tasks.
    pub(super) fn interrupt(&mut self) -> Result<()> {
        self.moment().save_all()?;
        for task in self.placed.tasks.take_running() {
            self.conclude(task, Outcome::Interrupted);
        }
        Ok(())
    }

    /// Saves the remaining state if training ended with an error, and returns the error's cause.
    pub(super) fn saved_if_it_failed(&mut self, trained: Result<()>) -> Result<()> {
        trained.map_err(|error| {
            // A failed read does not name its cause.
            let failure = self.placed.pipeline.failure();
            self.moment().rescue();
            failure.map_or(error, TrainerError::from)
        })
    }

    /// Emits the end of the run and its memory prediction errors.
    ///
    /// # Errors
    /// [`TrainerError::DirectoryGone`] if saved files are missing.
    pub(super) fn end(&mut self, forecasts: &Forecasts) -> Result<RunReport> {
        self.moment().check_directory()?;
        let interrupted = self.placed.tasks.any_interrupted();
        for task in self.placed.tasks.take_waiting() {
            self.conclude(task, Outcome::Interrupted);
        }
        let adapters: Vec<AdapterReport> = self.placed.tasks.ended.values().cloned().collect();
        let count = |wanted: fn(&Outcome) -> bool| {
            let outcomes = adapters.iter().map(|adapter| &adapter.outcome);
            outcomes.filter(|outcome| wanted(outcome)).count()
        };
        let (seconds, tokens) = (self.saver.seconds(), self.iterations.tokens);
        self.log.emit(Event::RunEnd {
            time: now(),
            seconds,
            tokens,
            done: count(|outcome| matches!(outcome, Outcome::Done | Outcome::Stopped { .. })),
            failed: count(|outcome| matches!(outcome, Outcome::Failed { .. })),
            interrupted,
            memory_error_percent: forecasts.mean_absolute_percentage_error(),
            memory_predictions: forecasts.fitted(),
            memory_unfitted_error_percent: forecasts.unfitted_percentage_error(),
        });
        Ok(RunReport {
            sweeps: RunReport::rank(self.config, &adapters),
            adapters,
            interrupted,
            seconds,
            tokens,
            memory: self.iterations.peak,
        })
    }
}

/// Creates the run's directory, or opens it for a resume.
fn directory(
    config: &RunConfig,
    saved: Option<&SavedRun>,
    claim: Option<Claim>,
    numbered: bool,
) -> Result<RunDirectory> {
    let text = config.to_yaml()?;
    if let Some(saved) = saved {
        let claim = claim.map_or_else(|| Claim::take(saved.directory()), Ok)?;
        return RunDirectory::resume(saved.directory(), &text, claim);
    }
    let path: &Path = &config.output_dir;
    // A server that was killed before its first checkpoint starts again: its queue has the tasks.
    if numbered && is_run(path) {
        return RunDirectory::resume(path, &text, Claim::take(path)?);
    }
    RunDirectory::create(path, &text)
}

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Instant,
};

use burn::tensor::Device;
use loraloom_data::Tokenizer;
use loraloom_model::PeftLoraConfig;
use loraloom_pipeline::{
    Pipeline,
    executor::{Driver, Passes},
    schedule::{PipelineShape, Schedule},
};
use loraloom_scheduler::{History, Outcome as TaskOutcome, TaskId};

use crate::{
    AdapterReport, Best, Event, Outcome, Signals, TrainerError, adapter::ModelAdapter,
    answers::Answers, diagnosis, evaluate::evaluate, ledger::Ledger, rewind::Snapshot,
    saving::Saving, task::TrainingTask, trials::Trials, waiting::WaitingTask, window::Window,
};

/// Iterations that are run without a pause at most.
const LONGEST_WINDOW: usize = 256;

/// A run in progress: the stages, the tasks over them and everything they share.
pub(crate) struct Session<'a> {
    pub(crate) pipeline: Pipeline,
    pub(crate) schedule: Schedule,
    pub(crate) ledger: Ledger<'a>,
    pub(crate) tokenizer: &'a Tokenizer,
    /// Where adapters begin: a stage takes its part from there.
    pub(crate) device: Device,
    /// Adapters before their first step; kept until they are seen to have moved.
    pub(crate) initial: HashMap<TaskId, ModelAdapter>,
    /// Shapes of adapters that began from a PEFT directory.
    pub(crate) shapes: HashMap<TaskId, PeftLoraConfig>,
    pub(crate) waiting: BTreeMap<TaskId, WaitingTask>,
    pub(crate) ended: BTreeMap<TaskId, AdapterReport>,
    /// Tasks that have ended and can go on in another part of the run, from the last checkpoint that
    /// has them.
    pub(crate) held: BTreeSet<TaskId>,
    /// Tasks of a queue that have failed, or whose files are away: checkpoints keep what they have of them.
    pub(crate) carried: BTreeMap<TaskId, String>,
    pub(crate) saving: Saving,
    pub(crate) trials: Trials,
    pub(crate) answers: Answers,
    /// What the scheduler remembers, as of its last decision.
    pub(crate) history: History,
    /// When the scheduler's clock began.
    pub(crate) begun: Instant,
    /// What to go back to if memory runs out.
    pub(crate) snapshot: Option<Snapshot>,
    /// Tasks that were let in since, as they came.
    pub(crate) arrivals: BTreeMap<TaskId, WaitingTask>,
    /// Whether tasks come from a queue, which numbers them.
    pub(crate) numbered: bool,
}

impl Session<'_> {
    /// Seconds on the scheduler's clock.
    pub(crate) fn now(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }

    /// Trains all running tasks until something follows from a step of one of them, `most` steps are
    /// taken, a signal is set or a task fails; then does what follows. Returns the tasks that ended.
    pub(crate) fn train(
        &mut self,
        signals: Signals<'_>,
        most: Option<usize>,
    ) -> Result<Vec<(TaskId, TaskOutcome)>, TrainerError> {
        self.restart_lost_steps();
        self.keep_snapshot()?;
        let renew = self.snapshot.as_ref().map(Snapshot::oldest);
        let most = most.map_or(LONGEST_WINDOW, |most| most.clamp(1, LONGEST_WINDOW));
        let split = self.ledger.config.pipeline.microbatches;
        let running = self.ledger.running.iter();
        let microbatches = running.map(|task| task.microbatches_per_iteration(split));
        let passes = Passes {
            schedule: self.schedule,
            shape: PipelineShape::new(
                self.pipeline.layers().len(),
                self.ledger.groups(),
                microbatches.max().unwrap_or(0),
                self.steps_until_something_follows(most),
            )
            .with_extra_warmup(self.ledger.config.pipeline.extra_warmup),
            driver: Driver::default(),
        };
        let mut window = Window {
            ledger: &mut self.ledger,
            saving: &mut self.saving,
            signals,
            renew,
        };
        self.pipeline.run(&passes, &mut window)?;
        // What is no number may be the fault of a worker's device, and not the task's.
        if !self.ledger.failures.is_empty()
            && let Some(failure) = self.pipeline.failure()
        {
            return Err(failure.into());
        }

        let mut ended = Vec::new();
        for (task, reason) in std::mem::take(&mut self.ledger.failures) {
            if let Some(index) = self.ledger.index_of(task) {
                let step = self.ledger.running[index].steps + 1;
                ended.push(self.fail(index, step, reason)?);
            }
        }
        let failed = ended.len();
        // From the last one on, so that removing one does not move those still to come.
        let mut stepped = BTreeMap::new();
        for index in (0..self.ledger.running.len()).rev() {
            ended.extend(self.look_at_step(index, &mut stepped)?);
        }
        for (trial, reason) in self.trials.judge() {
            if let Some(early) = stepped.get_mut(&trial) {
                early.get_or_insert(reason);
            }
        }
        let mut ending = Vec::new();
        for index in (0..self.ledger.running.len()).rev() {
            let id = self.ledger.running[index].id;
            if let Some(early) = stepped.remove(&id) {
                match self.save(index, early.is_some())? {
                    Some(false) => ended.push(self.fail_unsaved(index)?),
                    Some(true) => ending.push((id, early)),
                    None => {}
                }
            }
        }
        let ids: Vec<TaskId> = ending.iter().map(|(id, _)| *id).collect();
        // They are saved: a device that fails while they answer must not undo their end.
        let asked = self.ask_after(&ids);
        for (id, early) in ending {
            if let Some(index) = self.ledger.index_of(id) {
                ended.push(self.finish(index, early)?);
            }
        }
        asked?;
        ended[failed..].reverse();
        Ok(ended)
    }

    /// Iterations to the next that ends, evaluates, saves or checks a task, up to `most`.
    fn steps_until_something_follows(&self, most: usize) -> usize {
        let follows = |task: &TrainingTask, step| {
            let unchecked = self.initial.contains_key(&task.id);
            let checked = unchecked && task.must_have_moved_after(step);
            let compared = self.trials.compares_after(task.id, step);
            let follows = task.evaluates_after(step) || task.saves_after(step);
            checked || compared || follows || task.ends_after(step)
        };
        let split = self.ledger.config.pipeline.microbatches;
        let mut ahead: Vec<_> = self
            .ledger
            .running
            .iter()
            .map(|task| (task, task.submitted))
            .collect();
        let some = |_: &usize| {
            let mut any = false;
            for (task, cursor) in &mut ahead {
                let count = task.microbatches_of(cursor.steps(), split);
                let ends = cursor.advance(count, task.parts).ends_step();
                any |= ends && follows(task, cursor.steps());
            }
            any
        };
        (1..most).find(some).unwrap_or(most)
    }

    /// Liveness and evaluation of a task, if it took a step: then it is in `stepped`, with the reason if
    /// it ends early.
    fn look_at_step(
        &mut self,
        index: usize,
        stepped: &mut BTreeMap<TaskId, Option<String>>,
    ) -> Result<Option<(TaskId, TaskOutcome)>, TrainerError> {
        if !self.ledger.running[index].settle() {
            return Ok(None);
        }
        if let Some(reason) = self.unmoved(index)? {
            let step = self.ledger.running[index].steps;
            return self.fail(index, step, reason).map(Some);
        }
        let task = &self.ledger.running[index];
        let (id, step, loss) = (task.id, task.steps, task.last_loss);
        let mut early = None;
        if task.evaluates_after(step) {
            early = self.evaluate(index)?;
        }
        let diverged = loss.and_then(|loss| self.trials.trained(id, step, loss));
        stepped.insert(id, early.or(diverged));
        Ok(None)
    }

    /// Saves a task that took a step, if it is time for that: it is if the task ends, and then this says
    /// whether it could be saved.
    fn save(&mut self, index: usize, early: bool) -> Result<Option<bool>, TrainerError> {
        let task = &self.ledger.running[index];
        if early || task.ends_after(task.steps) {
            return self.save_now(index).map(Some);
        }
        if task.saves_after(task.steps) {
            self.save_last(index)?;
        }
        Ok(None)
    }

    /// Ends a task whose steps since the last checkpoint are taken again when the run is resumed.
    fn fail_unsaved(&mut self, index: usize) -> Result<(TaskId, TaskOutcome), TrainerError> {
        let task = &self.ledger.running[index];
        let step = task.steps;
        self.held.insert(task.id);
        let reason = "what it has learnt could not be saved".to_owned();
        self.fail(index, step, reason)
    }

    /// Ends a task that was saved, after its last step or early for a reason.
    fn finish(
        &mut self,
        index: usize,
        early: Option<String>,
    ) -> Result<(TaskId, TaskOutcome), TrainerError> {
        let place = self.ledger.place(index);
        let task = &self.ledger.running[index];
        let last = task.ends_after(task.steps);
        let (outcome, reason) = match early.filter(|_| !last) {
            Some(reason) => {
                let outcome = Outcome::Stopped {
                    reason: reason.clone(),
                };
                (outcome, reason)
            }
            None => (Outcome::Done, "took all its steps".to_owned()),
        };
        self.pipeline.remove(place.group, place.slot)?;
        let task = self.ledger.running.remove(index);
        let (id, step, adapter) = (task.id, task.steps, task.config.name.clone());
        self.conclude(task, outcome);
        self.ledger.emit(Event::AdapterDone {
            adapter,
            step,
            reason,
        });
        Ok((id, TaskOutcome::Done))
    }

    /// Once two steps with a learning rate above zero were taken, every A and B must have moved.
    fn unmoved(&mut self, index: usize) -> Result<Option<String>, TrainerError> {
        let task = &self.ledger.running[index];
        let Some(before) = self.initial.get(&task.id) else {
            return Ok(None);
        };
        if !task.must_have_moved_after(task.steps) {
            return Ok(None);
        }
        let place = self.ledger.place(index);
        let now = self.pipeline.extract(place.group, place.slot)?;
        let reason = diagnosis::unmoved(task, before, &now)?;
        self.initial.remove(&task.id);
        Ok(reason)
    }

    /// Evaluates a task that has validation rows; why it ends early, if it does.
    fn evaluate(&mut self, index: usize) -> Result<Option<String>, TrainerError> {
        let task = &self.ledger.running[index];
        let Some(rows) = task.validation_rows() else {
            return Ok(None);
        };
        let train = &task.config.train;
        let sizes = (train.batch_size, train.max_seq_len);
        let loss = evaluate(&self.pipeline, rows, self.ledger.place(index), sizes)?;
        // A loss that is not finite is never the best.
        let best = loss.is_finite() && task.best.is_none_or(|best| loss < best.loss);
        let (adapter, step) = (task.config.name.clone(), task.steps);
        let loss_value = loss.is_finite().then_some(loss);
        self.ledger.emit(Event::Eval {
            adapter,
            step,
            loss: loss_value,
            best,
        });
        let task = &mut self.ledger.running[index];
        self.trials.evaluated(task.id, step, loss);
        if best {
            task.evaluations_without_best = 0;
            self.save_best(index, Best { step, loss })?;
            return Ok(None);
        }
        task.evaluations_without_best += 1;
        let (without, patience) = (task.evaluations_without_best, task.config.eval.patience);
        let impatient = patience.is_some_and(|patience| without >= patience);
        Ok(impatient.then(|| format!("{without} evaluations without a new best")))
    }

    /// Ends a task that cannot go on after, or with, a step. What it saved before stays as it is.
    pub(crate) fn fail(
        &mut self,
        index: usize,
        step: usize,
        reason: String,
    ) -> Result<(TaskId, TaskOutcome), TrainerError> {
        let place = self.ledger.place(index);
        self.pipeline.remove(place.group, place.slot)?;
        let task = self.ledger.running.remove(index);
        let (id, adapter) = (task.id, task.config.name.clone());
        self.conclude(
            task,
            Outcome::Failed {
                reason: reason.clone(),
            },
        );
        self.ledger.emit(Event::AdapterFailed {
            adapter,
            step,
            reason,
        });
        Ok((id, TaskOutcome::Failed))
    }

    /// Ends a task that has no place and cannot go on.
    pub(crate) fn fail_waiting(&mut self, waiting: WaitingTask, reason: String) {
        let step = waiting.task.steps + 1;
        let adapter = waiting.task.config.name.clone();
        let outcome = Outcome::Failed {
            reason: reason.clone(),
        };
        self.conclude(waiting.task, outcome);
        self.ledger.emit(Event::AdapterFailed {
            adapter,
            step,
            reason,
        });
    }

    /// Ends a task for its owner, wherever it is; whether there is one. What it saved stays.
    pub(crate) fn cancel(&mut self, id: TaskId) -> Result<bool, TrainerError> {
        let task = if let Some(index) = self.ledger.index_of(id) {
            let place = self.ledger.place(index);
            self.pipeline.remove(place.group, place.slot)?;
            self.ledger.running.remove(index)
        } else if let Some(waiting) = self.waiting.remove(&id) {
            waiting.task
        } else {
            return Ok(false);
        };
        let (adapter, step) = (task.config.name.clone(), task.steps);
        self.conclude(task, Outcome::Cancelled);
        self.ledger.emit(Event::AdapterCancelled { adapter, step });
        Ok(true)
    }

    /// Saves every adapter that has begun, and everything that is needed to go on, and ends the tasks.
    pub(crate) fn interrupt(&mut self) -> Result<(), TrainerError> {
        // Earlier failures are only reported: everything is saved again below.
        self.wait_for_writer();
        self.report_problems();
        self.save_begun()?;
        self.settle_all()?;
        for task in std::mem::take(&mut self.ledger.running) {
            self.conclude(task, Outcome::Interrupted);
        }
        Ok(())
    }

    /// Reports tasks that have no place.
    pub(crate) fn report_waiting(&mut self) {
        for waiting in std::mem::take(&mut self.waiting).into_values() {
            self.conclude(waiting.task, Outcome::Interrupted);
        }
    }

    pub(crate) fn conclude(&mut self, mut task: TrainingTask, outcome: Outcome) {
        // What is being written may be of this task.
        self.saving.wait(&mut self.ledger);
        self.saving.take_back(&mut task);
        let directory = task
            .saved_steps
            .map(|_| self.ledger.directory.adapter(&task.config.name, "last"));
        self.initial.remove(&task.id);
        if self.numbered && matches!(outcome, Outcome::Failed { .. }) {
            self.carried.insert(task.id, task.config.name.clone());
        }
        self.saving.ask();
        // Whoever was not asked at its end has answered nothing that can be compared.
        let samples = match outcome {
            Outcome::Done | Outcome::Stopped { .. } => task.samples,
            _ => Vec::new(),
        };
        let report = AdapterReport {
            name: task.config.name,
            outcome,
            steps: task.steps,
            total_steps: task.total_steps,
            first_loss: task.first_loss,
            last_loss: task.last_loss,
            best: task.best,
            directory,
            samples,
        };
        self.ended.insert(task.id, report);
    }
}

use std::{path::PathBuf, sync::Arc};

use batchlora::LearningRates;
use loraloom_config::{AdapterConfig, Preference, PreferenceLoss};
use loraloom_data::{EncodeReport, Encoded, RowOrder, Samples, Warning};
use loraloom_model::PeftLoraConfig;
use loraloom_objective::Sums;
use loraloom_scheduler::TaskId;

use super::{
    cursor::{Cursor, NanoBatch},
    references::References,
    step_rows::estimates_divergence,
};
use crate::{
    AdapterReport, AnswerSample, Best, Outcome, TrainerError,
    adapter::{ModelAdapter, bytes_of},
    checkpoint::{BestRecord, ExactF64, RecordState, TaskRecord},
    error::Result,
};

/// A submitted optimizer step of a task, or a part of it.
#[derive(Debug, Clone)]
pub(crate) struct SubmittedStep {
    pub(crate) task: TaskId,
    /// The task's name.
    pub(crate) name: String,
    /// Step of the task, counted from 1.
    pub(crate) step: usize,
    /// The part of the step.
    pub(crate) part: NanoBatch,
    pub(crate) learning_rate: f64,
    /// Tokens of the part.
    pub(crate) tokens: usize,
    /// Target tokens of the whole step.
    pub(crate) step_target_tokens: usize,
    /// Rows of the whole step.
    pub(crate) step_rows: usize,
    /// Tokens of the whole step.
    pub(crate) step_tokens: usize,
}

/// Location of an unfinished task's adapter.
#[derive(Debug, Clone)]
pub(crate) enum State {
    /// Nowhere: it has not begun.
    Waiting,
    /// In host memory, with its moments.
    Parked(ModelAdapter),
    /// In the stages.
    Running,
}

/// An adapter in training: configuration, data and progress.
#[derive(Debug, Clone)]
pub(crate) struct Task {
    pub(crate) id: TaskId,
    pub(crate) config: AdapterConfig,
    pub(crate) total_steps: usize,
    pub(crate) state: State,
    /// Submitted work.
    pub(crate) submitted: Cursor,
    /// Optimizer steps whose results were read and are finite: those submitted, or a few less.
    pub(crate) steps: usize,
    /// Optimizer steps whose consequences are handled: `steps`, or one less.
    pub(crate) settled: usize,
    /// Number of iterations of a step, from the next step on.
    pub(crate) parts: usize,
    /// Sums of the booked parts of the step under way.
    pub(crate) sums: Sums,
    /// The [revision](loraloom_pipeline::Pipeline::revision) of its group when the step under way began.
    pub(crate) revision: u64,
    pub(crate) first_loss: Option<f64>,
    pub(crate) last_loss: Option<f64>,
    pub(crate) best: Option<Best>,
    /// Number of evaluations since the best one.
    pub(crate) evaluations_without_best: usize,
    pub(crate) saved_steps: Option<usize>,
    pub(crate) samples: Vec<AnswerSample>,
    /// Number of times that its micro-batches were halved because memory ran out.
    pub(crate) halvings: u32,
    /// Its adapter before the first step, until a check has seen all of it change. Without `init_from` it is created
    /// when the task is admitted, since thousands may wait.
    pub(crate) initial: Option<ModelAdapter>,
    /// Names of the tasks that have one start with it, itself among them; none of most.
    pub(crate) clients: Vec<String>,
    /// Shape of its `init_from` directory.
    pub(crate) shape: Option<PeftLoraConfig>,
    /// Seconds that it waited for a place in earlier parts of the run.
    pub(crate) waited: f64,
    pub(crate) data: Arc<TaskData>,
    /// Its loss, if that is a preference.
    pub(crate) preference: Option<PreferenceLoss>,
    /// Known values of its reference.
    pub(crate) references: Arc<References>,
    /// Its reference, if that is not the base model, until all its sequences are known.
    pub(crate) reference: Option<ModelAdapter>,
    /// Its digest.
    pub(crate) reference_digest: Option<String>,
    /// True once those of all its steps are known.
    pub(crate) has_all_references: bool,
    /// True once those of its validation rows are known.
    pub(crate) has_validation_references: bool,
    pub(super) order: RowOrder,
}

/// The rows of a task, and their digest.
#[derive(Debug)]
pub(crate) struct TaskData {
    pub(crate) rows: Encoded,
    pub(crate) digest: String,
    /// Warnings about them.
    pub(crate) warnings: Vec<Warning>,
    /// Known values of the base model as their reference.
    pub(crate) references: Arc<References>,
}

impl Task {
    pub(crate) fn new(id: TaskId, config: AdapterConfig, data: Arc<TaskData>) -> Result<Self> {
        let preference = check_rows(&config, &data.rows.train.samples)?;
        let rows = data.rows.train.samples.rows();
        let order = row_order(&config, rows)?;
        let total_steps = steps_of(&config, &order)?;
        Ok(Self {
            id,
            config,
            total_steps,
            state: State::Waiting,
            submitted: Cursor::default(),
            steps: 0,
            settled: 0,
            parts: 1,
            sums: Sums::default(),
            revision: 0,
            first_loss: None,
            last_loss: None,
            best: None,
            evaluations_without_best: 0,
            saved_steps: None,
            samples: Vec::new(),
            halvings: 0,
            initial: None,
            clients: Vec::new(),
            shape: None,
            waited: 0.0,
            references: data.references.clone(),
            data,
            preference,
            reference: None,
            reference_digest: None,
            has_all_references: false,
            has_validation_references: false,
            order,
        })
    }

    /// Restores its progress from a checkpoint.
    pub(crate) fn restore(&mut self, record: &TaskRecord) {
        self.submitted = Cursor::after(record.step);
        self.steps = record.step;
        self.settled = record.step;
        self.first_loss = record.first_loss.map(|loss| loss.0);
        self.last_loss = record.last_loss.map(|loss| loss.0);
        self.best = record.best.map(Best::from);
        self.evaluations_without_best = record.evaluations_without_best;
        self.saved_steps = record.saved_steps;
        self.samples.clone_from(&record.samples);
        self.halvings = record.halvings;
    }

    /// Its progress, for a checkpoint.
    pub(crate) fn record(&self) -> Result<TaskRecord> {
        if matches!(self.state, State::Waiting) {
            return Ok(self.record_without_steps());
        }
        let shape = self.shape.as_ref();
        Ok(TaskRecord {
            standing: RecordState::Begun,
            step: self.steps,
            first_loss: self.first_loss.map(ExactF64),
            last_loss: self.last_loss.map(ExactF64),
            best: self.best.map(BestRecord::from),
            evaluations_without_best: self.evaluations_without_best,
            saved_steps: self.saved_steps,
            samples: self.samples.clone(),
            has_moved: self.initial.is_none(),
            halvings: self.halvings,
            peft_config: shape.map(PeftLoraConfig::to_json).transpose()?,
            reference: self.reference_digest.clone(),
            ..self.record_without_steps()
        })
    }

    /// Its record as if it had not begun.
    pub(crate) fn record_without_steps(&self) -> TaskRecord {
        TaskRecord {
            data: self.data.digest.clone(),
            ..TaskRecord::queued(&self.config.name, self.total_steps)
        }
    }

    /// Its report. Answers of a task that was not asked at its end have nothing to compare with and are left out.
    pub(crate) fn report(self, outcome: Outcome, directory: Option<PathBuf>) -> AdapterReport {
        let samples = match outcome {
            Outcome::Done | Outcome::Stopped { .. } => self.samples,
            _ => Vec::new(),
        };
        AdapterReport {
            name: self.config.name,
            outcome,
            steps: self.steps,
            total_steps: self.total_steps,
            first_loss: self.first_loss,
            last_loss: self.last_loss,
            best: self.best,
            directory,
            samples,
        }
    }

    /// True if its adapter can be created again from its seed, because it has taken no step.
    pub(crate) fn is_as_made(&self) -> bool {
        let is_computed = self.config.lora.init_lora_weights.is_computed();
        self.steps == 0 && self.config.init_from.is_none() && !is_computed
    }

    /// Keeps a copy of its adapter while it waits, unless that can be created again: on the CPU a copy takes memory
    /// from running tasks.
    pub(crate) fn wait_with(
        &mut self,
        adapter: impl FnOnce() -> Result<ModelAdapter>,
    ) -> Result<()> {
        if self.is_as_made() {
            self.initial = None;
            self.state = State::Waiting;
        } else {
            self.state = State::Parked(adapter()?);
        }
        Ok(())
    }

    /// Bytes of host memory that its adapters take while it waits.
    pub(crate) fn waiting_bytes(&self) -> u64 {
        let parked = match &self.state {
            State::Parked(adapter) => Some(adapter),
            State::Waiting | State::Running => None,
        };
        let adapters = parked
            .into_iter()
            .chain(&self.initial)
            .chain(&self.reference);
        adapters.map(|adapter| bytes_of(adapter)).sum()
    }

    pub(crate) fn is_running(&self) -> bool {
        matches!(self.state, State::Running)
    }

    /// Marks the rows of [`next_rows`](Self::next_rows) as submitted.
    pub(crate) fn submit(&mut self, split: usize) {
        let count = self.microbatches_of(self.submitted.steps(), split);
        self.submitted.advance(count, self.parts);
    }

    /// True if it took a step since the last call.
    pub(crate) fn settle(&mut self) -> bool {
        std::mem::replace(&mut self.settled, self.steps) != self.steps
    }

    /// Records an evaluation. Returns the reason if the task ends early.
    pub(crate) fn evaluated(&mut self, best: bool) -> Option<String> {
        if best {
            self.evaluations_without_best = 0;
            return None;
        }
        // An evaluation for a sweep does not count for patience.
        if !self.evaluates_after(self.steps) {
            return None;
        }
        self.evaluations_without_best += 1;
        let (without, patience) = (self.evaluations_without_best, self.config.eval.patience);
        let impatient = patience.is_some_and(|patience| without >= patience);
        impatient.then(|| format!("{without} evaluations without a new best"))
    }

    /// Restarts the step under way, whose gradients on the device are lost.
    pub(crate) fn restart_step(&mut self) {
        self.submitted.restart_step();
        self.sums = Sums::default();
    }

    pub(crate) fn train_report(&self) -> &EncodeReport {
        &self.data.rows.train.report
    }

    /// Most rows of a batch before it is cut: no step has more rows than there are.
    pub(crate) fn batch_rows(&self) -> usize {
        let asked = self.config.train.batch_size;
        asked.min(self.order.rows_per_step())
    }

    /// Most rows of a micro-batch, if batches are cut into `split`.
    pub(crate) fn microbatch_rows(&self, split: usize) -> usize {
        if self.has_whole_batches() {
            return self.batch_rows();
        }
        self.batch_rows().div_ceil(split << self.halvings)
    }

    /// Most samples of a micro-batch.
    pub(crate) fn microbatch_samples(&self, split: usize) -> usize {
        let rows = self.microbatch_rows(split) * self.train_rows().per_row();
        if estimates_divergence(self.preference.as_ref()) {
            return 2 * rows;
        }
        rows
    }

    /// True if its micro-batches can be smaller.
    pub(crate) fn can_halve(&self, split: usize) -> bool {
        self.microbatch_rows(split) > 1 && !self.has_whole_batches()
    }

    /// True if its loss is over a batch as a whole, which therefore is one micro-batch.
    fn has_whole_batches(&self) -> bool {
        let contrasts = self.config.objective.contrast().is_some();
        contrasts || estimates_divergence(self.preference.as_ref())
    }

    /// Steps of an epoch.
    pub(crate) fn steps_per_epoch(&self) -> usize {
        self.order.steps_per_epoch()
    }

    /// Most micro-batches of a step.
    pub(crate) fn microbatches_per_step(&self, split: usize) -> usize {
        // The first step is the longest.
        self.microbatches_of(0, split)
    }

    /// Micro-batches of a step, counted from 0.
    pub(crate) fn microbatches_of(&self, step: usize, split: usize) -> usize {
        let (rows, batch) = (self.order.num_rows(step), self.batch_rows());
        let of = |rows: usize| rows.div_ceil(self.microbatch_rows(split));
        rows / batch * of(batch) + of(rows % batch)
    }

    /// Most micro-batches of an iteration from now on.
    pub(crate) fn microbatches_per_iteration(&self, split: usize) -> usize {
        self.submitted
            .largest_share(self.microbatches_per_step(split), self.parts)
    }

    pub(crate) fn validation_rows(&self) -> Option<&Samples> {
        let rows = self.data.rows.validation.as_ref();
        rows.map(|rows| &rows.samples)
    }

    pub(crate) fn train_rows(&self) -> &Samples {
        &self.data.rows.train.samples
    }

    /// Rows to show answers for: validation rows if there are any.
    pub(crate) fn sample_rows(&self) -> &Samples {
        self.validation_rows().unwrap_or(self.train_rows())
    }

    /// Learning rate of the next step.
    pub(crate) fn learning_rate(&self) -> f64 {
        let train = &self.config.train;
        train.learning_rate_at(self.submitted.steps(), self.total_steps)
    }

    /// Learning rates of the next step, with LoRA+ those of PEFT's `create_loraplus_optimizer`.
    pub(crate) fn learning_rates(&self) -> LearningRates {
        let (train, rate) = (&self.config.train, self.learning_rate());
        let Some(ratio) = train.loraplus_lr_ratio else {
            return rate.into();
        };
        let factor = train.lr_factor(self.submitted.steps(), self.total_steps);
        LearningRates {
            a: rate,
            b: rate * ratio,
            embedding: train.loraplus_lr_embedding() * factor,
        }
    }

    /// True if its learning rate still rises.
    pub(crate) fn warms_up(&self) -> bool {
        let rate = |step| {
            let train = &self.config.train;
            train.learning_rate_at(step, self.total_steps)
        };
        self.steps > 0 && rate(self.steps) > rate(self.steps - 1)
    }

    /// True if `step`, counted from 1, is the last one.
    pub(crate) fn ends_after(&self, step: usize) -> bool {
        step == self.total_steps
    }

    /// True if the task is evaluated after `step`, counted from 1.
    pub(crate) fn evaluates_after(&self, step: usize) -> bool {
        let due = self.ends_after(step) || step.is_multiple_of(self.config.eval.steps);
        due && self.data.rows.validation.is_some()
    }

    /// True if the task is saved after `step`, counted from 1.
    pub(crate) fn saves_after(&self, step: usize) -> bool {
        self.ends_after(step) || step.is_multiple_of(self.config.save.steps)
    }

    /// True if its adapter is checked after this many steps to have changed in both factors: after two with a
    /// learning rate above zero, then at growing intervals while these were too small to tell.
    pub(crate) fn is_checked_after(&self, steps: usize) -> bool {
        let train = &self.config.train;
        let moves = |&step: &usize| train.learning_rate_at(step, self.total_steps) > 0.0;
        let both_moved = |steps: usize| (0..steps).filter(moves).take(2).count() == 2;
        both_moved(steps) && (steps.is_power_of_two() || !both_moved(steps - 1))
    }
}

fn row_order(config: &AdapterConfig, rows: usize) -> Result<RowOrder> {
    let train = &config.train;
    let rows_per_step = train.batch_size * train.gradient_accumulation_steps;
    let order = RowOrder::new(rows, rows_per_step, train.shuffle, config.seed)?;
    Ok(order)
}

/// Optimizer steps of an adapter over rows.
///
/// # Errors
/// If there are no rows, they are not those of its objective, or the configured epochs are too short for a step.
pub fn total_steps(config: &AdapterConfig, rows: &Samples) -> Result<usize> {
    check_rows(config, rows)?;
    steps_of(config, &row_order(config, rows.rows())?)
}

/// Returns an adapter's loss, if it is a preference.
///
/// # Errors
/// [`TrainerError::OtherRows`] if rows do not have the completions that its objective needs.
fn check_rows(config: &AdapterConfig, rows: &Samples) -> Result<Option<PreferenceLoss>> {
    let preference = config.objective.loss();
    let preference = preference.map_err(|(key, problem)| TrainerError::Objective {
        adapter: config.name.clone(),
        key,
        problem,
    })?;
    let is_rated = !rows.is_empty() && rows.get(0)?.preferred.is_some();
    let found = match rows.per_row() {
        2 if is_rated => Some(Preference::Pairs),
        2 => Some(Preference::Paraphrases),
        _ => is_rated.then_some(Preference::Rated),
    };
    let needed = config.objective.needs();
    if found == needed {
        return Ok(preference);
    }
    Err(TrainerError::OtherRows {
        adapter: config.name.clone(),
        objective: config.objective.r#type.name(),
        needed,
        dataset: config.dataset.clone(),
        found,
    })
}

fn steps_of(config: &AdapterConfig, order: &RowOrder) -> Result<usize> {
    let train = &config.train;
    let steps = train
        .max_steps
        .unwrap_or_else(|| order.steps_for_epochs(train.num_epochs));
    if steps == 0 {
        return Err(TrainerError::NoSteps {
            adapter: config.name.clone(),
            epochs: train.num_epochs,
        });
    }
    Ok(steps)
}

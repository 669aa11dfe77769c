use std::{
    collections::{BTreeMap, HashMap},
    time::Instant,
};

use loraloom_config::RunConfig;
use loraloom_data::Tokenizer;
use loraloom_model::{LlamaConfig, PeftLoraConfig};
use loraloom_pipeline::Stage;
use loraloom_scheduler::{Outcome as TaskOutcome, TaskId};

use crate::{
    AdapterReport, Best, Event, Outcome, TrainerError,
    adapter::{ModelAdapter, to_peft, unmoved},
    answers,
    evaluate::evaluate,
    pending::PendingIteration,
    run_directory::RunDirectory,
    task::TrainingTask,
};

/// A run in progress: the tasks that train, in the order of their slots, and everything they share.
pub(crate) struct Session<'a> {
    pub(crate) config: &'a RunConfig,
    pub(crate) model: &'a LlamaConfig,
    pub(crate) tokenizer: &'a Tokenizer,
    pub(crate) stage: Stage,
    pub(crate) directory: RunDirectory,
    pub(crate) observer: &'a mut dyn FnMut(&Event),
    /// Adapters before their first step; kept until they are seen to have moved.
    pub(crate) initial: HashMap<TaskId, ModelAdapter>,
    /// Shapes of adapters that began from a PEFT directory.
    pub(crate) shapes: HashMap<TaskId, PeftLoraConfig>,
    pub(crate) waiting: BTreeMap<TaskId, TrainingTask>,
    /// The running tasks; a task's index is its slot.
    pub(crate) running: Vec<TrainingTask>,
    pub(crate) ended: BTreeMap<TaskId, AdapterReport>,
    /// Iterations submitted.
    pub(crate) iteration: u64,
    /// The iteration under way: its results are read while the next one is computed.
    pub(crate) pending: Option<PendingIteration>,
    /// When the results of the last booked iteration were there.
    pub(crate) arrived: Option<Instant>,
    pub(crate) tokens: u64,
}

impl Session<'_> {
    /// Writes an event and shows it.
    pub(crate) fn emit(&mut self, event: Event) -> Result<(), TrainerError> {
        self.directory.append(&event)?;
        (self.observer)(&event);
        Ok(())
    }

    /// Puts a waiting task's adapter into the next slot.
    pub(crate) fn admit(&mut self, id: TaskId, reason: String) -> Result<(), TrainerError> {
        let Some(mut task) = self.waiting.remove(&id) else {
            return Ok(());
        };
        let slot = self.stage.push(self.initial[&id].clone())?;
        debug_assert_eq!(slot, self.running.len());
        task.samples = answers::before(&self.stage, self.model, self.tokenizer, &task, slot)?;
        let (adapter, total_steps) = (task.config.name.clone(), task.total_steps);
        self.running.push(task);
        self.emit(Event::Admit {
            adapter,
            total_steps,
            reason,
        })
    }

    /// Liveness, evaluation, saving and the end of a task that took a step.
    pub(crate) fn after_step(
        &mut self,
        slot: usize,
    ) -> Result<Option<(TaskId, TaskOutcome)>, TrainerError> {
        if let Some(reason) = self.unmoved(slot)? {
            return self.fail(slot, reason).map(Some);
        }
        let task = &self.running[slot];
        let (step, last) = (task.steps, task.ends_after(task.steps));
        let mut out_of_patience = false;
        if task.evaluates_after(step) {
            out_of_patience = self.evaluate(slot)?;
        }
        let ends = last || out_of_patience;
        if ends || self.running[slot].saves_after(step) {
            self.save(slot, "last")?;
        }
        if !ends {
            return Ok(None);
        }
        let task = &self.running[slot];
        let samples = answers::after(&self.stage, self.model, self.tokenizer, task, slot)?;
        self.running[slot].samples = samples;
        let reason = if last {
            "took all its steps".to_owned()
        } else {
            format!(
                "{} evaluations without a new best",
                self.running[slot].evaluations_without_best
            )
        };
        self.stage.remove(slot)?;
        let task = self.running.remove(slot);
        let (id, step, adapter) = (task.id, task.steps, task.config.name.clone());
        self.conclude(task, Outcome::Done);
        self.emit(Event::AdapterDone {
            adapter,
            step,
            reason,
        })?;
        Ok(Some((id, TaskOutcome::Done)))
    }

    /// Once two steps with a learning rate above zero were taken, every A and B must have moved.
    fn unmoved(&mut self, slot: usize) -> Result<Option<String>, TrainerError> {
        let task = &self.running[slot];
        let Some(before) = self.initial.get(&task.id) else {
            return Ok(None);
        };
        if !task.must_have_moved_after(task.steps) {
            return Ok(None);
        }
        let unmoved = unmoved(before, &self.stage.extract(slot)?)?;
        self.initial.remove(&task.id);
        Ok((!unmoved.is_empty()).then(|| {
            let more = unmoved.len().saturating_sub(3);
            let more = if more > 0 {
                format!(" and {more} more")
            } else {
                String::new()
            };
            let named = unmoved.into_iter().take(3).collect::<Vec<_>>().join(", ");
            format!("no training reaches {named}{more}")
        }))
    }

    /// Evaluates a task that has validation rows; whether its patience has run out.
    fn evaluate(&mut self, slot: usize) -> Result<bool, TrainerError> {
        let task = &self.running[slot];
        let Some(rows) = task.validation_rows() else {
            return Ok(false);
        };
        let train = &task.config.train;
        let loss = evaluate(
            &self.stage,
            self.model,
            rows,
            slot,
            (train.batch_size, train.max_seq_len),
        )?;
        // A loss that is not finite is never the best.
        let best = loss.is_finite() && task.best.is_none_or(|best| loss < best.loss);
        let (adapter, step) = (task.config.name.clone(), task.steps);
        let loss_value = loss.is_finite().then_some(loss);
        self.emit(Event::Eval {
            adapter,
            step,
            loss: loss_value,
            best,
        })?;
        let task = &mut self.running[slot];
        if best {
            task.best = Some(Best { step, loss });
            task.evaluations_without_best = 0;
            self.save(slot, "best")?;
            return Ok(false);
        }
        task.evaluations_without_best += 1;
        let patience = task.config.eval.patience;
        Ok(patience.is_some_and(|patience| task.evaluations_without_best >= patience))
    }

    fn save(&mut self, slot: usize, which: &str) -> Result<(), TrainerError> {
        let task = &self.running[slot];
        let states = self.stage.extract(slot)?;
        let shape = self.shapes.get(&task.id);
        let path = self.directory.adapter(&task.config.name, which);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(|source| TrainerError::Write {
                path: parent.to_owned(),
                source,
            })?;
        }
        to_peft(self.config, &task.config, shape, &states)?.save(&path)?;
        let (adapter, step) = (task.config.name.clone(), task.steps);
        let path = self.directory.relative(&path);
        if which == "last" {
            self.running[slot].saved_steps = Some(step);
        }
        self.emit(Event::Checkpoint {
            adapter,
            step,
            path,
        })
    }

    /// Ends a task that cannot go on. What it saved before stays as it is.
    pub(crate) fn fail(
        &mut self,
        slot: usize,
        reason: String,
    ) -> Result<(TaskId, TaskOutcome), TrainerError> {
        self.stage.remove(slot)?;
        let task = self.running.remove(slot);
        let (id, step, adapter) = (task.id, task.steps + 1, task.config.name.clone());
        self.conclude(
            task,
            Outcome::Failed {
                reason: reason.clone(),
            },
        );
        self.emit(Event::AdapterFailed {
            adapter,
            step,
            reason,
        })?;
        Ok((id, TaskOutcome::Failed))
    }

    /// Settles the iteration under way, saves every running adapter and ends its task.
    pub(crate) fn interrupt(&mut self) -> Result<(), TrainerError> {
        self.settle()?;
        for slot in 0..self.running.len() {
            if self.running[slot].saved_steps != Some(self.running[slot].steps) {
                self.save(slot, "last")?;
            }
        }
        for task in std::mem::take(&mut self.running) {
            self.conclude(task, Outcome::Interrupted);
        }
        Ok(())
    }

    /// Reports tasks that never began.
    pub(crate) fn report_waiting(&mut self) {
        for task in std::mem::take(&mut self.waiting).into_values() {
            self.conclude(task, Outcome::Interrupted);
        }
    }

    fn conclude(&mut self, task: TrainingTask, outcome: Outcome) {
        let directory = task
            .saved_steps
            .map(|_| self.directory.adapter(&task.config.name, "last"));
        self.initial.remove(&task.id);
        let report = AdapterReport {
            name: task.config.name,
            outcome,
            steps: task.steps,
            total_steps: task.total_steps,
            first_loss: task.first_loss,
            last_loss: task.last_loss,
            best: task.best,
            directory,
            samples: task.samples,
        };
        self.ended.insert(task.id, report);
    }
}

//! One iteration of a run: a step of every running task is submitted, the step before it is booked.

use loraloom_scheduler::{Outcome as TaskOutcome, TaskId};

use crate::{
    Event, TrainerError,
    pending::{PendingIteration, StepOutcome, SubmittedStep},
    readback::Arrival,
    session::Session,
};

impl Session<'_> {
    /// Submits one optimizer step of every running task and books the iteration before it. If
    /// something follows from the new step itself, it is settled at once. Returns the tasks that
    /// ended.
    pub(crate) fn iterate(&mut self) -> Result<Vec<(TaskId, TaskOutcome)>, TrainerError> {
        let submitted = self.submit()?;
        let mut ended = match self.pending.replace(submitted) {
            Some(before) => self.book(before)?,
            None => Vec::new(),
        };
        // With a task less, what comes next is another batch: nothing may be under way then.
        if !ended.is_empty() || self.something_follows() {
            ended.extend(self.settle()?);
        }
        Ok(ended)
    }

    /// Whether the submitted steps end, evaluate, save or check a task.
    fn something_follows(&self) -> bool {
        self.running.iter().any(|task| {
            let step = task.submitted;
            let checked = self.initial.contains_key(&task.id) && task.must_have_moved_after(step);
            checked || task.evaluates_after(step) || task.saves_after(step)
        })
    }

    /// Waits for the iteration under way, books it and does what follows from it. Returns the
    /// tasks that ended.
    pub(crate) fn settle(&mut self) -> Result<Vec<(TaskId, TaskOutcome)>, TrainerError> {
        let Some(pending) = self.pending.take() else {
            return Ok(Vec::new());
        };
        let mut ended = self.book(pending)?;
        let failed = ended.len();
        // From the last slot on, so that removing one does not move those still to come.
        for slot in (0..self.running.len()).rev() {
            ended.extend(self.after_step(slot)?);
        }
        ended[failed..].reverse();
        Ok(ended)
    }

    /// Waits for an iteration's results and writes them down. Returns the tasks that failed in it.
    fn book(
        &mut self,
        pending: PendingIteration,
    ) -> Result<Vec<(TaskId, TaskOutcome)>, TrainerError> {
        let (iteration, begun) = (pending.number, pending.begun);
        let Arrival { values, at } = pending.wait()?;
        let since = self.arrived.map_or(begun, |before| before.max(begun));
        self.arrived = Some(at);
        let seconds = at.saturating_duration_since(since).as_secs_f64();
        let tokens = values.iter().map(|(step, _)| step.tokens).sum();
        self.tokens += tokens as u64;
        let names = values.iter().map(|(step, _)| step.name.clone()).collect();

        let mut failures = Vec::new();
        for (step, outcome) in values {
            // A task that failed a step earlier is gone; this step of it never counts.
            let slot = self.running.iter().position(|task| task.id == step.task);
            let Some(slot) = slot else { continue };
            if let Some(reason) = self.record(iteration, slot, step, outcome)? {
                failures.push((slot, reason));
            }
        }
        self.emit(Event::Iteration {
            iteration,
            seconds,
            tokens,
            tokens_per_second: tokens as f64 / seconds,
            bubble_ratio: 0.0,
            bytes_reserved: self
                .stage
                .device()
                .memory_pool_usage()
                .map(|u| u.bytes_reserved),
            groups: vec![names],
        })?;

        // From the last slot on, as above.
        let mut ended = Vec::new();
        for (slot, reason) in failures.into_iter().rev() {
            ended.push(self.fail(slot, reason)?);
        }
        ended.reverse();
        Ok(ended)
    }

    /// Books a task's step; a reason if the task cannot go on.
    fn record(
        &mut self,
        iteration: u64,
        slot: usize,
        submitted: SubmittedStep,
        outcome: StepOutcome,
    ) -> Result<Option<String>, TrainerError> {
        let StepOutcome { loss, grad_norm } = outcome;
        let SubmittedStep {
            name,
            step,
            learning_rate,
            target_tokens,
            tokens,
            ..
        } = submitted;
        if !loss.is_finite() || !grad_norm.is_finite() {
            return Ok(Some(format!(
                "step {step}: loss {loss}, gradient norm {grad_norm} at a learning rate of \
                 {learning_rate}"
            )));
        }
        let task = &mut self.running[slot];
        task.steps = step;
        task.first_loss.get_or_insert(loss);
        task.last_loss = Some(loss);
        let event = Event::Step {
            iteration,
            adapter: name,
            step,
            total_steps: task.total_steps,
            loss,
            target_tokens,
            tokens,
            grad_norm,
            learning_rate,
            group: 0,
        };
        self.emit(event)?;
        Ok(None)
    }
}

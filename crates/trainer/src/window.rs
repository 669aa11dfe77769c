//! Iterations of a run between two moments at which something follows from a step.

use std::{collections::BTreeMap, time::Instant};

use loraloom_pipeline::executor::{StepOutcome, StepPlan, Steps};
use loraloom_scheduler::{MeasuredIteration, MeasuredTask, TaskId, Work};

use crate::{
    Event, Signals, TrainerError, diagnosis,
    ledger::Ledger,
    pending::{StepResult, SubmittedIteration, SubmittedStep},
    saving::Saving,
    scheduling::measured as measure,
};

/// The ledger while the stages work: it plans steps ahead and books them as they end.
pub(crate) struct Window<'s, 'a> {
    pub(crate) ledger: &'s mut Ledger<'a>,
    pub(crate) saving: &'s mut Saving,
    pub(crate) signals: Signals<'s>,
    /// When the copy of the running tasks is to be made again.
    pub(crate) renew: Option<Instant>,
}

impl Steps for Window<'_, '_> {
    type Error = TrainerError;

    /// The first step is always taken: whoever asked for a window means it.
    fn plan(&mut self, step: usize) -> Result<Option<StepPlan>, TrainerError> {
        let begun = Instant::now();
        let renews = self.renew.is_some_and(|renew| begun >= renew);
        if step > 0 && (renews || self.signals.any() || !self.ledger.directory.is_there()) {
            return Ok(None);
        }
        let ledger = &mut *self.ledger;
        let (plan, groups) = ledger.plan_step()?;
        ledger.iteration += 1;
        let split = ledger.config.pipeline.microbatches;
        for task in &mut ledger.running {
            task.submit(split);
        }
        ledger.pending.push_back(SubmittedIteration {
            number: ledger.iteration,
            begun,
            groups,
        });
        Ok(Some(plan))
    }

    fn book(&mut self, outcome: StepOutcome) -> Result<bool, TrainerError> {
        self.ledger.book(&outcome);
        self.saving.poll(self.ledger);
        Ok(self.ledger.failures.is_empty())
    }
}

impl Ledger<'_> {
    /// Writes the results of the first iteration under way down.
    fn book(&mut self, outcome: &StepOutcome) {
        let Some(submitted) = self.pending.pop_front() else {
            return;
        };
        let iteration = submitted.number;
        let begun = submitted.begun;
        let since = self.arrived.map_or(begun, |before| before.max(begun));
        self.arrived = Some(outcome.at);
        let seconds = outcome.at.saturating_duration_since(since).as_secs_f64();
        let steps = submitted.groups.iter().flat_map(|group| &group.steps);
        let tokens = steps.map(|step| step.tokens).sum();
        self.tokens += tokens as u64;
        let bubble_ratio = bubble_ratio(&outcome.busy, seconds);
        let mut measured = MeasuredIteration {
            tasks: Vec::new(),
            work: Work::default(),
            seconds: seconds * (1.0 - bubble_ratio.unwrap_or(0.0)),
            load: submitted.groups.iter().map(|group| group.load).sum(),
            memory: self
                .devices
                .iter()
                .map(|device| measure(device, outcome.host_peak_bytes))
                .collect(),
        };
        let mut names = Vec::with_capacity(submitted.groups.len());
        let mut parts = BTreeMap::new();
        for (index, group) in submitted.groups.into_iter().enumerate() {
            let steps = group.steps.iter();
            names.push(steps.map(|step| step.name.clone()).collect());
            measured.work += group.work;
            let before = group.steps.iter().map(|step| self.loss_sum(step.task));
            let results = group.results(&outcome.groups[index], before.collect());
            for (step, result) in group.steps.into_iter().zip(results) {
                measured.tasks.push(MeasuredTask {
                    task: step.task,
                    steps: usize::from(step.part.ends_step()),
                    tokens: step.tokens as u64,
                });
                if step.part.of > 1 {
                    parts.insert(step.name.clone(), [step.part.number, step.part.of]);
                }
                self.record(iteration, index, step, result);
            }
        }
        self.measured.push(measured);
        self.emit(Event::Iteration {
            iteration,
            seconds,
            tokens,
            tokens_per_second: tokens as f64 / seconds,
            bubble_ratio,
            transfer_seconds: outcome.transfers.map(|transfers| transfers.seconds),
            transfer_overlap: outcome.transfers.and_then(|transfers| transfers.overlap()),
            bytes_reserved: self.bytes_reserved().or(outcome.host_peak_bytes),
            bytes_predicted: self.bytes_predicted,
            groups: names,
            parts,
        });
    }

    /// What is known of the token losses of the step that a task is in.
    fn loss_sum(&self, task: TaskId) -> f64 {
        let index = self.index_of(task);
        index.map_or(0.0, |index| self.running[index].loss_sum)
    }

    /// Books a task's step, or a part of it. A task that failed a step earlier is as good as gone: this
    /// step of it never counts.
    fn record(
        &mut self,
        iteration: u64,
        group: usize,
        submitted: SubmittedStep,
        result: StepResult,
    ) {
        let StepResult {
            loss_sum,
            grad_norm,
        } = result;
        let SubmittedStep {
            task: id,
            name,
            step,
            part,
            learning_rate,
            tokens: _,
            step_target_tokens: target_tokens,
            step_tokens: tokens,
        } = submitted;
        if self.failures.iter().any(|(failed, _)| *failed == id) {
            return;
        }
        // The norm of a part of a gradient says nothing of the whole.
        if !part.ends_step() && loss_sum.is_finite() {
            if let Some(task) = self.running.iter_mut().find(|task| task.id == id) {
                task.loss_sum = loss_sum;
            }
            return;
        }
        let Some(task) = self.running.iter_mut().find(|task| task.id == id) else {
            return;
        };
        let loss = loss_sum / target_tokens as f64;
        if !loss.is_finite() || !grad_norm.is_finite() {
            let reason = diagnosis::not_finite(task, loss, grad_norm, learning_rate);
            self.failures.push((id, reason));
            return;
        }
        task.steps = step;
        task.loss_sum = 0.0;
        task.first_loss.get_or_insert(loss);
        task.last_loss = Some(loss);
        let total_steps = task.total_steps;
        self.emit(Event::Step {
            iteration,
            adapter: name,
            step,
            total_steps,
            loss,
            target_tokens,
            tokens,
            grad_norm,
            learning_rate,
            group,
        });
    }
}

/// Mean share of an iteration that stages did not work, from the seconds that each spent on it. One
/// stage never waits for another; of a device that works on its own nothing is known.
fn bubble_ratio(busy: &[Option<f64>], seconds: f64) -> Option<f64> {
    if busy.len() == 1 {
        return Some(0.0);
    }
    let busy: f64 = busy.iter().copied().sum::<Option<f64>>()? / busy.len() as f64;
    Some((1.0 - busy / seconds).clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::bubble_ratio;

    #[test]
    fn stages_that_wait_leave_a_bubble() {
        let found = bubble_ratio(&[Some(1.0), Some(3.0)], 4.0);
        assert!(found.is_some_and(|ratio| (ratio - 0.5).abs() < 1e-12));
        assert_eq!(bubble_ratio(&[None], 1.0), Some(0.0));
        assert_eq!(bubble_ratio(&[Some(1.0), None], 1.0), None);
        // Steps overlap: work of one iteration may have been done in the time of another.
        assert_eq!(bubble_ratio(&[Some(3.0), Some(3.0)], 2.0), Some(0.0));
    }
}

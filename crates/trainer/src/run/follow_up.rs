//! Checks, evaluates, saves and ends a task after a step.

use std::collections::BTreeMap;

use loraloom_config::StoppingMetric;
use loraloom_scheduler::{TaskId, TaskOutcome};

use super::{
    preference::evaluate_preference,
    session::{Ended, Session},
};
use crate::{
    Best, Event, Outcome, Rewards,
    batch::evaluate,
    error::Result,
    tasks::{Liveness, Task, liveness},
};

impl Session<'_> {
    /// Checks and evaluates a task that took a step, and adds it to `stepped`, with the reason if it ends early.
    pub(super) fn look_at_step(
        &mut self,
        id: TaskId,
        stepped: &mut BTreeMap<TaskId, Option<String>>,
    ) -> Result<Option<Ended>> {
        if !self.placed.tasks.get_mut(id).is_some_and(Task::settle) {
            return Ok(None);
        }
        if let Some(reason) = self.unchanged(id)? {
            let (task, _) = self.placed.running(id)?;
            let step = task.steps;
            return self.fail(id, step, Outcome::failed(reason)).map(Some);
        }
        let (task, _) = self.placed.running(id)?;
        let (step, loss) = (task.steps, task.last_loss);
        // Otherwise a sweep would compare adapters only at the next evaluation, which may be at their end.
        let compared = self.trials.compares_after(id, step);
        let compared = compared.is_some_and(StoppingMetric::is_evaluated);
        let early = if task.evaluates_after(step) || compared {
            self.evaluate(id)?
        } else {
            None
        };
        let diverged = loss.and_then(|loss| self.trials.trained(id, step, loss));
        stepped.insert(id, early.or(diverged));
        Ok(None)
    }

    /// Checks that every A and B has changed or has a gradient, once two steps had a learning rate above zero.
    /// Returns the reason if not.
    fn unchanged(&mut self, id: TaskId) -> Result<Option<String>> {
        let (task, place) = self.placed.running(id)?;
        let is_due = |_: &_| task.is_checked_after(task.steps);
        let Some(before) = task.initial.as_ref().filter(is_due) else {
            return Ok(None);
        };
        let now = self.placed.pipeline.extract(place.group, place.slot)?;
        let liveness = liveness(task, before, &now)?;
        if liveness != Liveness::Unknown
            && let Some(task) = self.placed.tasks.get_mut(id)
        {
            task.initial = None;
        }
        Ok(match liveness {
            Liveness::Unchanged(reason) => Some(reason),
            Liveness::Changed | Liveness::Unknown => None,
        })
    }

    /// Evaluates a task that has validation rows. Returns the reason if it ends early.
    fn evaluate(&mut self, id: TaskId) -> Result<Option<String>> {
        let (task, place) = self.placed.running(id)?;
        let Some(rows) = task.validation_rows() else {
            return Ok(None);
        };
        let (pipeline, slots) = (&self.placed.pipeline, &[Some(place.slot)]);
        // Evaluation needs no more memory than training.
        let at_once = task.microbatch_samples(self.config.pipeline.microbatches);
        let (loss, rewards) = match &task.preference {
            None => {
                let (smoothing, at) = (
                    task.config.train.label_smoothing_factor,
                    (place.group, &slots[..]),
                );
                let scores = evaluate(pipeline, rows, at, at_once, smoothing, &mut |_| {})?;
                (scores[0].loss(), None)
            }
            Some(loss) => {
                let at_once = task.microbatch_rows(self.config.pipeline.microbatches);
                let at = (place.group, place.slot);
                let sums = evaluate_preference(pipeline, task, loss, at_once, at)?;
                (sums.loss / sums.rows as f64, Some(Rewards::new(&sums)))
            }
        };
        // A loss that is not finite is never the best.
        let best = loss.is_finite() && task.best.is_none_or(|best| loss < best.loss);
        let step = task.steps;
        self.log.emit(Event::Eval {
            adapter: task.config.name.clone(),
            step,
            loss: loss.is_finite().then_some(loss),
            best,
            rewards,
        });
        self.trials.evaluated(id, step, loss, rewards);
        if best {
            let best = Best {
                step,
                loss,
                margins: rewards.and_then(|rewards| rewards.margins),
                accuracies: rewards.and_then(|rewards| rewards.accuracies),
            };
            self.moment().save_best(id, best)?;
        }
        let task = self.placed.tasks.get_mut(id);
        Ok(task.and_then(|task| task.evaluated(best)))
    }

    /// Saves a task that took a step if a save is due, as at its end. In that case returns whether it was saved.
    pub(super) fn save(&mut self, id: TaskId, early: bool) -> Result<Option<bool>> {
        let (task, _) = self.placed.running(id)?;
        let (ends, saves) = (task.ends_after(task.steps), task.saves_after(task.steps));
        if early || ends {
            return self.moment().save_now(id).map(Some);
        }
        if saves {
            self.moment().save_last(id)?;
        }
        Ok(None)
    }

    /// Ends a task whose steps since the last checkpoint are repeated when the run is resumed.
    pub(super) fn fail_unsaved(&mut self, id: TaskId) -> Result<Ended> {
        let (task, _) = self.placed.running(id)?;
        let step = task.steps;
        self.placed.tasks.held.insert(id);
        let unsaved = Outcome::failed("its weights could not be saved");
        self.fail(id, step, unsaved)
    }

    /// Ends a saved task, after its last step or early for a reason.
    pub(super) fn finish(&mut self, id: TaskId, early: Option<String>) -> Result<Ended> {
        let (task, _) = self.placed.running(id)?;
        let last = task.ends_after(task.steps);
        let (outcome, reason) = match early.filter(|_| !last) {
            None => (Outcome::Done, "took all its steps".to_owned()),
            Some(reason) => {
                let stopped = Outcome::Stopped {
                    reason: reason.clone(),
                };
                (stopped, reason)
            }
        };
        if let Some((adapter, step)) = self.end_task(id, outcome)? {
            self.log.emit(Event::AdapterDone {
                adapter,
                step,
                reason,
            });
        }
        Ok((id, TaskOutcome::Done))
    }

    /// Ends a task that fails at a step; its earlier saves stay. One that does not fit is tried again when the run is
    /// resumed, since there may be more memory then.
    pub(super) fn fail(&mut self, id: TaskId, step: usize, outcome: Outcome) -> Result<Ended> {
        let does_not_fit = matches!(
            outcome,
            Outcome::Failed {
                does_not_fit: true,
                ..
            }
        );
        if does_not_fit && !self.numbered {
            self.placed.tasks.held.insert(id);
        }
        if let Some((adapter, _)) = self.end_task(id, outcome.clone())?
            && let Outcome::Failed { reason, .. } = outcome
        {
            self.log.emit(Event::AdapterFailed {
                adapter,
                step,
                reason,
            });
        }
        Ok((id, TaskOutcome::Failed))
    }

    /// Cancels a task, whether it runs or waits. Returns whether it existed.
    pub(super) fn cancel(&mut self, id: TaskId) -> Result<bool> {
        let Some((adapter, step)) = self.end_task(id, Outcome::Cancelled)? else {
            return Ok(false);
        };
        self.log.emit(Event::AdapterCancelled { adapter, step });
        Ok(true)
    }

    /// Removes a task and keeps its report. Returns its name and steps.
    pub(super) fn end_task(
        &mut self,
        id: TaskId,
        outcome: Outcome,
    ) -> Result<Option<(String, usize)>> {
        let Some(task) = self.placed.remove(id)? else {
            return Ok(None);
        };
        let ended = (task.config.name.clone(), task.steps);
        self.conclude(task, outcome);
        Ok(Some(ended))
    }

    /// Keeps the report of a task that was removed.
    pub(super) fn conclude(&mut self, mut task: Task, outcome: Outcome) {
        // The writer may still be writing this task.
        self.saver.wait_for(&mut task, &mut self.log);
        self.saver.ask();
        let (id, name) = (task.id, &task.config.name);
        if self.numbered && matches!(outcome, Outcome::Failed { .. }) && !task.is_as_made() {
            self.placed.tasks.carried.insert(id, name.clone());
        }
        let directory = self.log.directory.adapter(name, "last");
        let directory = task.saved_steps.map(|_| directory);
        let report = task.report(outcome, directory);
        self.placed.tasks.ended.insert(id, report);
    }
}

use std::{collections::BTreeMap, time::Instant};

use loraloom_pipeline::{
    executor::{IterationOutcome, IterationPlan, IterationPlanner, Passes},
    schedule::PipelineShape,
};
use loraloom_scheduler::TaskId;

use super::{
    Signals,
    iterations::Iterations,
    session::{Ended, Session},
};
use crate::{
    Outcome, TrainerError,
    error::Result,
    events::EventLog,
    iteration::{SubmittedIteration, plan_iteration},
    save::Saver,
    tasks::{Task, Tasks},
};

/// Most iterations without a pause.
const LONGEST_WINDOW: usize = 256;

/// Iterations between two moments at which a step has consequences: they are planned ahead and booked as they end.
struct Window<'s, 'a> {
    tasks: &'s mut Tasks,
    iterations: &'s mut Iterations,
    log: &'s mut EventLog<'a>,
    saver: &'s mut Saver<'a>,
    signals: Signals<'s>,
    /// Number of micro-batches of a batch.
    split: usize,
    /// When the snapshot of the running tasks is renewed.
    renew: Option<Instant>,
}

impl IterationPlanner for Window<'_, '_> {
    type Error = TrainerError;

    /// The first iteration always runs, so that a busy source cannot stop progress.
    fn plan(&mut self, iteration: usize) -> Result<Option<IterationPlan>> {
        let begun = Instant::now();
        let renews = self.renew.is_some_and(|renew| begun >= renew);
        if iteration > 0 && (renews || self.signals.any() || !self.log.directory.is_there()) {
            return Ok(None);
        }
        let (plan, groups) = plan_iteration(self.tasks, self.split)?;
        for task in self.tasks.running_mut() {
            task.submit(self.split);
        }
        self.iterations.submitted += 1;
        self.iterations.pending.push_back(SubmittedIteration {
            number: self.iterations.submitted,
            begun,
            groups,
        });
        Ok(Some(plan))
    }

    fn book(&mut self, outcome: IterationOutcome) -> Result<bool> {
        self.iterations.book(&outcome, self.tasks, self.log);
        self.saver.poll(self.log);
        Ok(self.iterations.failures.is_empty())
    }
}

impl Session<'_> {
    /// Trains all running tasks until a step of one has consequences, `most` iterations are run, a signal is set or a
    /// task fails; then handles the consequences. Returns the tasks that ended.
    pub(super) fn train(
        &mut self,
        signals: Signals<'_>,
        most: Option<usize>,
    ) -> Result<Vec<Ended>> {
        let most = most.map_or(LONGEST_WINDOW, |most| most.clamp(1, LONGEST_WINDOW));
        self.placed.restart_lost_steps();
        let most = self.steps_until_something_follows(most);
        self.refer(most)?;
        // The group of an adapter that answered for a while has lost its gradients.
        self.placed.restart_lost_steps();
        self.keep_snapshot()?;
        let pipeline = &self.config.pipeline;
        let split = pipeline.microbatches;
        let tasks = &self.placed.tasks;
        let running = tasks.running();
        let microbatches = running.map(|task| task.microbatches_per_iteration(split));
        let passes = Passes {
            schedule: pipeline.schedule,
            shape: PipelineShape::new(
                self.placed.pipeline.layers().len(),
                tasks.groups().len(),
                microbatches.max().unwrap_or(0),
                self.steps_until_something_follows(most),
            )
            .with_extra_warmup(pipeline.extra_warmup),
        };
        // Passes allocate memory; earlier allocations, and those of waiting tasks, do not count for them.
        let aside = self.placed.tasks.waiting_bytes();
        self.placed.pipeline.limit_memory(self.saver.limit, aside);
        self.iterations.aside_bytes = aside;
        let mut window = Window {
            tasks: &mut self.placed.tasks,
            iterations: &mut self.iterations,
            log: &mut self.log,
            saver: &mut self.saver,
            signals,
            split,
            renew: self.rewind.renew(),
        };
        self.placed.pipeline.run(&passes, &mut window)?;
        // A value that is not finite may be the fault of a worker's device instead of the task.
        if !self.iterations.failures.is_empty()
            && let Some(failure) = self.placed.pipeline.failure()
        {
            return Err(failure.into());
        }

        let mut ended = Vec::new();
        for (id, reason) in std::mem::take(&mut self.iterations.failures) {
            if let Some(step) = self.placed.tasks.get(id).map(|task| task.steps + 1) {
                ended.push(self.fail(id, step, Outcome::failed(reason))?);
            }
        }
        let mut stepped = BTreeMap::new();
        for id in self.placed.tasks.running_ids() {
            ended.extend(self.look_at_step(id, &mut stepped)?);
        }
        for (trial, reason) in self.trials.judge() {
            if let Some(early) = stepped.get_mut(&trial) {
                early.get_or_insert(reason);
            }
        }
        let mut ending = Vec::new();
        for id in self.placed.tasks.running_ids() {
            if let Some(early) = stepped.remove(&id) {
                match self.save(id, early.is_some())? {
                    Some(false) => ended.push(self.fail_unsaved(id)?),
                    Some(true) => ending.push((id, early)),
                    None => {}
                }
            }
        }
        let ids: Vec<TaskId> = ending.iter().map(|(id, _)| *id).collect();
        // These tasks are already saved: a device that fails while they answer must not undo that.
        let (placed, log) = (&mut self.placed, &mut self.log);
        let asked = self.answers.ask_after(placed, log, &ids);
        for (id, early) in ending {
            ended.push(self.finish(id, early)?);
        }
        asked?;
        Ok(ended)
    }

    /// Number of iterations until a task ends or is evaluated, saved or checked, at most `most`.
    fn steps_until_something_follows(&self, most: usize) -> usize {
        let follows = |task: &Task, step| {
            let checked = task.initial.is_some() && task.is_checked_after(step);
            let compared = self.trials.compares_after(task.id, step).is_some();
            let follows = task.evaluates_after(step) || task.saves_after(step);
            let watched = self.trials.watches_losses(task.id);
            checked || compared || watched || follows || task.ends_after(step)
        };
        let split = self.config.pipeline.microbatches;
        let running = self.placed.tasks.running();
        let mut ahead: Vec<_> = running.map(|task| (task, task.submitted)).collect();
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
}

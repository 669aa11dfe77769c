//! Recovery from running out of memory.

use loraloom_scheduler::{OutOfMemory, Room, Scheduler, TaskId, TaskState};

use super::session::{Ended, Session};
use crate::{
    Event, Outcome, TrainerError,
    error::Result,
    tasks::{Snapshot, Task},
};

impl Session<'_> {
    /// Copies the running tasks, unless there is a recent copy.
    pub(super) fn keep_snapshot(&mut self) -> Result<()> {
        let (iteration, tokens) = (self.iterations.submitted, self.iterations.tokens);
        let groups = self.placed.tasks.groups();
        if !self.rewind.serves(groups, iteration) {
            let snapshot = self.placed.snapshot(iteration, tokens)?;
            self.moment().stand_by(&snapshot)?;
            self.rewind.snapshot = Some(snapshot);
        }
        self.rewind.arrivals.clear();
        Ok(())
    }

    /// Recovers after memory ran out: repeats the steps since the last snapshot, without the task that the scheduler
    /// parks, or with smaller micro-batches if only one task runs.
    ///
    /// # Errors
    /// [`TrainerError::DoesNotFit`] if that is impossible: a stage on another machine ran out, or memory runs out
    /// again during the recovery.
    pub(super) fn recover_from_oom<R: Room>(
        &mut self,
        error: TrainerError,
        scheduler: &mut Scheduler<R>,
    ) -> Result<()> {
        let recovered = self.retry_after_oom(error, scheduler);
        recovered.map_err(|error| {
            if error.is_out_of_memory() {
                TrainerError::DoesNotFit(Box::new(error))
            } else {
                error
            }
        })
    }

    fn retry_after_oom<R: Room>(
        &mut self,
        error: TrainerError,
        scheduler: &mut Scheduler<R>,
    ) -> Result<()> {
        if !self.placed.pipeline.abandon() {
            return Err(error);
        }
        let less = scheduler.out_of_memory(self.now());
        if less == OutOfMemory::NobodyRuns {
            return Err(error);
        }
        self.go_back(|task| scheduler.state(task))?;
        let (iteration, reason) = (self.iterations.submitted, error.to_string());
        match less {
            OutOfMemory::Parked(parking) => {
                let parked = self.placed.tasks.get(parking.task);
                let (adapter, step) = parked.map_or_else(Default::default, |task| {
                    (task.config.name.clone(), task.steps)
                });
                self.log.emit(Event::OutOfMemory {
                    iteration,
                    reason,
                    parked: Some(adapter.clone()),
                    microbatch_rows: None,
                });
                self.log.emit(Event::Park {
                    adapter,
                    step,
                    reason: parking.reason,
                    by: None,
                });
                Ok(())
            }
            OutOfMemory::OnlyOne(task) => self.halve(task, scheduler, iteration, reason),
            OutOfMemory::NobodyRuns => Err(error),
        }
    }

    /// Returns to the last snapshot and keeps it, since the next one may fail.
    fn go_back(&mut self, state: impl Fn(TaskId) -> Option<TaskState>) -> Result<()> {
        self.iterations.abandon();
        if let Some(snapshot) = &self.rewind.snapshot {
            let goes_on = |(_, task): (usize, &Task)| state(task.id) == Some(TaskState::Running);
            if snapshot.tasks().any(goes_on) {
                self.iterations.submitted = snapshot.iteration;
                self.iterations.tokens = snapshot.tokens;
            }
        }
        self.placed.restore(&self.rewind, state)
    }

    /// Fails tasks that do not fit although nothing else runs.
    pub(super) fn fail_unplaceable<R: Room>(&mut self, scheduler: &mut Scheduler<R>) -> Result<()> {
        let waits = |task: &&Task| scheduler.state(task.id).is_some_and(TaskState::is_waiting);
        let waiting = self.placed.tasks.waiting().filter(waits);
        for id in waiting.map(|task| task.id).collect::<Vec<_>>() {
            let Some(reason) = scheduler.why(id) else {
                continue;
            };
            let (id, outcome) = self.fail_next(id, Outcome::does_not_fit(reason))?;
            scheduler.finish(id, outcome, self.now())?;
        }
        Ok(())
    }

    /// Halves the micro-batches of the only running task.
    fn halve<R: Room>(
        &mut self,
        id: TaskId,
        scheduler: &mut Scheduler<R>,
        iteration: u64,
        reason: String,
    ) -> Result<()> {
        let split = self.config.pipeline.microbatches;
        let held = self.iterations.held_by_pools();
        let Some(task) = self.placed.tasks.get_mut(id) else {
            return Ok(());
        };
        if !task.can_halve(split) {
            let size = match task.microbatch_rows(split) {
                1 => "one row per micro-batch".to_owned(),
                rows => format!("the {rows} rows of a batch, which its objective does not divide"),
            };
            let alone = format!("does not fit even alone with {size}: {reason}{held}");
            let (id, outcome) = self.fail_next(id, Outcome::does_not_fit(alone))?;
            return Ok(scheduler.finish(id, outcome, self.now())?);
        }
        task.halvings += 1;
        let (rows, halvings) = (task.microbatch_rows(split), task.halvings);
        // Also in its copies, so that a later recovery keeps the new size.
        let snapshot = self.rewind.snapshot.iter_mut();
        let kept = snapshot.flat_map(Snapshot::tasks_mut);
        for kept in kept.chain(self.rewind.arrivals.values_mut()) {
            if kept.id == id {
                kept.halvings = halvings;
            }
        }
        self.log.emit(Event::OutOfMemory {
            iteration,
            reason,
            parked: None,
            microbatch_rows: Some(rows),
        });
        Ok(())
    }

    /// Fails a task at its next step.
    pub(super) fn fail_next(&mut self, id: TaskId, outcome: Outcome) -> Result<Ended> {
        let step = self.placed.tasks.get(id).map_or(0, |task| task.steps) + 1;
        self.fail(id, step, outcome)
    }
}

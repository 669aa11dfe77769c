//! Copies of the running tasks: to go on from after running out of memory, and to save by a stop
//! inside a step.

use std::time::{Duration, Instant};

use loraloom_scheduler::{OutOfMemory, Outcome as TaskOutcome, Room, Scheduler, TaskId, TaskState};

use crate::{
    Event, TrainerError,
    adapter::{ModelAdapter, on_host},
    session::Session,
    snapshot::Running,
    standby::Kept,
    task::TrainingTask,
    waiting::WaitingTask,
    writer::Parts,
};

/// Iterations since the copy, at most, before a window begins; those of the window come on top.
const LONGEST_LOOK_BACK: u64 = 32;

/// Time after which a copy is made again at the next step.
const OLDEST: Duration = Duration::from_mins(1);

/// The running tasks with their adapters, as they were at an iteration's end.
#[derive(Debug, Clone)]
pub(crate) struct Snapshot {
    made: Instant,
    pub(crate) iteration: u64,
    pub(crate) tokens: u64,
    pub(crate) tasks: Vec<(TrainingTask, ModelAdapter)>,
}

impl Snapshot {
    /// Whether it is of the same tasks in the same places, and not long ago.
    fn serves(&self, running: &[TrainingTask], iteration: u64) -> bool {
        let place = |task: &TrainingTask| (task.id, task.group);
        let same = self.tasks.iter().map(|(task, _)| place(task));
        let recent = iteration < self.iteration + LONGEST_LOOK_BACK && !self.is_old();
        recent && same.eq(running.iter().map(place))
    }

    fn is_old(&self) -> bool {
        Instant::now() >= self.oldest()
    }

    /// When the next one is made at the latest.
    pub(crate) fn oldest(&self) -> Instant {
        self.made + OLDEST
    }
}

impl Session<'_> {
    /// Keeps what the running tasks are, unless a recent copy is there.
    pub(crate) fn keep_snapshot(&mut self) -> Result<(), TrainerError> {
        let ledger = &self.ledger;
        let kept = self.snapshot.as_ref();
        if kept.is_some_and(|snapshot| snapshot.serves(&ledger.running, ledger.iteration)) {
            self.arrivals.clear();
            return Ok(());
        }
        let copies = (0..ledger.running.len()).map(|index| {
            let place = ledger.place(index);
            // A copy apart: the optimizer changes weights where they are.
            let adapter = on_host(self.pipeline.extract(place.group, place.slot)?)?;
            Ok((ledger.running[index].clone(), adapter))
        });
        let snapshot = Snapshot {
            made: Instant::now(),
            iteration: ledger.iteration,
            tokens: ledger.tokens,
            tasks: copies.collect::<Result<_, TrainerError>>()?,
        };
        if let Some(standby) = &self.saving.standby
            && self.saving.written_at != Some(snapshot.iteration)
        {
            standby.keep(self.kept(&snapshot)?);
        }
        self.snapshot = Some(snapshot);
        self.arrivals.clear();
        Ok(())
    }

    /// The checkpoint that a stop inside a step writes.
    fn kept(&self, snapshot: &Snapshot) -> Result<Kept, TrainerError> {
        let (mut sender, parts) = Parts::new();
        self.write_checkpoint(&mut sender, Running::Kept(snapshot))?;
        Ok(Kept {
            parent: self.ledger.directory.checkpoints(),
            iteration: snapshot.iteration,
            keep: self.saving.keep,
            parts,
        })
    }

    /// Goes on after memory ran out: the steps since the last snapshot are taken again, without the
    /// task that the scheduler sends away, or with smaller micro-batches if there is only one.
    ///
    /// # Errors
    /// `error` itself, if nothing can be done about it: a stage on another machine ran out.
    pub(crate) fn go_on_with_less<R: Room>(
        &mut self,
        error: TrainerError,
        scheduler: &mut Scheduler<R>,
    ) -> Result<(), TrainerError> {
        if !self.pipeline.abandon() {
            return Err(error);
        }
        let less = scheduler.out_of_memory(self.now());
        if less == OutOfMemory::NobodyRuns {
            return Err(error);
        }
        self.rewind(|task| scheduler.state(task))?;
        self.ledger.measured.clear();
        let (iteration, reason) = (self.ledger.iteration, error.to_string());
        match less {
            OutOfMemory::Parked(parking) => {
                let parked = self.waiting.get(&parking.task);
                let (adapter, step) = parked.map_or_else(Default::default, |waiting| {
                    (waiting.task.config.name.clone(), waiting.task.steps)
                });
                self.ledger.emit(Event::OutOfMemory {
                    iteration,
                    reason,
                    parked: Some(adapter.clone()),
                    microbatch_rows: None,
                });
                self.ledger.emit(Event::Park {
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

    /// Puts tasks and adapters back as they were: in the last snapshot, and those that were let in since
    /// as they came. Each goes where the scheduler has it now.
    fn rewind(&mut self, state: impl Fn(TaskId) -> Option<TaskState>) -> Result<(), TrainerError> {
        let ledger = &mut self.ledger;
        for group in 0..ledger.groups() {
            for slot in (0..ledger.members(group).count()).rev() {
                self.pipeline.remove(group, slot)?;
            }
        }
        ledger.pending.clear();
        ledger.failures.clear();
        ledger.running.clear();
        ledger.arrived = None;
        let mut tasks: Vec<WaitingTask> = Vec::new();
        // It is kept: the next one may not come about, either.
        if let Some(snapshot) = self.snapshot.clone() {
            let goes_on =
                |(task, _): &(TrainingTask, _)| state(task.id) == Some(TaskState::Running);
            if snapshot.tasks.iter().any(goes_on) {
                ledger.iteration = snapshot.iteration;
                ledger.tokens = snapshot.tokens;
            }
            tasks.extend(
                snapshot
                    .tasks
                    .into_iter()
                    .map(|(task, adapter)| WaitingTask {
                        task,
                        adapter: Some(adapter),
                    }),
            );
        }
        for (id, arrival) in &self.arrivals {
            if tasks.iter().all(|kept| kept.task.id != *id) {
                tasks.push(arrival.clone());
            }
        }
        for back in tasks {
            let id = back.task.id;
            match state(id) {
                Some(TaskState::Running) => {
                    let adapter = match back.adapter {
                        Some(adapter) => adapter,
                        None => self.first_state(&back.task)?,
                    };
                    self.pipeline.reserve_groups(back.task.group + 1)?;
                    self.pipeline.push(back.task.group, adapter)?;
                    self.ledger.running.push(back.task);
                }
                Some(state) if !state.is_final() => {
                    self.waiting.entry(id).or_insert(back);
                }
                _ => {}
            }
        }
        // Stable: tasks of a group stay in the order of their slots.
        self.ledger.running.sort_by_key(|task| task.group);
        Ok(())
    }

    /// Ends tasks that nobody stands in the way of and that do not fit all the same.
    pub(crate) fn give_up_waiting<R: Room>(
        &mut self,
        scheduler: &mut Scheduler<R>,
    ) -> Result<(), TrainerError> {
        let waits = |id: &TaskId| scheduler.state(*id).is_some_and(TaskState::is_waiting);
        let waiting: Vec<TaskId> = self.waiting.keys().copied().filter(waits).collect();
        for id in waiting {
            let Some(reason) = scheduler.why(id) else {
                continue;
            };
            if let Some(waiting) = self.waiting.remove(&id) {
                self.fail_waiting(waiting, reason);
                scheduler.finish(id, TaskOutcome::Failed, self.now())?;
            }
        }
        Ok(())
    }

    /// Halves the micro-batches of the only task that runs.
    fn halve<R: Room>(
        &mut self,
        task: TaskId,
        scheduler: &mut Scheduler<R>,
        iteration: u64,
        reason: String,
    ) -> Result<(), TrainerError> {
        let split = self.ledger.config.pipeline.microbatches;
        let Some(index) = self.ledger.index_of(task) else {
            return Ok(());
        };
        let running = &mut self.ledger.running[index];
        if running.microbatch_rows(split) == 1 {
            let step = running.steps + 1;
            let (task, outcome) = self.fail(index, step, reason)?;
            return Ok(scheduler.finish(task, outcome, self.now())?);
        }
        running.halvings += 1;
        let (rows, halvings) = (running.microbatch_rows(split), running.halvings);
        // Also where it may be taken from again.
        let kept = self
            .snapshot
            .iter_mut()
            .flat_map(|snapshot| &mut snapshot.tasks);
        let arrived = self.arrivals.values_mut().map(|waiting| &mut waiting.task);
        for kept in kept.map(|(task, _)| task).chain(arrived) {
            if kept.id == task {
                kept.halvings = halvings;
            }
        }
        self.ledger.emit(Event::OutOfMemory {
            iteration,
            reason,
            parked: None,
            microbatch_rows: Some(rows),
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{LONGEST_LOOK_BACK, Snapshot};

    #[test]
    fn old_copies_are_made_again() {
        let serves = |age, iteration| {
            let made = Instant::now().checked_sub(Duration::from_secs(age));
            let copy = Snapshot {
                made: made.expect("a machine that is up for two minutes"),
                iteration: 5,
                tokens: 0,
                tasks: Vec::new(),
            };
            copy.serves(&[], iteration)
        };
        assert!(serves(50, 5 + LONGEST_LOOK_BACK - 1));
        assert!(!serves(70, 5));
        assert!(!serves(0, 5 + LONGEST_LOOK_BACK));
    }
}

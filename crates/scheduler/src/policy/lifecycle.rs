use std::cmp::Reverse;

use super::{
    Past, Policy, Scheduler,
    entry::{Entry, Wait},
};
use crate::{
    MeasuredIteration, Parking, Refusal, Room, SchedulerError, Task, TaskId, TaskOutcome, TaskState,
};

/// Answer to a device that ran out of memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutOfMemory {
    /// This task is parked now.
    Parked(Parking),
    /// Only this task runs, so none can be parked for it.
    OnlyOne(TaskId),
    /// No task runs.
    NobodyRuns,
}

impl<R: Room> Scheduler<R> {
    /// Puts a task into the queue.
    ///
    /// # Errors
    /// [`SchedulerError::DuplicateTask`] if its identity was used before,
    /// [`SchedulerError::NeverFits`] if it could not train here even alone.
    pub fn submit(&mut self, task: Task, now: f64) -> Result<(), SchedulerError> {
        let now = self.clock(now);
        self.check_new(&task)?;
        self.check_fits(&task)?;
        self.insert(Entry::queued(task, now));
        Ok(())
    }

    /// Restores a task from before a restart. One that ran is parked now; one that had ended is only
    /// remembered. A task that has failed in this scheduler may be restored, to continue.
    ///
    /// # Errors
    /// As [`submit`](Self::submit); one that had ended, or is paused, need not fit.
    pub fn restore(&mut self, task: Task, past: Past, now: f64) -> Result<(), SchedulerError> {
        let now = self.clock(now);
        let existing = self.entries.get(&task.id);
        if existing.is_none_or(|existing| existing.state != TaskState::Failed) {
            self.check_new(&task)?;
        }
        let entry = Entry::restored(task, past, now);
        if entry.is_live() {
            self.check_fits(&entry.task)?;
        }
        self.insert(entry);
        Ok(())
    }

    /// Learns from an iteration: the steps that its tasks took, and what it took of time and memory. The
    /// iteration's `load` counts tokens; adapters are added here.
    ///
    /// # Errors
    /// As [`progress`](Self::progress).
    pub fn measured(&mut self, iteration: &MeasuredIteration) -> Result<(), SchedulerError> {
        let mut iteration = iteration.clone();
        iteration.load.adapter_bytes = 0;
        for part in &iteration.tasks {
            self.progress(part.task, part.steps, part.tokens)?;
            let entry = self.entries.get(&part.task);
            iteration.load.adapter_bytes += entry.map_or(0, |entry| entry.task.load.adapter_bytes);
        }
        self.room.measured(&iteration);
        self.changed = true;
        Ok(())
    }

    /// A running task has taken `steps` more optimizer steps, with `tokens` tokens in all.
    ///
    /// # Errors
    /// [`SchedulerError::UnknownTask`]; [`SchedulerError::NotRunning`] if it has no place.
    pub fn progress(
        &mut self,
        task: TaskId,
        steps: usize,
        tokens: u64,
    ) -> Result<(), SchedulerError> {
        let entry = self
            .entries
            .get_mut(&task)
            .ok_or(SchedulerError::UnknownTask(task))?;
        if !entry.is_running() {
            return Err(SchedulerError::NotRunning {
                name: entry.task.name.clone(),
                state: entry.state,
            });
        }
        entry.steps_taken = entry.steps_taken.saturating_add(steps);
        // The steps left decide which tasks may pass the head.
        self.changed |= steps > 0 && self.reservation.is_some();
        if let Policy::Fair { .. } = self.options.policy {
            let task = &entry.task;
            let counters = self.tenant_counters.entry(task.priority).or_default();
            counters.charge(&task.tenant, tokens as f64);
        }
        Ok(())
    }

    /// Adds service to a tenant that it received elsewhere, in tokens as those of [`progress`](Self::progress).
    pub fn charge(&mut self, tenant: &str, tokens: f64) {
        if let Policy::Fair { .. } = self.options.policy {
            for counters in self.tenant_counters.values_mut() {
                counters.charge(tenant, tokens);
            }
        }
    }

    /// Ends a task. The next [`decide`](Self::decide) gives its place to others.
    ///
    /// # Errors
    /// [`SchedulerError::UnknownTask`]; [`SchedulerError::IllegalTransition`] if it cannot end so.
    pub fn finish(
        &mut self,
        task: TaskId,
        outcome: TaskOutcome,
        now: f64,
    ) -> Result<(), SchedulerError> {
        self.enter(task, outcome.into(), now)
    }

    /// Holds a task that is queued, runs or is parked. Until it is resumed, it neither trains nor
    /// waits.
    ///
    /// # Errors
    /// As [`finish`](Self::finish).
    pub fn pause(&mut self, task: TaskId, now: f64) -> Result<(), SchedulerError> {
        self.enter(task, TaskState::Paused, now)
    }

    /// Lets a paused task wait again, ordered by its arrival. Protected tasks are not parked for it.
    ///
    /// # Errors
    /// As [`finish`](Self::finish); [`SchedulerError::IllegalTransition`] if it is not paused.
    pub fn resume(&mut self, task: TaskId, now: f64) -> Result<(), SchedulerError> {
        let entry = self.entries.get(&task);
        let next = match entry.map(|entry| entry.has_trained) {
            Some(true) => TaskState::Parked,
            _ => TaskState::Queued,
        };
        // A running task could become parked, but was not paused.
        if let Some(entry) = entry
            && entry.state != TaskState::Paused
        {
            return Err(SchedulerError::IllegalTransition {
                name: entry.task.name.clone(),
                from: entry.state,
                to: next,
            });
        }
        self.enter(task, next, now)
    }

    /// Parks a task because a device ran out of memory: of the running tasks of the lowest priority an
    /// unprotected one, and of these the one admitted last.
    ///
    /// The task is not placed again while all that run on now still run, even if the room has place for
    /// it.
    pub fn out_of_memory(&mut self, now: f64) -> OutOfMemory {
        let now = self.clock(now);
        let load = self.load();
        let mut running: Vec<TaskId> = self.live.iter().copied().collect();
        running.retain(|&task| self.runs(task));
        let rank = |task: &TaskId| {
            let entry = self.entries.get(task)?;
            let last = Reverse(entry.admission);
            Some((entry.task.priority, entry.protected, last))
        };
        let Some(victim) = running.iter().copied().min_by_key(rank) else {
            return OutOfMemory::NobodyRuns;
        };
        if running.len() == 1 {
            return OutOfMemory::OnlyOne(victim);
        }
        let beside: Vec<TaskId> = running.into_iter().filter(|&task| task != victim).collect();
        let wait = Wait::OutOfMemory(beside.clone());
        let reason = self.waits_for(&wait);
        if let Some(entry) = self.entries.get_mut(&victim)
            && entry.enter(TaskState::Parked).is_ok()
        {
            entry.start_waiting(now);
            entry.out_of_memory_beside = beside;
            entry.wait = wait;
        }
        self.room.out_of_memory(load);
        self.changed = true;
        OutOfMemory::Parked(Parking {
            task: victim,
            by: None,
            reason,
        })
    }

    fn enter(&mut self, task: TaskId, next: TaskState, now: f64) -> Result<(), SchedulerError> {
        let now = self.clock(now);
        let entry = self
            .entries
            .get_mut(&task)
            .ok_or(SchedulerError::UnknownTask(task))?;
        let waited = entry.waited(now);
        entry.enter(next)?;
        entry.waited = waited;
        if next.is_waiting() {
            entry.start_waiting(now);
        } else {
            entry.protected = false;
        }
        if entry.is_live() {
            self.live.insert(task);
        } else {
            self.live.remove(&task);
        }
        self.changed = true;
        Ok(())
    }

    fn check_new(&self, task: &Task) -> Result<(), SchedulerError> {
        match self.entries.get(&task.id) {
            None => Ok(()),
            Some(existing) => Err(SchedulerError::DuplicateTask {
                id: task.id,
                name: task.name.clone(),
                existing: existing.task.name.clone(),
            }),
        }
    }

    fn check_fits(&self, task: &Task) -> Result<(), SchedulerError> {
        let never = |refusal: Refusal| SchedulerError::NeverFits {
            name: task.name.clone(),
            reason: refusal.reason,
        };
        self.room.admits_alone(task).map_err(never)
    }

    fn insert(&mut self, mut entry: Entry) {
        let id = entry.task.id;
        let next = self.tenants.len();
        let number = self.tenant_numbers.entry(entry.task.tenant.clone());
        entry.tenant = *number.or_insert_with(|| {
            self.tenants.push(entry.task.tenant.clone());
            next
        });
        if entry.is_live() {
            self.live.insert(id);
            self.changed = true;
        }
        self.entries.insert(id, entry);
    }
}

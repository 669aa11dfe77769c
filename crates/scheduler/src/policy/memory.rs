use std::cmp::Reverse;

use super::{Scheduler, wait::Wait};
use crate::{Parking, Room, TaskId, TaskState};

/// What is left to do when a device ran out of memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutOfMemory {
    /// This task has given its place away; the next decision goes on without it.
    Parked(Parking),
    /// Only this task runs, so none can be parked for it.
    OnlyOne(TaskId),
    /// No task runs.
    NobodyRuns,
}

impl<R: Room> Scheduler<R> {
    /// A device ran out of memory: parks a running task of the lowest priority, and of those one that
    /// has its place without right, and then the one that got its place last.
    ///
    /// It is not placed again while all that run on now still run, whatever the room says, so that
    /// the same does not happen again at once.
    pub fn out_of_memory(&mut self, now: f64) -> OutOfMemory {
        let now = self.clock(now);
        let load = self.load();
        let running: Vec<TaskId> = self
            .live
            .iter()
            .copied()
            .filter(|&task| self.state(task) == Some(TaskState::Running))
            .collect();
        let rank = |task: &TaskId| {
            let entry = self.entries.get(task);
            entry.map(|entry| {
                let last = Reverse(entry.admission);
                (entry.task().priority, entry.by_right, last)
            })
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
            && entry.tracked.enter(TaskState::Parked).is_ok()
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
}

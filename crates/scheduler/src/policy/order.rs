use std::{
    cmp::{Ordering, Reverse},
    collections::{BTreeMap, BTreeSet},
};

use super::{Policy, Scheduler, entry::Entry, fair};
use crate::TaskId;

/// A task that trains or waits, with all that orders it among the others.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Candidate {
    pub(super) task: TaskId,
    /// The number of its tenant.
    pub(super) tenant: usize,
    pub(super) priority: i64,
    /// The priority, raised by waiting.
    pub(super) class: i64,
    pub(super) runs: bool,
    /// True if it runs and comes before the waiting tasks of its class.
    pub(super) protected: bool,
    /// Orders the tasks of a priority before their arrival does; equal for all unless the policy is
    /// fair.
    pub(super) key: f64,
    /// Counter of its tenant; 0 unless the policy is fair.
    pub(super) counter: f64,
    /// Orders protected tasks before their arrival does.
    pub(super) seniority: u64,
    pub(super) arrival: u64,
}

impl Candidate {
    /// The policy's order within a priority.
    pub(super) fn within_priority(&self, other: &Self) -> Ordering {
        (Reverse(self.priority), Reverse(self.protected))
            .cmp(&(Reverse(other.priority), Reverse(other.protected)))
            .then(self.key.total_cmp(&other.key))
            .then(self.rank().cmp(&other.rank()))
            .then((self.arrival, self.task).cmp(&(other.arrival, other.task)))
    }

    /// Equal for all unprotected tasks, which may have been protected before.
    fn rank(&self) -> u64 {
        if self.protected { self.seniority } else { 0 }
    }

    fn by_class(&self, other: &Self) -> Ordering {
        (Reverse(self.class), Reverse(self.protected))
            .cmp(&(Reverse(other.class), Reverse(other.protected)))
            .then_with(|| self.within_priority(other))
    }
}

impl<R> Scheduler<R> {
    /// All tasks that run or wait, in the order in which they are placed. The tasks in `unprotected`
    /// lose their protection.
    pub(super) fn candidates(&self, unprotected: &BTreeSet<TaskId>, now: f64) -> Vec<Candidate> {
        let options = &self.options;
        let fair = matches!(options.policy, Policy::Fair { .. });
        let mut counters: BTreeMap<(i64, usize), f64> = BTreeMap::new();
        let mut counter = |entry: &Entry| {
            let task = &entry.task;
            let of_priority = self.tenant_counters.get(&task.priority);
            let of = || of_priority.map_or(0.0, |counters| counters.counter(&task.tenant));
            let known = counters.entry((task.priority, entry.tenant));
            *known.or_insert_with(of)
        };
        let candidate = |id: &TaskId| {
            let entry = self.entries.get(id)?;
            let priority = entry.task.priority;
            let raised = options
                .aging_seconds
                .map_or(0, |aging| entry.raised_by(now, aging));
            Some(Candidate {
                task: *id,
                tenant: entry.tenant,
                priority,
                class: priority.saturating_add(raised),
                runs: entry.is_running(),
                protected: entry.is_running() && entry.protected && !unprotected.contains(id),
                key: 0.0,
                counter: if fair { counter(entry) } else { 0.0 },
                seniority: entry.seniority,
                arrival: entry.task.arrival,
            })
        };
        let mut candidates: Vec<Candidate> = self.live.iter().filter_map(candidate).collect();
        if let Policy::Fair { lead, .. } = options.policy {
            fair::rank(&mut candidates, &self.tenant_counters, lead as f64);
        }
        candidates.sort_unstable_by(Candidate::within_priority);
        if options.aging_seconds.is_some() {
            raise_earlier(&mut candidates);
            candidates.sort_unstable_by(Candidate::by_class);
        }
        candidates
    }
}

/// A task that is raised raises the tasks of its priority before it, so that aging never changes the
/// order within a priority. Otherwise the next decision would lower the tasks that came before one that
/// has a place now.
fn raise_earlier(candidates: &mut [Candidate]) {
    for later in (1..candidates.len()).rev() {
        if candidates[later - 1].priority == candidates[later].priority {
            candidates[later - 1].class = candidates[later - 1].class.max(candidates[later].class);
        }
    }
}

use std::{
    cmp::{Ordering, Reverse},
    collections::{BTreeMap, BTreeSet},
};

use super::{Policy, SchedulerOptions, entry::Entry, fair, ledger::Account};
use crate::TaskId;

/// A task's place in the line: what decides whose turn it is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Turn {
    pub(super) task: TaskId,
    /// The number of its tenant.
    pub(super) tenant: usize,
    pub(super) priority: i64,
    /// The priority, raised by waiting.
    pub(super) class: i64,
    pub(super) runs: bool,
    /// Whether it runs, and goes before those of its class that wait.
    pub(super) by_right: bool,
    /// Orders the tasks of a priority, before their arrival does; the same for all but in fair
    /// sharing.
    pub(super) key: f64,
    /// What its tenant was served; 0 but in fair sharing.
    pub(super) counter: f64,
    /// Orders those that run by right, before their arrival does.
    pub(super) seniority: u64,
    pub(super) arrival: u64,
}

impl Turn {
    /// The policy's order within a priority.
    pub(super) fn within_priority(&self, other: &Self) -> Ordering {
        (Reverse(self.priority), Reverse(self.by_right))
            .cmp(&(Reverse(other.priority), Reverse(other.by_right)))
            .then(self.key.total_cmp(&other.key))
            .then(self.standing().cmp(&other.standing()))
            .then((self.arrival, self.task).cmp(&(other.arrival, other.task)))
    }

    /// The same for all without right, who may have had it.
    fn standing(&self) -> u64 {
        if self.by_right { self.seniority } else { 0 }
    }

    fn in_line(&self, other: &Self) -> Ordering {
        (Reverse(self.class), Reverse(self.by_right))
            .cmp(&(Reverse(other.class), Reverse(other.by_right)))
            .then_with(|| self.within_priority(other))
    }
}

/// All tasks that run or wait, the next one first. Those in `without_right` have none, whatever they
/// had.
pub(super) fn line(
    entries: &BTreeMap<TaskId, Entry>,
    live: &BTreeSet<TaskId>,
    accounts: &BTreeMap<i64, Account>,
    options: &SchedulerOptions,
    without_right: &BTreeSet<TaskId>,
    now: f64,
) -> Vec<Turn> {
    let fair = matches!(options.policy, Policy::Fair { .. });
    let mut counters: BTreeMap<(i64, usize), f64> = BTreeMap::new();
    let mut counter = |entry: &Entry| {
        let task = entry.task();
        let of = || {
            let account = accounts.get(&task.priority);
            account.map_or(0.0, |account| account.counter(&task.tenant))
        };
        let known = counters.entry((task.priority, entry.tenant));
        *known.or_insert_with(of)
    };
    let turn = |id: &TaskId| {
        let entry = entries.get(id)?;
        let priority = entry.task().priority;
        let raised = options
            .aging_seconds
            .map_or(0, |aging| entry.raised_by(now, aging));
        Some(Turn {
            task: *id,
            tenant: entry.tenant,
            priority,
            class: priority.saturating_add(raised),
            runs: entry.is_running(),
            by_right: entry.is_running() && entry.by_right && !without_right.contains(id),
            key: 0.0,
            counter: if fair { counter(entry) } else { 0.0 },
            seniority: entry.seniority,
            arrival: entry.task().arrival,
        })
    };
    let mut turns: Vec<Turn> = live.iter().filter_map(turn).collect();
    if let Policy::Fair { lead, .. } = options.policy {
        fair::rank(&mut turns, accounts, lead as f64);
    }
    turns.sort_unstable_by(Turn::within_priority);
    if options.aging_seconds.is_some() {
        take_along(&mut turns);
        turns.sort_unstable_by(Turn::in_line);
    }
    turns
}

/// A task that is raised raises those of its priority before it: aging never changes the order
/// within a priority. That order has to be the same after a decision as before it: otherwise the
/// next one would lower those that stood before a task that has a place by now.
fn take_along(turns: &mut [Turn]) {
    for later in (1..turns.len()).rev() {
        if turns[later - 1].priority == turns[later].priority {
            turns[later - 1].class = turns[later - 1].class.max(turns[later].class);
        }
    }
}

use std::collections::{BTreeMap, BTreeSet};

use super::{entry::Entry, ledger::Account, line::Turn};
use crate::TaskId;

/// The tenants with tasks that have no place yet, while places are given.
#[derive(Debug, Default)]
pub(super) struct Unplaced<'a> {
    tasks: BTreeMap<(i64, &'a str), usize>,
    /// By priority, the least counter first. Counters are not negative, so their bits are in order.
    counters: BTreeMap<i64, BTreeSet<(u64, &'a str)>>,
    lead: f64,
}

impl<'a> Unplaced<'a> {
    pub(super) fn new(
        line: &[Turn],
        entries: &'a BTreeMap<TaskId, Entry>,
        accounts: &BTreeMap<i64, Account>,
        lead: f64,
    ) -> Self {
        let mut all = Self {
            lead,
            ..Self::default()
        };
        for turn in line {
            let Some(entry) = entries.get(&turn.task) else {
                continue;
            };
            let tenant = entry.task().tenant.as_str();
            *all.tasks.entry((turn.priority, tenant)).or_default() += 1;
            let counter = accounts
                .get(&turn.priority)
                .map_or(0.0, |account| account.counter(tenant));
            let of_priority = all.counters.entry(turn.priority).or_default();
            of_priority.insert((counter.max(0.0).to_bits(), tenant));
        }
        all
    }

    /// The tenant that this one is too far ahead of to be served, and by how much.
    pub(super) fn leads(&self, priority: i64, counter: f64) -> Option<(String, f64)> {
        let &(bits, tenant) = self.counters.get(&priority)?.first()?;
        let ahead = counter - f64::from_bits(bits);
        (ahead > self.lead).then(|| (tenant.to_owned(), ahead))
    }

    /// A task of this tenant has its place, or will never have one.
    pub(super) fn take(&mut self, priority: i64, tenant: &'a str, counter: f64) {
        if let Some(left) = self.tasks.get_mut(&(priority, tenant)) {
            *left = left.saturating_sub(1);
            if *left == 0
                && let Some(of_priority) = self.counters.get_mut(&priority)
            {
                of_priority.remove(&(counter.max(0.0).to_bits(), tenant));
            }
        }
    }
}

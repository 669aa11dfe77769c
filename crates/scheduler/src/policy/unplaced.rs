use std::collections::{BTreeMap, BTreeSet};

use super::line::Turn;

/// The tenants with tasks that have no place yet, while places are given.
#[derive(Debug, Default)]
pub(super) struct Unplaced {
    tasks: BTreeMap<(i64, usize), usize>,
    /// By priority, the least counter first. Counters are not negative, so their bits are in order.
    counters: BTreeMap<i64, BTreeSet<(u64, usize)>>,
    lead: f64,
}

impl Unplaced {
    pub(super) fn new(line: &[Turn], lead: f64) -> Self {
        let mut all = Self {
            lead,
            ..Self::default()
        };
        for turn in line {
            let tasks = all.tasks.entry((turn.priority, turn.tenant)).or_default();
            *tasks += 1;
            if *tasks == 1 {
                let of_priority = all.counters.entry(turn.priority).or_default();
                of_priority.insert(in_order(turn));
            }
        }
        all
    }

    /// The tenant that this one is too far ahead of to be served, and by how much.
    pub(super) fn leads(&self, turn: &Turn) -> Option<(usize, f64)> {
        let &(bits, tenant) = self.counters.get(&turn.priority)?.first()?;
        let ahead = turn.counter - f64::from_bits(bits);
        (ahead > self.lead).then_some((tenant, ahead))
    }

    /// This task has its place, or will never have one.
    pub(super) fn take(&mut self, turn: &Turn) {
        if let Some(left) = self.tasks.get_mut(&(turn.priority, turn.tenant)) {
            *left = left.saturating_sub(1);
            if *left == 0
                && let Some(of_priority) = self.counters.get_mut(&turn.priority)
            {
                of_priority.remove(&in_order(turn));
            }
        }
    }
}

fn in_order(turn: &Turn) -> (u64, usize) {
    (turn.counter.max(0.0).to_bits(), turn.tenant)
}

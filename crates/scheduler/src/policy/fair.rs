use std::collections::BTreeMap;

use super::{entry::Entry, ledger::Account, line::Turn};
use crate::TaskId;

/// Ranks tasks by their tenants' counters. The first task of a tenant ranks at its counter, the next
/// ones above it, and all of them within `lead` of it: tenants of equal counters take turns, and
/// whoever is too far ahead of another comes after all tasks of that one.
///
/// Who is more than `lead` ahead of one that waits loses the right to go on. A running task without
/// right, of a tenant that is not too far ahead, comes right after the first to wait and before all
/// others that do: two do not change places all the time, and the first to wait has waited for its
/// place.
pub(super) fn rank(
    turns: &mut [Turn],
    entries: &BTreeMap<TaskId, Entry>,
    accounts: &BTreeMap<i64, Account>,
    lead: f64,
) {
    let waiting: BTreeMap<i64, f64> = accounts
        .iter()
        .filter_map(|(&priority, account)| Some((priority, account.least_backlogged()?.1)))
        .collect();
    for turn in turns.iter_mut().filter(|turn| turn.by_right) {
        if let Some(least) = waiting.get(&turn.priority) {
            turn.by_right = turn.counter <= least + lead;
        }
    }
    turns.sort_unstable_by(Turn::within_priority);
    let mut tasks_of: BTreeMap<(i64, usize), f64> = BTreeMap::new();
    let mut fronts: BTreeMap<i64, Front> = BTreeMap::new();
    for turn in turns.iter_mut() {
        let rank = tasks_of.entry((turn.priority, turn.tenant)).or_default();
        *rank += 1.0;
        turn.key = turn.counter + lead * (1.0 - 1.0 / *rank);
        if !turn.by_right {
            let front = fronts.entry(turn.priority).or_default();
            front.least = front.least.min(turn.counter);
            if !runs(turn, entries) {
                front.first_waiting = front.first_waiting.min(turn.key);
            }
        }
    }
    for turn in turns.iter_mut() {
        if let Some(front) = fronts.get(&turn.priority)
            && runs(turn, entries)
            && !turn.by_right
            && turn.counter <= front.least + lead
        {
            turn.key = turn.key.min(front.first_waiting.next_up());
        }
    }
}

/// Where the tasks without right begin.
#[derive(Debug)]
struct Front {
    /// The least counter of their tenants.
    least: f64,
    first_waiting: f64,
}

impl Default for Front {
    fn default() -> Self {
        Self {
            least: f64::INFINITY,
            first_waiting: f64::INFINITY,
        }
    }
}

fn runs(turn: &Turn, entries: &BTreeMap<TaskId, Entry>) -> bool {
    entries.get(&turn.task).is_some_and(Entry::is_running)
}

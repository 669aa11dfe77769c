use std::collections::BTreeMap;

use super::{entry::Entry, ledger::Account, line::Turn};
use crate::TaskId;

/// Ranks tasks by their tenants' counters: of each tenant the first of its tasks at its counter, the
/// second `lead` above, and so on, so that tenants of equal counters take turns.
///
/// Who is more than `lead` ahead of one that waits loses the right to go on. A running task without
/// that right is moved up by `lead` among the waiting ones, so that two do not change places all the
/// time, but never to the front of the line: the first to wait has waited for its place.
pub(super) fn rank(
    turns: &mut [Turn],
    entries: &BTreeMap<TaskId, Entry>,
    accounts: &BTreeMap<i64, Account>,
    lead: f64,
) {
    let owner = |turn: &Turn| entries.get(&turn.task).map(|entry| &*entry.task().tenant);
    let counter = |turn: &Turn| {
        let account = accounts.get(&turn.priority)?;
        Some(account.counter(owner(turn)?))
    };
    for turn in turns.iter_mut().filter(|turn| turn.by_right) {
        let waiting = accounts
            .get(&turn.priority)
            .and_then(Account::least_backlogged);
        if let (Some((_, least)), Some(counter)) = (waiting, counter(turn)) {
            turn.by_right = counter <= least + lead;
        }
    }
    turns.sort_unstable_by(Turn::within_priority);
    let mut tasks_of: BTreeMap<(i64, &str), f64> = BTreeMap::new();
    let mut first_waiting: BTreeMap<i64, f64> = BTreeMap::new();
    for turn in turns.iter_mut() {
        let Some(tenant) = owner(turn) else { continue };
        let before = tasks_of.entry((turn.priority, tenant)).or_default();
        turn.key = counter(turn).unwrap_or(0.0) + *before * lead;
        *before += 1.0;
        if !runs(turn, entries) {
            let first = first_waiting.entry(turn.priority).or_insert(f64::INFINITY);
            *first = first.min(turn.key);
        }
    }
    for turn in turns.iter_mut() {
        if let Some(first) = first_waiting.get(&turn.priority)
            && runs(turn, entries)
            && !turn.by_right
        {
            turn.key = (turn.key - lead).max(first.next_up());
        }
    }
}

fn runs(turn: &Turn, entries: &BTreeMap<TaskId, Entry>) -> bool {
    entries.get(&turn.task).is_some_and(Entry::is_running)
}

//! Fair sharing: counters of tenants, and the order of tasks that follows from them.

use std::collections::{BTreeMap, BTreeSet};

use super::{Ledger, order::Candidate};

/// A ledger, and the tenants that wait: the virtual token counters of Sheng et al. (VTC, OSDI'24, section 4.1).
#[derive(Debug, Clone, Default)]
pub struct TenantCounters {
    pub(super) ledger: Ledger,
    backlogged: BTreeSet<String>,
}

impl TenantCounters {
    /// The service that a tenant has received, lifted when it began to wait.
    pub fn counter(&self, tenant: &str) -> f64 {
        self.ledger.counters.get(tenant).copied().unwrap_or(0.0)
    }

    /// Adds service to a tenant.
    pub fn charge(&mut self, tenant: &str, cost: f64) {
        let counter = self.ledger.counters.entry(tenant.to_owned()).or_default();
        *counter += cost;
        if self.backlogged.is_empty() {
            // Service while no tenant waits is not held against the tenant.
            self.ledger.level = self.ledger.level.max(*counter);
        }
    }

    /// Sets the tenants that wait now. With `lift`, those that did not wait before are lifted.
    pub fn set_backlogged(&mut self, backlogged: BTreeSet<String>, lift: bool) {
        // Running tasks are within the bound of the tenants that waited until now; a tenant that begins to
        // wait must not be further behind than these.
        let waited = self.least_backlogged().map(|(_, least)| least);
        let if_none_waits = || backlogged.is_empty().then(|| self.most());
        let level = waited.into_iter().chain(if_none_waits());
        self.ledger.level = level.fold(self.ledger.level, f64::max);
        for tenant in backlogged.difference(&self.backlogged).filter(|_| lift) {
            let counter = self.ledger.counters.entry(tenant.clone()).or_default();
            *counter = counter.max(self.ledger.level);
        }
        self.backlogged = backlogged;
    }

    /// The waiting tenant with the least counter, and the counter.
    pub fn least_backlogged(&self) -> Option<(&str, f64)> {
        self.backlogged
            .iter()
            .map(|tenant| (tenant.as_str(), self.counter(tenant)))
            .min_by(|(_, one), (_, other)| one.total_cmp(other))
    }

    fn most(&self) -> f64 {
        self.ledger.counters.values().copied().fold(0.0, f64::max)
    }
}

/// Sets the keys of tasks by their tenants' counters. The first task of a tenant has its counter as key,
/// the next ones larger keys, all within `lead`: tenants of equal counters alternate, and a tenant
/// that is more than `lead` ahead of another comes after all tasks of that one.
///
/// A running task loses its protection if its tenant is more than `lead` ahead of a waiting tenant. An
/// unprotected running task of a tenant that is not too far ahead comes directly after the first
/// waiting task, which has waited for its place, and before all others: two tasks do not swap at every
/// decision.
pub(super) fn rank(
    candidates: &mut [Candidate],
    tenant_counters: &BTreeMap<i64, TenantCounters>,
    lead: f64,
) {
    let waiting: BTreeMap<i64, f64> = tenant_counters
        .iter()
        .filter_map(|(&priority, counters)| Some((priority, counters.least_backlogged()?.1)))
        .collect();
    for candidate in candidates
        .iter_mut()
        .filter(|candidate| candidate.protected)
    {
        if let Some(least) = waiting.get(&candidate.priority) {
            candidate.protected = candidate.counter <= least + lead;
        }
    }
    candidates.sort_unstable_by(Candidate::within_priority);
    let mut tasks_of: BTreeMap<(i64, usize), f64> = BTreeMap::new();
    let mut unprotected: BTreeMap<i64, UnprotectedTasks> = BTreeMap::new();
    for candidate in candidates.iter_mut() {
        let rank = tasks_of
            .entry((candidate.priority, candidate.tenant))
            .or_default();
        *rank += 1.0;
        candidate.key = candidate.counter + lead * (1.0 - 1.0 / *rank);
        if !candidate.protected {
            let tasks = unprotected
                .entry(candidate.priority)
                .or_insert(UnprotectedTasks {
                    least: f64::INFINITY,
                    first_waiting: f64::INFINITY,
                });
            tasks.least = tasks.least.min(candidate.counter);
            if !candidate.runs {
                tasks.first_waiting = tasks.first_waiting.min(candidate.key);
            }
        }
    }
    for candidate in candidates.iter_mut() {
        if let Some(tasks) = unprotected.get(&candidate.priority)
            && candidate.runs
            && !candidate.protected
            && candidate.counter <= tasks.least + lead
        {
            candidate.key = candidate.key.min(tasks.first_waiting.next_up());
        }
    }
}

/// The unprotected tasks of a priority.
#[derive(Debug)]
struct UnprotectedTasks {
    /// Least counter of their tenants.
    least: f64,
    /// Least key of those that wait.
    first_waiting: f64,
}

/// During a placement, the tenants whose tasks are not all placed yet.
#[derive(Debug, Default)]
pub(super) struct UnplacedTenants {
    tasks: BTreeMap<(i64, usize), usize>,
    /// By priority, the least counter first. Counters are not negative, so their bits sort as they do.
    counters: BTreeMap<i64, BTreeSet<(u64, usize)>>,
    lead: f64,
}

impl UnplacedTenants {
    pub(super) fn new(candidates: &[Candidate], lead: f64) -> Self {
        let mut all = Self {
            lead,
            ..Self::default()
        };
        for candidate in candidates {
            let tasks = all
                .tasks
                .entry((candidate.priority, candidate.tenant))
                .or_default();
            *tasks += 1;
            if *tasks == 1 {
                let of_priority = all.counters.entry(candidate.priority).or_default();
                of_priority.insert(in_order(candidate));
            }
        }
        all
    }

    /// A tenant that the candidate's tenant is more than `lead` tokens ahead of, and the tokens.
    pub(super) fn over_share(&self, candidate: &Candidate) -> Option<(usize, f64)> {
        let &(bits, tenant) = self.counters.get(&candidate.priority)?.first()?;
        let ahead = candidate.counter - f64::from_bits(bits);
        (ahead > self.lead).then_some((tenant, ahead))
    }

    /// The candidate is placed, or can never be.
    pub(super) fn remove(&mut self, candidate: &Candidate) {
        if let Some(left) = self.tasks.get_mut(&(candidate.priority, candidate.tenant)) {
            *left = left.saturating_sub(1);
            if *left == 0
                && let Some(of_priority) = self.counters.get_mut(&candidate.priority)
            {
                of_priority.remove(&in_order(candidate));
            }
        }
    }
}

fn in_order(candidate: &Candidate) -> (u64, usize) {
    (candidate.counter.max(0.0).to_bits(), candidate.tenant)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenants(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn a_tenant_that_returns_is_lifted_to_the_least_of_those_that_wait() {
        let mut counters = TenantCounters::default();
        counters.set_backlogged(tenants(&["a", "b"]), true);
        counters.charge("a", 100.0);
        counters.charge("b", 70.0);
        counters.set_backlogged(tenants(&["a", "b", "new"]), true);
        assert_eq!(counters.least_backlogged(), Some(("b", 70.0)));
        assert_eq!(counters.counter("new").to_bits(), 70.0_f64.to_bits());
    }

    #[test]
    fn a_tenant_that_is_ahead_stays_ahead_when_it_returns() {
        let mut counters = TenantCounters::default();
        counters.set_backlogged(tenants(&["a", "b"]), true);
        counters.charge("a", 100.0);
        counters.set_backlogged(tenants(&["b"]), true);
        counters.charge("b", 70.0);
        counters.set_backlogged(tenants(&["a", "b"]), true);
        assert_eq!(
            (counters.counter("a"), counters.counter("b")),
            (100.0, 70.0)
        );
    }

    #[test]
    fn the_level_is_that_of_the_tenants_that_waited_until_now() {
        let mut counters = TenantCounters::default();
        counters.set_backlogged(tenants(&["a"]), true);
        counters.charge("a", 100.0);
        counters.set_backlogged(tenants(&["b"]), true);
        assert_eq!(counters.least_backlogged(), Some(("b", 100.0)));
    }

    #[test]
    fn service_while_no_tenant_waits_does_not_count() {
        let mut counters = TenantCounters::default();
        counters.charge("a", 100.0);
        counters.set_backlogged(tenants(&["a", "b"]), true);
        assert_eq!(
            (counters.counter("a"), counters.counter("b")),
            (100.0, 100.0)
        );
    }
}

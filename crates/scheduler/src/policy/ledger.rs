use std::collections::{BTreeMap, BTreeSet};

/// What the tenants of one priority have been served: all that fair sharing has to remember from
/// one run of the program to the next.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Ledger {
    /// What a tenant's counter is lifted to at least, when it becomes backlogged.
    pub level: f64,
    /// By tenant: tokens trained.
    pub counters: BTreeMap<String, f64>,
}

/// A ledger and who waits.
#[derive(Debug, Clone, Default)]
pub(super) struct Account {
    pub(super) ledger: Ledger,
    backlogged: BTreeSet<String>,
}

impl Account {
    pub(super) fn counter(&self, tenant: &str) -> f64 {
        self.ledger.counters.get(tenant).copied().unwrap_or(0.0)
    }

    pub(super) fn charge(&mut self, tenant: &str, cost: f64) {
        let counter = self.ledger.counters.entry(tenant.to_owned()).or_default();
        *counter += cost;
        if self.backlogged.is_empty() {
            // What is served while nobody waits is owed to nobody.
            self.ledger.level = self.ledger.level.max(*counter);
        }
    }

    /// Sets the tenants that wait now. With `lift`, those that did not wait before are lifted.
    pub(super) fn wait_now(&mut self, backlogged: BTreeSet<String>, lift: bool) {
        // All that train are within the bound of those that waited, and those that wait from now on
        // must not be further back than that.
        let waited = self.least_backlogged().map(|(_, least)| least);
        let nobody_waits = || backlogged.is_empty().then(|| self.most());
        let level = waited.into_iter().chain(nobody_waits());
        self.ledger.level = level.fold(self.ledger.level, f64::max);
        for tenant in backlogged.difference(&self.backlogged).filter(|_| lift) {
            let counter = self.ledger.counters.entry(tenant.clone()).or_default();
            *counter = counter.max(self.ledger.level);
        }
        self.backlogged = backlogged;
    }

    /// The tenant that is to be served next, and its counter.
    pub(super) fn least_backlogged(&self) -> Option<(&str, f64)> {
        self.backlogged
            .iter()
            .map(|tenant| (tenant.as_str(), self.counter(tenant)))
            .min_by(|(_, one), (_, other)| one.total_cmp(other))
    }

    fn most(&self) -> f64 {
        self.ledger.counters.values().copied().fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenants(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn who_returns_is_lifted_to_the_least_of_those_that_wait() {
        let mut account = Account::default();
        account.wait_now(tenants(&["a", "b"]), true);
        account.charge("a", 100.0);
        account.charge("b", 70.0);
        account.wait_now(tenants(&["a", "b", "new"]), true);
        assert_eq!(account.least_backlogged(), Some(("b", 70.0)));
        assert_eq!(account.counter("new").to_bits(), 70.0_f64.to_bits());
    }

    #[test]
    fn who_is_ahead_stays_ahead_when_it_returns() {
        let mut account = Account::default();
        account.wait_now(tenants(&["a", "b"]), true);
        account.charge("a", 100.0);
        account.wait_now(tenants(&["b"]), true);
        account.charge("b", 70.0);
        account.wait_now(tenants(&["a", "b"]), true);
        assert_eq!((account.counter("a"), account.counter("b")), (100.0, 70.0));
    }

    #[test]
    fn the_level_is_that_of_who_waited_until_now() {
        let mut account = Account::default();
        account.wait_now(tenants(&["a"]), true);
        account.charge("a", 100.0);
        account.wait_now(tenants(&["b"]), true);
        assert_eq!(account.least_backlogged(), Some(("b", 100.0)));
    }

    #[test]
    fn what_was_served_while_nobody_waited_is_owed_to_nobody() {
        let mut account = Account::default();
        account.charge("a", 100.0);
        account.wait_now(tenants(&["a", "b"]), true);
        assert_eq!((account.counter("a"), account.counter("b")), (100.0, 100.0));
    }
}

use std::collections::VecDeque;

use loraloom_scheduler::TenantCounters;

/// Seconds that a limit of requests is for.
const MINUTE: f64 = 60.0;

/// Which request starts next: the server's own policy, and those that VTC (Sheng et al., OSDI'24) is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServingPolicy {
    /// Virtual token counters, as in `serve`: of the tenants that wait the one with the least service is next.
    Vtc,
    /// First come, first served.
    Fcfs,
    /// First come, first served, and a tenant's requests above a number a minute are refused.
    Rpm,
    /// Least counter first: virtual token counters that are not lifted when a tenant returns.
    Lcf,
}

impl ServingPolicy {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Vtc, Self::Fcfs, Self::Rpm, Self::Lcf];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vtc => "vtc",
            Self::Fcfs => "fcfs",
            Self::Rpm => "rpm",
            Self::Lcf => "lcf",
        }
    }

    /// The policy of a name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.name() == name)
    }
}

/// Requests that have arrived and were not sent. The server orders those that were sent.
#[derive(Debug)]
pub(super) struct Unsent {
    policy: ServingPolicy,
    /// By tenant; in one queue unless the policy is [`ServingPolicy::Lcf`].
    queues: Vec<VecDeque<usize>>,
    counters: TenantCounters,
    /// Requests that were sent and have not ended.
    sent: usize,
    /// Requests that the server runs at a time.
    max_sequences: usize,
    /// Requests of a tenant in a minute, and when its last ones were accepted.
    rate_limit: usize,
    accepted: Vec<VecDeque<f64>>,
}

impl Unsent {
    pub(super) fn new(
        policy: ServingPolicy,
        tenants: usize,
        max_sequences: usize,
        rate_limit: usize,
    ) -> Self {
        Self {
            policy,
            queues: vec![VecDeque::new(); tenants],
            counters: TenantCounters::default(),
            sent: 0,
            max_sequences,
            rate_limit,
            accepted: vec![VecDeque::new(); tenants],
        }
    }

    /// Takes a request that arrives at `now` seconds. `false` if it is refused.
    pub(super) fn arrive(&mut self, request: usize, tenant: usize, now: f64) -> bool {
        if self.policy == ServingPolicy::Rpm {
            let accepted = &mut self.accepted[tenant];
            while accepted.front().is_some_and(|then| then + MINUTE <= now) {
                accepted.pop_front();
            }
            if accepted.len() >= self.rate_limit {
                return false;
            }
            accepted.push_back(now);
        }
        let queue = match self.policy {
            ServingPolicy::Lcf => tenant,
            _ => 0,
        };
        self.queues[queue].push_back(request);
        true
    }

    /// The request to send next.
    pub(super) fn next(&mut self) -> Option<usize> {
        let queue = match self.policy {
            ServingPolicy::Lcf if self.sent >= self.max_sequences => return None,
            ServingPolicy::Lcf => self.least()?,
            _ => 0,
        };
        let request = self.queues[queue].pop_front()?;
        self.sent += 1;
        Some(request)
    }

    /// The tenant with the least counter.
    fn least(&self) -> Option<usize> {
        let tenants = (0..self.queues.len()).filter(|&tenant| !self.queues[tenant].is_empty());
        let counter = |tenant: &usize| self.counters.counter(&tenant.to_string());
        tenants.min_by(|one, other| counter(one).total_cmp(&counter(other)))
    }

    /// Charges service to a tenant.
    pub(super) fn charge(&mut self, tenant: usize, cost: u64) {
        self.counters.charge(&tenant.to_string(), cost as f64);
    }

    /// A request that was sent has ended.
    pub(super) fn end(&mut self) {
        self.sent -= 1;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queues.iter().all(VecDeque::is_empty)
    }
}

#[cfg(test)]
mod tests {
    use super::{ServingPolicy, Unsent};

    #[test]
    fn requests_above_the_limit_of_a_minute_are_refused() {
        let mut unsent = Unsent::new(ServingPolicy::Rpm, 2, 1, 2);
        let arrivals = [
            (0, 0.0),
            (0, 1.0),
            (0, 2.0),
            (1, 2.0),
            (0, 59.0),
            (0, 60.0),
            (0, 60.5),
        ];
        let accepted: Vec<bool> = (0..)
            .zip(arrivals)
            .map(|(request, (tenant, now))| unsent.arrive(request, tenant, now))
            .collect();
        assert_eq!(accepted, [true, true, false, true, false, true, false]);
        let sent: Vec<usize> = std::iter::from_fn(|| unsent.next()).collect();
        assert_eq!(sent, [0, 1, 3, 5]);
    }

    #[test]
    fn the_least_counter_is_first_and_not_lifted() {
        let mut unsent = Unsent::new(ServingPolicy::Lcf, 2, 2, 0);
        for request in 0..6 {
            assert!(unsent.arrive(request, 0, 0.0));
        }
        assert_eq!(
            [unsent.next(), unsent.next(), unsent.next()],
            [Some(0), Some(1), None]
        );
        unsent.charge(0, 20);
        for request in 6..9 {
            unsent.arrive(request, 1, 1.0);
        }
        // All of the tenant that was away come first: it has nothing on its account.
        for expected in [6, 7, 8] {
            unsent.end();
            assert_eq!(unsent.next(), Some(expected));
            unsent.charge(1, 8);
        }
        unsent.end();
        assert_eq!((unsent.next(), unsent.is_empty()), (Some(2), false));
    }
}

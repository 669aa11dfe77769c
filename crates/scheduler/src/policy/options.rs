use crate::SchedulerError;

/// How a [`Scheduler`](crate::Scheduler) decides.
#[derive(Debug, Clone, PartialEq)]
pub struct SchedulerOptions {
    /// Who comes first among tasks of one priority, and whether others may pass a task that does
    /// not fit.
    pub policy: Policy,
    /// At most this many adapters train at a time; `None` trains all that fit.
    pub max_adapters: Option<usize>,
    /// Seconds of waiting that raise a task's class by one; `None` never raises it, and then a
    /// stream of tasks of higher priority can keep it waiting for ever.
    ///
    /// Only time spent queued or parked counts, and what has been waited is kept until the task
    /// ends. A task that is raised takes along those of its own priority that stand before it, so
    /// the order within a priority stays the policy's.
    pub aging_seconds: Option<f64>,
    /// How many waiting tasks behind one that does not fit are tried in one decision.
    pub backfill_depth: usize,
}

/// Who comes first among tasks of one priority.
#[derive(Debug, Clone, PartialEq)]
pub enum Policy {
    /// First come, first served. While a task does not fit, none behind it starts, in its class or
    /// below.
    StrictFifo,
    /// First come, first served, and a task that fits may start before one that does not, if that
    /// one's predicted start is no later for it (EASY backfilling; Lifka, 1995).
    BestEffortFifo,
    /// The tenant that has trained the fewest tokens comes first (virtual token counters;
    /// Sheng et al., OSDI 2024).
    ///
    /// A tenant's counter is the tokens its tasks have trained. There is one for each priority, as
    /// priorities do not share. A tenant is *backlogged* while a task of it waits. One that becomes
    /// backlogged has its counter lifted to the least one of those that are, so nobody saves up service
    /// by staying away.
    ///
    /// **Bound.** No task trains while its tenant's counter is more than `lead` above that of a
    /// backlogged tenant of the same priority. Hence, at every decision, the counters of two tenants
    /// that are backlogged differ by at most `lead` + I, where I is the most that one tenant's counter
    /// grows between two decisions; and over any time in which two tenants are backlogged throughout
    /// and at the same priority, what they are served differs by at most 2·(`lead` + I) tokens.
    Fair {
        /// Tokens that a tenant may be ahead of one that waits. Larger swaps tasks less often: two
        /// tenants that share one place change about every 2·`lead` tokens.
        lead: u64,
        /// Whether the counter of a tenant is lifted when it becomes backlogged. Without the lift,
        /// which is the baseline LCF of the same paper, a tenant that returns from idle is served
        /// alone until its counter has caught up, and the bound does not hold.
        lift: bool,
    },
}

impl Policy {
    /// Fair with a lead of 65,536 tokens, a few iterations of tLoRA's workload: tasks do not change
    /// places all the time.
    pub const FAIR: Self = Self::Fair {
        lead: 65_536,
        lift: true,
    };

    /// Fair without the lift: least counter first.
    pub const LEAST_COUNTER_FIRST: Self = Self::Fair {
        lead: 65_536,
        lift: false,
    };
}

impl Default for SchedulerOptions {
    fn default() -> Self {
        Self {
            policy: Policy::BestEffortFifo,
            max_adapters: None,
            aging_seconds: None,
            backfill_depth: 64,
        }
    }
}

impl SchedulerOptions {
    pub(super) fn check(&self) -> Result<(), SchedulerError> {
        if self.max_adapters == Some(0) {
            return Err(SchedulerError::NoPlaces);
        }
        if let Some(seconds) = self.aging_seconds
            && !(seconds.is_finite() && seconds > 0.0)
        {
            return Err(SchedulerError::OutOfRange {
                option: "aging_seconds",
                given: seconds.to_string(),
                wanted: "has to be positive and finite",
            });
        }
        Ok(())
    }
}

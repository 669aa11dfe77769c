use crate::SchedulerError;

/// Options of a [`Scheduler`](crate::Scheduler).
#[derive(Debug, Clone, PartialEq)]
pub struct SchedulerOptions {
    /// The order of tasks of one priority, and whether others may pass a task that does not fit.
    pub policy: Policy,
    /// Most adapters that train at a time; `None` trains all that fit.
    pub max_adapters: Option<usize>,
    /// Seconds of waiting that raise a task's class by one; `None` never raises it, and then a
    /// stream of tasks of higher priority can keep it waiting for ever.
    ///
    /// Only time spent queued or parked counts, and it counts until the task ends. A task that is raised
    /// raises the tasks of its own priority before it, so the order within a priority stays the policy's.
    pub aging_seconds: Option<f64>,
    /// Most waiting tasks behind one that does not fit that a decision tries.
    pub backfill_depth: usize,
}

/// The order of tasks of one priority.
#[derive(Debug, Clone, PartialEq)]
pub enum Policy {
    /// First come, first served. While a task does not fit, no task behind it starts, in its class or
    /// below.
    StrictFifo,
    /// First come, first served, and a task may start before an earlier one that does not fit, if it does
    /// not delay the predicted start of that one (EASY backfilling; Lifka, 1995).
    BestEffortFifo,
    /// The tenant that has trained the fewest tokens comes first (virtual token counters;
    /// Sheng et al., OSDI 2024).
    ///
    /// A tenant's counter is the tokens its tasks have trained. There is one for each priority, as
    /// priorities do not share. A tenant is *backlogged* while a task of it waits. When it becomes
    /// backlogged, its counter is lifted to the least one of those that are, so a tenant saves up no
    /// service while it is idle.
    ///
    /// **Bound.** No task trains while its tenant's counter is more than `lead` above that of a
    /// backlogged tenant of the same priority. Hence, at every decision, the counters of two tenants
    /// that are backlogged differ by at most `lead` + I, where I is the most that one tenant's counter
    /// grows between two decisions; and over any time in which two tenants are backlogged throughout
    /// and at the same priority, what they are served differs by at most 2·(`lead` + I) tokens.
    Fair {
        /// Tokens that a tenant may be ahead of one that waits. With a larger lead, tasks swap less often:
        /// two tenants that share one place swap about every 2·`lead` tokens.
        lead: u64,
        /// True if the counter of a tenant is lifted when it becomes backlogged. Without the lift,
        /// which is the baseline LCF of the same paper, a tenant that returns from idle is served
        /// alone until its counter has caught up, and the bound does not hold.
        lift: bool,
    },
}

impl Policy {
    /// Fair with a lead of 65,536 tokens: a few iterations of tLoRA's workload.
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
                option: "aging_seconds".to_owned(),
                given: seconds.to_string(),
                wanted: "must be positive and finite",
            });
        }
        Ok(())
    }
}

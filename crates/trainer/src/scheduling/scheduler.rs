use std::{collections::BTreeMap, num::NonZeroUsize};

use loraloom_config::{PolicyChoice, SchedulerConfig};
use loraloom_scheduler::{
    Budget, FairShares, GroupedRoom, GroupingOptions, Policy, SchedulerError, SchedulerOptions,
    TaskScheduler,
};

/// Tokens that a tenant may be ahead of one that waits: a few iterations of the paper's workload, so
/// that tasks do not change places all the time.
const FAIR_LEAD: u64 = 65_536;

/// The scheduler of a run, and of its plan: over so many groups that share these budgets.
pub(crate) fn task_scheduler<B: Budget>(
    config: &SchedulerConfig,
    groups: usize,
    budgets: Vec<B>,
) -> Result<TaskScheduler<GroupedRoom<B>>, SchedulerError> {
    let grouping = GroupingOptions {
        max_slowdown: config.max_slowdown,
        keep_places: true,
        ..GroupingOptions::default()
    };
    let groups = NonZeroUsize::new(groups).unwrap_or(NonZeroUsize::MIN);
    let room = GroupedRoom::shared(groups, budgets, grouping)?;
    let policy = match config.policy {
        PolicyChoice::StrictFifo => Policy::StrictFifo,
        PolicyChoice::BestEffortFifo => Policy::BestEffortFifo,
        PolicyChoice::Fair => Policy::Fair(FairShares {
            lead: FAIR_LEAD,
            shares: BTreeMap::new(),
        }),
    };
    let options = SchedulerOptions {
        policy,
        max_adapters: config.max_adapters,
        aging_seconds: config.aging,
        ..SchedulerOptions::default()
    };
    TaskScheduler::new(room, options)
}

use std::num::NonZeroUsize;

use loraloom_config::{PolicyChoice, SchedulerConfig};
use loraloom_scheduler::{
    DeviceMemory, GroupedRoom, GroupingOptions, Policy, Scheduler, SchedulerError, SchedulerOptions,
};

/// The scheduler of a run, and of its plan: over so many groups that share these devices.
pub(crate) fn scheduler(
    config: &SchedulerConfig,
    groups: usize,
    devices: Vec<DeviceMemory>,
) -> Result<Scheduler<GroupedRoom<DeviceMemory>>, SchedulerError> {
    let grouping = GroupingOptions {
        max_slowdown: config.max_slowdown,
        keep_places: true,
    };
    let groups = NonZeroUsize::new(groups).unwrap_or(NonZeroUsize::MIN);
    let room = GroupedRoom::shared(groups, devices, grouping)?;
    let policy = match config.policy {
        PolicyChoice::StrictFifo => Policy::StrictFifo,
        PolicyChoice::BestEffortFifo => Policy::BestEffortFifo,
        PolicyChoice::Fair => Policy::FAIR,
    };
    let options = SchedulerOptions {
        policy,
        max_adapters: config.max_adapters,
        aging_seconds: config.aging,
        ..SchedulerOptions::default()
    };
    Scheduler::new(room, options)
}

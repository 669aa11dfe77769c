use std::num::NonZeroUsize;

use loraloom_config::{PolicyChoice, SchedulerConfig};
use loraloom_scheduler::{
    DeviceMemory, GroupedRoom, GroupingOptions, Policy, Scheduler, SchedulerError, SchedulerOptions,
};

/// The scheduler of a run and of its plan, over `groups` groups that share these devices.
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

#[cfg(test)]
mod tests {
    use loraloom_config::{PolicyChoice, SchedulerConfig};
    use loraloom_scheduler::{
        Coefficients, DeviceMemory, Load, MemoryModel, StepTimeModel, Task, TaskId,
    };

    use super::scheduler;

    /// A task of this priority, tokens of a step, and bytes.
    fn task(id: u64, priority: i64, tokens: usize, bytes: u64) -> Task {
        Task {
            id: TaskId(id),
            name: format!("task-{id}"),
            tenant: String::new(),
            priority,
            arrival: id,
            rank: 1,
            rows_per_step: 16,
            tokens_per_step: tokens,
            total_steps: 100,
            passes_per_step: 1,
            max_parts: 16,
            load: Load {
                adapter_bytes: bytes,
                ..Load::default()
            },
        }
    }

    /// Tasks that train, with the parts of their steps, after decisions at these times. `seconds` are those of a
    /// token, if they are known before the last decision.
    fn training(
        config: &SchedulerConfig,
        tasks: &[Task],
        times: &[f64],
        seconds: Option<f64>,
    ) -> Vec<(u64, usize)> {
        let prior = Coefficients::new(0.0, 1.0, 0.0).unwrap();
        let model = MemoryModel::new(prior, 1);
        let device = DeviceMemory::new("d", 100, 0, 1.0, model).unwrap();
        let mut scheduler = scheduler(config, 1, vec![device]).unwrap();
        for task in tasks {
            scheduler.submit(task.clone(), 0.0).unwrap();
        }
        let (last, before) = times.split_last().unwrap();
        for &time in before {
            scheduler.decide(time);
        }
        if let Some(token) = seconds {
            scheduler.room_mut().use_step_times(StepTimeModel {
                token,
                ..StepTimeModel::default()
            });
        }
        let groups = scheduler.decide(*last).groups.into_iter().flatten();
        groups.map(|member| (member.task.0, member.parts)).collect()
    }

    #[test]
    fn settings_reach_the_scheduler() {
        let default = SchedulerConfig::default();
        let [fifo, strict] = [PolicyChoice::BestEffortFifo, PolicyChoice::StrictFifo];
        let of = |policy| SchedulerConfig {
            policy,
            ..default.clone()
        };
        let large_before_small = [task(1, 0, 9, 60), task(2, 0, 9, 60), task(3, 0, 9, 20)];
        let who = |config: &SchedulerConfig, tasks: &[Task], times: &[f64]| -> Vec<u64> {
            let training = training(config, tasks, times, None).into_iter();
            training.map(|(task, _)| task).collect()
        };
        assert_eq!(who(&of(fifo), &large_before_small, &[0.0]), [1, 3]);
        assert_eq!(who(&of(strict), &large_before_small, &[0.0]), [1]);

        let alone = |aging| SchedulerConfig {
            max_adapters: Some(1),
            aging,
            ..default.clone()
        };
        let of_two_priorities = [task(1, 1, 9, 1), task(2, 0, 9, 1)];
        let times = [0.0, 100.0];
        assert_eq!(who(&alone(None), &of_two_priorities, &times), [1]);
        assert_eq!(who(&alone(Some(10.0)), &of_two_priorities, &times), [2]);

        let bounded = |max_slowdown| SchedulerConfig {
            max_slowdown,
            ..default.clone()
        };
        let short_and_long = [task(1, 0, 100, 1), task(2, 0, 250, 1)];
        let whole = training(&bounded(3.0), &short_and_long, &[0.0], Some(1.0));
        assert_eq!(whole, [(1, 1), (2, 1)]);
        let spread = training(&bounded(1.2), &short_and_long, &[0.0], Some(1.0));
        assert!(spread[1].1 > 1, "{spread:?}");

        // Far beyond the bound: nobody joins then, and nobody goes.
        let very_long = [task(1, 0, 100, 1), task(2, 0, 100_000, 1)];
        let of_two = |times: &[f64]| training(&default, &very_long, times, Some(1.0)).len();
        assert_eq!(of_two(&[0.0]), 1);
        assert_eq!(of_two(&[0.0, 1.0]), 2);
    }
}

use loraloom_scheduler::{Policy, SchedulerOptions, TaskId, TaskState};
use proptest::prelude::*;

use crate::policy::{
    happenings::{CAPACITY, Happening, happenings, paces, submissions},
    room::StubRoom,
    world::{World, fair, options},
};

fn policies() -> impl Strategy<Value = Policy> {
    prop_oneof![
        Just(Policy::StrictFifo),
        Just(Policy::BestEffortFifo),
        (1..200_u64).prop_map(fair),
    ]
}

proptest! {
    #![proptest_config(crate::policy::at_least(400))]
    /// The world checks every decision: nobody is lost or runs twice, and asking again changes
    /// nothing. Neither does a measurement from which nothing follows; in fair sharing it may once
    /// or twice, as a tenant that has just begun to wait stands elsewhere in the line. With aging
    /// nobody runs out of memory here: who did is tried again when another comes later in the line.
    #[test]
    fn nobody_is_lost_and_nothing_changes_without_news(
        rounds in happenings(), pace in paces(), groups in 1..4_usize, policy in policies(),
        cap in prop::option::of(1..6_usize), aging in prop::option::of(1.0..50.0),
    ) {
        let options = SchedulerOptions {
            max_adapters: cap,
            aging_seconds: aging,
            backfill_depth: usize::MAX,
            ..options(policy.clone())
        };
        let mut world = World::new(StubRoom::new(groups, CAPACITY, pace), options);
        for round in rounds {
            let oom = |it: &&Happening| matches!(it, Happening::OutOfMemory);
            for happening in round.iter().filter(|it| aging.is_none() || !oom(it)) {
                world.happen(happening);
            }
            let mut decision = world.decide();
            if matches!(policy, Policy::Fair { .. }) {
                for _ in 0..2 {
                    world.scheduler.room_mut();
                    decision = world.decide();
                }
            }
            world.scheduler.room_mut();
            let again = world.decide();
            prop_assert!(again.admitted.is_empty(), "{again:?}");
            prop_assert!(again.parked.is_empty(), "{again:?}");
            prop_assert_eq!(again.groups, decision.groups);
        }
        // Let alone, everything that is not held ends.
        for _ in 0..20_000 {
            world.decide();
            if world.running.is_empty() {
                break;
            }
            world.train();
        }
        for &task in world.tasks.keys() {
            let state = world.state(task);
            prop_assert!(state.is_final() || state == TaskState::Paused, "{task} is {state}");
        }
    }

    /// Nobody starts while one waits that came earlier in its class, or one of a higher class.
    #[test]
    fn strict_is_first_come_first_served(
        rounds in happenings(), pace in paces(), groups in 1..4_usize,
    ) {
        let mut world =
            World::new(StubRoom::new(groups, CAPACITY, pace), options(Policy::StrictFifo));
        for round in rounds {
            for happening in &round {
                world.happen(happening);
            }
            let decision = world.decide();
            let place = |task: TaskId| {
                let task = &world.tasks[&task];
                (-task.priority, task.arrival)
            };
            let waiting = world.tasks.keys().copied().filter(|&it| world.state(it).is_waiting());
            if let Some(first) = waiting.map(place).min() {
                for admission in decision.admitted {
                    prop_assert!(place(admission.task) < first, "{}", admission.reason);
                }
            }
        }
    }

    /// The first starts in the order of arrival, in one class, are exactly that order.
    #[test]
    fn strict_starts_one_class_in_its_order(
        arrivals in prop::collection::vec((submissions(0..1), 0..4_usize), 1..40),
    ) {
        let mut world = World::new(
            StubRoom::new(2, CAPACITY, crate::policy::room::Pace::Unknown), options(Policy::StrictFifo),
        );
        let mut started = Vec::new();
        let mut rounds = arrivals.into_iter();
        loop {
            let next = rounds.next();
            let pause = next.as_ref().map_or(1, |(_, pause)| *pause);
            if let Some((arrival, _)) = &next {
                world.happen(arrival);
            }
            for _ in 0..pause {
                world.train();
                started.extend(world.decide().admitted.into_iter().map(|it| it.task));
            }
            if next.is_none() && world.running.is_empty() {
                break;
            }
        }
        let all: Vec<TaskId> = world.tasks.keys().copied().collect();
        prop_assert_eq!(started, all);
    }

    /// A task that fits if all of lower classes leave runs after one decision.
    #[test]
    fn a_higher_class_is_served_within_one_decision(
        rounds in happenings(), pace in paces(), policy in policies(), units in 1..=CAPACITY,
    ) {
        let mut world = World::new(StubRoom::new(2, CAPACITY, pace), options(policy));
        for round in rounds {
            for happening in &round {
                world.happen(happening);
            }
            world.decide();
        }
        let running = world.running.clone();
        let urgent = world.arrive(100, "urgent", units, 5);
        let decision = world.decide();
        prop_assert_eq!(world.state(urgent), TaskState::Running);
        let parked: Vec<TaskId> = decision.parked.iter().map(|it| it.task).collect();
        for parking in &decision.parked {
            prop_assert!(parking.by.is_none() || parking.by != Some(parking.task));
        }
        for task in running {
            let state = world.state(task);
            let expected = if parked.contains(&task) { TaskState::Parked } else { TaskState::Running };
            prop_assert_eq!(state, expected);
        }
    }
}

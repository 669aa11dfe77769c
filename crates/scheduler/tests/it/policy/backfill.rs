use std::collections::BTreeMap;

use loraloom_scheduler::{Policy, SchedulerOptions, TaskId, TaskState};
use proptest::prelude::*;

use crate::policy::{
    happenings::{CAPACITY, Happening, submissions},
    room::{Pace, StubRoom},
    world::{World, options},
};

fn paces() -> impl Strategy<Value = Pace> {
    prop_oneof![
        (0.1..2.0_f64, 0.0..1.0_f64).prop_map(|(base, unit)| Pace::Linear(base, unit)),
        (1.0..4.0_f64, 0.1..1.0_f64).prop_map(|(least, unit)| Pace::Flat(least, unit)),
    ]
}

proptest! {
    #![proptest_config(crate::policy::at_least(600))]
    /// Step times are exact here: a head starts by what was promised when it first did not fit.
    #[test]
    fn a_head_starts_no_later_than_its_reservation(
        rounds in prop::collection::vec((prop::collection::vec(submissions(0..1), 0..4), 0..6_usize), 1..25),
        pace in paces(), groups in 1..3_usize, cap in prop::option::of(2..8_usize),
    ) {
        let options = SchedulerOptions { max_adapters: cap, ..options(Policy::BestEffortFifo) };
        let mut world = World::new(StubRoom::new(groups, CAPACITY, pace), options);
        let mut promised: BTreeMap<TaskId, f64> = BTreeMap::new();
        let mut rounds = rounds.into_iter();
        loop {
            let next = rounds.next();
            let iterations = next.as_ref().map_or(1, |(_, iterations)| *iterations);
            for arrival in next.iter().flat_map(|(arrivals, _)| arrivals) {
                world.happen(arrival);
            }
            for _ in 0..iterations {
                for admission in world.decide().admitted {
                    if let Some(&start) = promised.get(&admission.task) {
                        prop_assert!(
                            world.now <= start + 1e-6,
                            "{} starts at {}, promised {start}", admission.task, world.now
                        );
                    }
                }
                for &task in world.tasks.keys() {
                    let start = world.predicted_start(task);
                    if let Some(start) = start {
                        promised.entry(task).or_insert(start);
                    }
                }
                world.train();
            }
            if next.is_none() && world.decide().groups.is_empty() {
                break;
            }
        }
    }
}

/// A long task of 6 units, a head of 8, and a small one of 2.
fn blocked(pace: Pace) -> (World, [TaskId; 3]) {
    let mut world = World::new(StubRoom::new(1, 8, pace), options(Policy::BestEffortFifo));
    let ids = [(6, 10), (8, 5), (2, 50)].map(|(units, steps)| world.arrive(0, "a", units, steps));
    world.decide();
    (world, ids)
}

#[test]
fn a_small_task_that_costs_nothing_runs_and_gives_way_to_the_head() {
    let (mut world, [long, head, small]) = blocked(Pace::Flat(1.0, 0.125));
    assert_eq!(world.state(small), TaskState::Running);
    assert_eq!(world.predicted_start(head), Some(10.0));
    assert_eq!(
        world.scheduler.why(head).unwrap(),
        "does not fit: 8 units, 2 left"
    );
    for _ in 0..10 {
        assert_eq!(world.state(long), TaskState::Running);
        world.train();
    }
    let decision = world.decide();
    assert_eq!(decision.parked[0].task, small);
    assert_eq!(decision.parked[0].by, Some(head));
    assert_eq!(world.state(head), TaskState::Running);
    assert!((world.now - 10.0).abs() < 1e-9);
}

#[test]
fn a_small_task_that_slows_the_blockers_waits() {
    let (world, [_, _, small]) = blocked(Pace::Linear(1.0, 0.5));
    assert_eq!(
        world.scheduler.why(small).unwrap(),
        "`adapter-1` is ahead and would start 10.0 s later with it"
    );
}

#[test]
fn while_step_times_are_unknown_all_that_fits_runs() {
    let (mut world, [_, head, small]) = blocked(Pace::Unknown);
    assert_eq!(world.state(small), TaskState::Running);
    assert_eq!(world.predicted_start(head), None);
    // Now they are known, and what was lent is taken back.
    world.scheduler.room_mut().pace = Pace::Linear(1.0, 0.5);
    let decision = world.decide();
    assert_eq!(
        (decision.parked[0].task, decision.parked[0].by),
        (small, None)
    );
}

#[test]
fn no_more_than_the_depth_are_tried() {
    let options = SchedulerOptions {
        backfill_depth: 2,
        ..options(Policy::BestEffortFifo)
    };
    let mut world = World::new(StubRoom::new(1, 8, Pace::Unknown), options);
    for units in [6, 8, 8, 8, 1] {
        world.happen(&Happening::Submit {
            priority: 0,
            tenant: 0,
            units,
            steps: 5,
        });
    }
    world.decide();
    assert_eq!(world.state(TaskId(4)), TaskState::Queued);
    assert_eq!(
        world.scheduler.why(TaskId(4)).unwrap(),
        "`adapter-1` is ahead and does not fit yet, and only 2 are tried after it"
    );
}

/// A blocker that ends makes the others faster, so they are ahead of the head's reservation: the
/// fewer steps they have left, the more a neighbour may slow each of them.
#[test]
fn steps_taken_make_room_for_a_task_that_delayed_the_head() {
    let room = StubRoom::new(1, 8, Pace::Linear(1.0, 0.25));
    let mut world = World::new(room, options(Policy::BestEffortFifo));
    let [_, short, head] =
        [(4, 10), (2, 5), (8, 5)].map(|(units, steps)| world.arrive(0, "a", units, steps));
    world.decide();
    let promised = world.predicted_start(head);
    assert_eq!(promised, Some(25.0));
    for _ in 0..5 {
        world.train();
    }
    assert_eq!(world.state(short), TaskState::Done);
    let small = world.arrive(0, "a", 3, 1);
    // With it, steps take 2.75 s: from 12.5, 14.5 and 16.5 s, five, four and three of them.
    for runs in [false, false, true] {
        world.decide();
        assert_eq!(
            world.state(small) == TaskState::Running,
            runs,
            "{}",
            world.now
        );
        if !runs {
            world.train();
        }
    }
    while world.state(head).is_waiting() {
        world.train();
        world.decide();
    }
    assert!(world.now <= 25.0, "{}", world.now);
}

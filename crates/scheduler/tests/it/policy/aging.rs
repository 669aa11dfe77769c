use loraloom_scheduler::{Policy, SchedulerOptions, TaskId, TaskState};

use crate::policy::{
    room::{Pace, StubRoom},
    world::{World, fair, options},
};

/// One place, and a task of class 2 every `every` iterations that takes 10: returns when a task of
/// class 0, there from the start, has ended.
fn flooded(policy: Policy, aging_seconds: Option<f64>, every: usize) -> Option<usize> {
    let options = SchedulerOptions {
        aging_seconds,
        ..options(policy)
    };
    let mut world = World::new(StubRoom::new(1, 1, Pace::Linear(1.0, 0.0)), options);
    world.arrive(2, "high", 1, 10);
    let low = world.arrive(0, "low", 1, 10);
    for iteration in 0..3000 {
        if iteration % every == 0 {
            world.arrive(2, "high", 1, 10);
        }
        world.decide();
        world.train();
        if world.state(low) == TaskState::Done {
            return Some(iteration);
        }
    }
    None
}

#[test]
fn without_aging_a_stream_of_higher_priority_starves_a_task() {
    for policy in [Policy::StrictFifo, Policy::BestEffortFifo, fair(100)] {
        assert_eq!(flooded(policy, None, 10), None);
    }
}

/// In front of a task of class 0 are, at most, those of class 2 that come within 3 × 100 s: the ones
/// after them have waited less by more than two classes. They take 10 s each, and come twice as fast
/// as they are served in the second case.
#[test]
fn with_aging_nobody_starves() {
    for policy in [Policy::StrictFifo, Policy::BestEffortFifo, fair(100)] {
        let ended = flooded(policy.clone(), Some(100.0), 10);
        println!("{policy:?}: as fast as served, ended after {ended:?}");
        assert!(ended.is_some_and(|ended| ended <= 300 + 20), "{ended:?}");
        let ended = flooded(policy.clone(), Some(100.0), 5);
        println!("{policy:?}: twice as fast, ended after {ended:?}");
        assert!(
            ended.is_some_and(|ended| ended <= 2 * 300 + 20),
            "{ended:?}"
        );
    }
}

#[test]
fn aging_does_not_change_the_order_within_a_priority() {
    let options = SchedulerOptions {
        aging_seconds: Some(5.0),
        ..options(Policy::StrictFifo)
    };
    let mut world = World::new(StubRoom::new(1, 1, Pace::Unknown), options);
    for _ in 0..3 {
        world.arrive(0, "a", 1, 40);
    }
    let mut started = Vec::new();
    for _ in 0..130 {
        let decision = world.decide();
        assert!(decision.parked.is_empty());
        started.extend(decision.admitted.into_iter().map(|it| it.task));
        world.train();
    }
    assert_eq!(started, [TaskId(0), TaskId(1), TaskId(2)]);
}

#[test]
fn a_task_that_never_waited_gives_way_at_once() {
    let options = SchedulerOptions {
        aging_seconds: Some(5.0),
        ..options(Policy::BestEffortFifo)
    };
    let mut world = World::new(StubRoom::new(1, 1, Pace::Unknown), options);
    let low = world.arrive(0, "a", 1, 1000);
    for _ in 0..100 {
        world.decide();
        world.train();
    }
    let high = world.arrive(1, "a", 1, 10);
    let decision = world.decide();
    assert_eq!(
        (decision.parked[0].task, decision.parked[0].by),
        (low, Some(high))
    );
}

/// A task that waited long comes back behind one that never did, and takes it along; both get
/// places, though the one that came back arrived first. The next decision still has them in that
/// order: to a third task, of a class between theirs, nobody gives way.
#[test]
fn who_was_taken_along_keeps_its_place_when_the_raised_task_has_one_too() {
    let options = SchedulerOptions {
        aging_seconds: Some(1.0),
        ..options(Policy::StrictFifo)
    };
    let mut world = World::new(StubRoom::new(1, 8, Pace::Linear(1.0, 0.0)), options);
    world.arrive(5, "a", 8, 3);
    let raised = world.arrive(0, "a", 2, 9);
    for _ in 0..3 {
        world.decide();
        world.train();
    }
    assert!(world.scheduler.waited(raised, world.now) >= Some(3.0));
    world.scheduler.pause(raised, world.now).unwrap();
    let never_waited = world.arrive(0, "a", 4, 9);
    world.decide();
    world.scheduler.resume(raised, world.now).unwrap();
    let between = world.arrive(1, "a", 4, 9);
    for _ in 0..3 {
        world.scheduler.room_mut();
        let decision = world.decide();
        assert_eq!(decision.parked, [], "{decision:?}");
        assert_eq!(world.state(never_waited), TaskState::Running);
        assert_eq!(world.state(raised), TaskState::Running);
        assert_eq!(world.state(between), TaskState::Queued);
    }
}

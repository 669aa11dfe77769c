use loraloom_scheduler::{
    OutOfMemory, Policy, Scheduler, SchedulerError, SchedulerOptions, TaskId, TaskOutcome,
    TaskState,
};

use crate::policy::{
    room::{Pace, task},
    world::{World, options, untimed},
};

fn strict(groups: usize, capacity: usize) -> World {
    World::new(untimed(groups, capacity), options(Policy::StrictFifo))
}

#[test]
fn a_task_of_higher_priority_parks_and_the_parked_one_goes_on_later() {
    let mut world = strict(1, 4);
    let low = world.arrive(0, "a", 4, 10);
    assert_eq!(
        world.decide().admitted[0].reason,
        "next in line at priority 0"
    );
    for _ in 0..3 {
        world.train();
    }
    let high = world.arrive(5, "b", 2, 2);
    let decision = world.decide();
    assert_eq!(
        (decision.parked[0].task, decision.parked[0].by),
        (low, Some(high))
    );
    assert_eq!(
        decision.parked[0].reason,
        "parked for `adapter-1` (priority 5, its own 0): does not fit: 4 units, 2 left"
    );
    assert_eq!(world.state(low), TaskState::Parked);
    world.train();
    world.train();
    let decision = world.decide();
    assert_eq!(
        decision.admitted[0].reason,
        "next in line at priority 0; resumes after step 3"
    );
    assert_eq!(world.scheduler.steps_taken(low), Some(3));
}

#[test]
fn what_can_never_fit_is_refused_with_the_numbers() {
    let mut world = strict(2, 4);
    let error = world.scheduler.submit(task(0, 0, "a", 5, 1), 0.0);
    assert_eq!(
        error.unwrap_err().to_string(),
        "`adapter-0` cannot train here even alone: 5 of 4 units"
    );
    world.arrive(0, "a", 4, 1);
    let error = world.scheduler.submit(task(0, 0, "a", 1, 1), 0.0);
    assert!(matches!(error, Err(SchedulerError::DuplicateTask { .. })));
    let error = world.scheduler.progress(TaskId(0), 1, 1).unwrap_err();
    assert_eq!(
        error.to_string(),
        "`adapter-0` is queued and cannot have taken steps"
    );
    let error = world.scheduler.finish(TaskId(9), TaskOutcome::Done, 0.0);
    assert_eq!(error, Err(SchedulerError::UnknownTask(TaskId(9))));
}

#[test]
fn options_out_of_range_are_refused() {
    let of = |options| Scheduler::new(untimed(1, 1), options).map(|_| ());
    let cap = SchedulerOptions {
        max_adapters: Some(0),
        ..SchedulerOptions::default()
    };
    assert_eq!(of(cap), Err(SchedulerError::NoPlaces));
    for seconds in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let aging = SchedulerOptions {
            aging_seconds: Some(seconds),
            ..SchedulerOptions::default()
        };
        assert!(matches!(of(aging), Err(SchedulerError::OutOfRange { .. })));
    }
}

#[test]
fn a_pause_gives_the_place_away_and_a_resume_parks_nobody() {
    let mut world = strict(1, 4);
    let first = world.arrive(0, "a", 4, 10);
    let second = world.arrive(0, "a", 4, 10);
    world.decide();
    world.scheduler.pause(first, world.now).unwrap();
    world.decide();
    assert_eq!(world.state(second), TaskState::Running);
    world.scheduler.resume(first, world.now).unwrap();
    assert!(world.decide().parked.is_empty());
    assert_eq!(world.state(first), TaskState::Parked);
    world
        .scheduler
        .finish(second, TaskOutcome::Cancelled, world.now)
        .unwrap();
    world.decide();
    assert_eq!(world.state(first), TaskState::Running);
    let error = world.scheduler.resume(first, world.now);
    assert!(matches!(
        error,
        Err(SchedulerError::IllegalTransition { .. })
    ));
}

#[test]
fn time_spent_paused_is_not_waiting() {
    let mut world = strict(1, 4);
    world.arrive(0, "a", 4, 10);
    let second = world.arrive(0, "a", 4, 10);
    world.decide();
    world.scheduler.pause(second, 5.0).unwrap();
    world.scheduler.resume(second, 105.0).unwrap();
    assert_eq!(world.state(second), TaskState::Queued);
    assert_eq!(world.scheduler.waited(second, 107.0), Some(7.0));
}

#[test]
fn out_of_memory_parks_the_newest_of_the_lowest_priority_and_does_not_try_the_same_again() {
    let mut world = strict(1, 8);
    assert_eq!(world.out_of_memory(), OutOfMemory::NobodyRuns);
    let [low, newest, high] = [0, 0, 1].map(|priority| world.arrive(priority, "a", 2, 10));
    world.decide();
    let OutOfMemory::Parked(parking) = world.out_of_memory() else {
        panic!("three ran");
    };
    assert_eq!(parking.task, newest);
    world.scheduler.room_mut();
    assert_eq!(world.decide().admitted, []);
    assert_eq!(
        world.scheduler.why(newest).unwrap(),
        "ran out of memory together with `adapter-0`, `adapter-2`; waits until one of them stops"
    );
    assert!(matches!(world.out_of_memory(), OutOfMemory::Parked(parking) if parking.task == low));
    world.decide();
    assert_eq!(world.out_of_memory(), OutOfMemory::OnlyOne(high));
    world
        .scheduler
        .finish(high, TaskOutcome::Done, world.now)
        .unwrap();
    world.decide();
    assert_eq!(world.state(low), TaskState::Running);
}

#[test]
fn who_does_not_fit_even_alone_any_more_holds_up_nobody() {
    let mut world = strict(1, 8);
    let large = world.arrive(1, "a", 8, 10);
    let small = world.arrive(0, "a", 2, 10);
    world.decide();
    world.scheduler.room_mut().capacity = 6;
    let decision = world.decide();
    assert_eq!(decision.parked[0].task, large);
    assert_eq!(world.state(small), TaskState::Running);
    assert_eq!(
        world.scheduler.why(large).unwrap(),
        "does not fit even alone: 8 of 6 units"
    );
}

#[test]
fn the_cap_is_kept() {
    let options = SchedulerOptions {
        max_adapters: Some(2),
        ..options(Policy::BestEffortFifo)
    };
    let mut world = World::new(
        crate::policy::room::StubRoom::new(1, 8, Pace::Linear(1.0, 0.0)),
        options,
    );
    for steps in [7, 9, 3, 3] {
        world.arrive(0, "a", 1, steps);
    }
    world.decide();
    assert_eq!(world.running.len(), 2);
    assert_eq!(
        world.scheduler.why(TaskId(2)).unwrap(),
        "max_adapters 2 is reached"
    );
    assert_eq!(world.predicted_start(TaskId(2)), Some(7.0));
}

use std::time::{Duration, Instant};

use loraloom_scheduler::{Policy, SchedulerOptions, TaskOutcome};

use crate::policy::{
    room::{Pace, StubRoom},
    world::{World, fair, options},
};

const QUEUED: usize = 1000;
const DECISIONS: usize = 200;

/// Decisions with 1,000 queued tasks, each after a task has ended and another has come: the median
/// and the 99th percentile. The best of five tries counts, as other processes run here as well.
fn times(policy: Policy, aging_seconds: Option<f64>) -> (Duration, Duration) {
    let options = SchedulerOptions {
        aging_seconds,
        ..options(policy)
    };
    let room = StubRoom::new(4, 64, Pace::Flat(1.0, 0.001));
    let mut world = World::new(room, options);
    let tenant = |task: usize| format!("tenant-{}", task % 100);
    for task in 0..QUEUED + 40 {
        world.arrive((task % 3) as i64, &tenant(task), 1 + task * 7 % 24, 50);
    }
    world.decide();
    let mut times = Vec::new();
    for decision in 0..DECISIONS {
        world.train();
        if let Some(&task) = world
            .running
            .iter()
            .nth(decision % world.running.len().max(1))
        {
            world
                .scheduler
                .finish(task, TaskOutcome::Cancelled, world.now)
                .unwrap();
            world.running.remove(&task);
        }
        while queued(&world) < QUEUED {
            let task = world.tasks.len();
            world.arrive((task % 3) as i64, &tenant(task), 1 + task * 7 % 24, 50);
        }
        let tries = (0..5).map(|_| {
            let mut scheduler = world.scheduler.clone();
            let start = Instant::now();
            scheduler.decide(world.now);
            start.elapsed()
        });
        times.extend(tries.min());
        let decision = world.scheduler.decide(world.now);
        let running = decision.groups.iter().flatten();
        world.running = running.map(|member| member.task).collect();
    }
    times.sort_unstable();
    (times[DECISIONS / 2], times[DECISIONS * 99 / 100])
}

fn queued(world: &World) -> usize {
    let tasks = world.tasks.keys();
    tasks
        .filter(|&&task| world.state(task).is_waiting())
        .count()
}

/// The 99th percentile is printed; only the median does not depend on what else runs here.
#[test]
fn a_decision_with_a_thousand_queued_takes_less_than_five_milliseconds() {
    let policies = [Policy::StrictFifo, Policy::BestEffortFifo, fair(1000)];
    for policy in policies {
        for aging in [None, Some(60.0)] {
            let (median, late) = times(policy.clone(), aging);
            println!("{policy:?}, aging {aging:?}: median {median:?}, 99 % {late:?}");
            if !cfg!(debug_assertions) {
                assert!(median <= Duration::from_millis(5), "{median:?}");
            }
        }
    }
}

#[test]
fn a_decision_without_news_walks_nowhere() {
    let mut world = World::new(
        StubRoom::new(4, 64, Pace::Unknown),
        options(Policy::BestEffortFifo),
    );
    for task in 0..QUEUED + 40 {
        world.arrive(0, "a", 1 + task * 7 % 24, 50);
    }
    let start = Instant::now();
    world.scheduler.decide(0.0);
    let walked = start.elapsed();
    let start = Instant::now();
    for _ in 0..100 {
        world.scheduler.decide(0.0);
    }
    let hundred = start.elapsed();
    println!(
        "a walk {walked:?}, a decision without news {:?}",
        hundred / 100
    );
    assert!(hundred < 50 * walked, "{hundred:?}, {walked:?}");
}

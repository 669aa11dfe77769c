use loraloom_scheduler::{Policy, SchedulerOptions, TaskState};
use proptest::prelude::*;

use crate::policy::{
    happenings::{CAPACITY, happenings},
    room::{Pace, StubRoom},
    world::{World, fair, options},
};

proptest! {
    /// What runs after a restart is what fits in the line's order; counters, steps and the time
    /// waited are those from before.
    #[test]
    fn a_restarted_server_goes_on(rounds in happenings(), policy in 0..3_usize) {
        let policy = [Policy::StrictFifo, Policy::BestEffortFifo, fair(60)][policy].clone();
        let options = SchedulerOptions { aging_seconds: Some(40.0), ..options(policy) };
        let mut world =
            World::new(StubRoom::new(2, CAPACITY, Pace::Unknown), options.clone());
        for round in rounds {
            for happening in &round {
                world.happen(happening);
            }
            world.decide();
        }
        let mut later = world.restarted(options);
        for (&task, it) in &world.tasks {
            let (old, new) = (world.state(task), later.state(task));
            let expected = if old == TaskState::Running { TaskState::Parked } else { old };
            prop_assert_eq!(new, expected);
            prop_assert_eq!(later.scheduler.steps_taken(task), world.scheduler.steps_taken(task));
            let waited = world.scheduler.waited(task, world.now);
            prop_assert_eq!(later.scheduler.waited(task, 0.0), waited);
            prop_assert!(later.scheduler.submit(it.clone(), 0.0).is_err());
        }
        let history = world.scheduler.history(world.now);
        prop_assert_eq!(&later.scheduler.history(0.0), &history);
        let live = world.tasks.keys().filter(|&&task| !world.state(task).is_final());
        prop_assert!(history.waited.keys().eq(live));
        let decision = later.decide();
        prop_assert_eq!(decision.groups.is_empty(), world.running.is_empty());
    }
}

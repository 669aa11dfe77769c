use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use loraloom_scheduler::{GroupedRoom, GroupingOptions, Room, StepTimeModel, Task};

use super::support::{MODEL, Random, Tokens};

const QUEUED: usize = 1000;

/// A decision as a policy makes it: everybody placed anew, 1,000 of the queue tried, regrouped.
/// Returns who was placed, and the times of the placing and of the regrouping.
fn decide(room: &mut GroupedRoom<Tokens>, tasks: &[Task]) -> (usize, Duration, Duration) {
    let mut had = BTreeMap::new();
    for (number, group) in room.groups().iter().enumerate() {
        had.extend(group.iter().map(|member| (member.task, number)));
    }
    let start = Instant::now();
    room.clear();
    let mut placed = 0;
    for task in tasks {
        let group = had.get(&task.id).copied();
        placed += usize::from(room.place(task, group).is_ok());
    }
    let placing = start.elapsed();
    let start = Instant::now();
    room.regroup();
    (placed, placing, start.elapsed())
}

#[test]
#[ignore = "measures time: run it alone, in release"]
fn a_thousand_queued_tasks_are_tried_in_five_milliseconds() {
    let options = GroupingOptions::default();
    let four = 4.try_into().expect("positive");
    let stages = |budget| GroupedRoom::shared(four, vec![Tokens(budget); 4], options);
    let devices = |count, budget| GroupedRoom::per_group(vec![Tokens(budget); count], options);
    // A pass that costs little, so that long steps are refused beside short ones.
    let light = StepTimeModel {
        pass: 0.002,
        ..MODEL
    };
    for (name, model, longest) in [("memory", MODEL, 1024), ("slowdown", light, 32_768)] {
        for (kind, room) in [
            ("4 stages of 100,000 tokens", stages(100_000)),
            ("4 stages of 16,000 tokens", stages(16_000)),
            ("4 devices of 100,000 tokens", devices(4, 100_000)),
            ("64 devices of 16,000 tokens", devices(64, 16_000)),
        ] {
            let mut room = room.expect("usable options");
            room.use_step_times(model);
            let mut random = Random(7);
            // Those that fit, and as many as are to be queued.
            let mut tasks: Vec<Task> = Vec::new();
            let mut waiting = 0;
            while waiting < QUEUED {
                let task = random.task(tasks.len() as u64, longest);
                waiting += usize::from(room.place(&task, None).is_err());
                tasks.push(task);
            }
            let mut best = (Duration::MAX, Duration::MAX);
            let mut placed = 0;
            for round in 0..30 {
                // One ends, so that there is something to decide, and another comes.
                let running = room.groups().concat();
                let ended = running[random.below(running.len())].task;
                tasks.retain(|task| task.id != ended);
                tasks.push(random.task(1_000_000 + round, longest));
                let (count, placing, regrouping) = decide(&mut room, &tasks);
                placed = count;
                best = (best.0.min(placing), best.1.min(regrouping));
            }
            let waiting = tasks.len() - placed;
            println!(
                "{kind}, short of {name}: {placed} run, {waiting} wait, {:?} to place, {:?} to \
                 regroup",
                best.0, best.1
            );
            let bound = Duration::from_millis(5);
            assert!(cfg!(debug_assertions) || best.0 <= bound, "{best:?}");
        }
    }
}

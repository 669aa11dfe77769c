use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use loraloom_scheduler::{GroupedRoom, GroupingOptions, Room, Task};

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
    room.regroup();
    (placed, placing, start.elapsed() - placing)
}

#[test]
fn a_thousand_queued_tasks_are_tried_in_five_milliseconds() {
    let options = GroupingOptions::default();
    let four = 4.try_into().expect("positive");
    let rooms = |budget| {
        [
            (
                "4 stages",
                GroupedRoom::shared(four, vec![Tokens(budget); 4], options),
            ),
            (
                "4 devices",
                GroupedRoom::per_group(vec![Tokens(budget); 4], options),
            ),
            (
                "64 devices",
                GroupedRoom::per_group(vec![Tokens(budget); 64], options),
            ),
        ]
    };
    for (rows, budget) in [(8, 100_000), (8, 16_000), (1, 16_000)] {
        for (kind, room) in rooms(budget) {
            let mut room = room.expect("usable options");
            room.use_step_times(MODEL);
            let mut random = Random(7);
            // Those that fit, and as many as are to be queued.
            let mut tasks: Vec<Task> = Vec::new();
            let mut running = Vec::new();
            while tasks.len() - running.len() < QUEUED {
                let mut task = random.task(tasks.len() as u64);
                task.rows_per_step = task.rows_per_step.min(rows);
                if room.place(&task, None).is_ok() {
                    running.push(task.id);
                }
                tasks.push(task);
            }
            let mut best = (Duration::MAX, Duration::MAX);
            let mut placed = 0;
            for ended in running.iter().take(10) {
                // One ends, so that there is something to decide.
                tasks.retain(|task| task.id != *ended);
                let (count, placing, regrouping) = decide(&mut room, &tasks);
                placed = count;
                best = (best.0.min(placing), best.1.min(regrouping));
            }
            println!(
                "{kind}, {budget} tokens, {rows} rows: {placed} run, {} wait, {:?} to place, {:?} \
                 to regroup",
                tasks.len() - placed,
                best.0,
                best.1
            );
        }
    }
}

use std::time::{Duration, Instant};

use loraloom_scheduler::{GroupedRoom, GroupingOptions, Room, Task, TaskId};

use super::support::{MODEL, Random, Tokens};

const QUEUED: u64 = 1000;

/// A decision as a policy makes it: everybody placed anew, 1,000 of the queue tried, regrouped.
/// Returns who was placed, and the times of the placing and of the regrouping.
fn decide(room: &mut GroupedRoom<Tokens>, tasks: &[Task]) -> (usize, Duration, Duration) {
    let mut had = vec![None; tasks.len()];
    for (number, group) in room.groups().iter().enumerate() {
        for member in group {
            had[member.task.0 as usize] = Some(number);
        }
    }
    let start = Instant::now();
    room.clear();
    let places = tasks.iter().zip(&had);
    let placed = places
        .filter(|(task, had)| room.place(task, **had).is_ok())
        .count();
    let placing = start.elapsed();
    room.regroup();
    (placed, placing, start.elapsed() - placing)
}

#[test]
fn a_thousand_queued_tasks_are_tried_in_five_milliseconds() {
    let options = GroupingOptions::default();
    let four = 4.try_into().expect("positive");
    for (name, budget) in [("by slowdown", u64::MAX), ("by memory", 60_000)] {
        let rooms = [
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
        ];
        for (kind, room) in rooms {
            let mut room = room.expect("usable options");
            room.use_step_times(MODEL);
            let mut random = Random(7);
            let mut tasks: Vec<Task> = (0..QUEUED + 200).map(|id| random.task(id)).collect();
            if budget == u64::MAX {
                // Steps of a single row, so that long ones are refused beside short ones.
                for task in &mut tasks {
                    task.rows_per_step = 1 + task.rows_per_step % 2;
                }
            }
            decide(&mut room, &tasks);
            let mut best = (Duration::MAX, Duration::MAX);
            let mut placed = 0;
            for round in 0..20 {
                // One ends, so that there is something to decide.
                tasks.retain(|task| task.id != TaskId(round));
                tasks
                    .iter_mut()
                    .enumerate()
                    .for_each(|(i, task)| task.id = TaskId(i as u64));
                let (count, placing, regrouping) = decide(&mut room, &tasks);
                placed = count;
                best = (best.0.min(placing), best.1.min(regrouping));
            }
            println!(
                "{kind}, refused {name}: {placed} of {} placed, {:?} to place, {:?} to regroup",
                tasks.len(),
                best.0,
                best.1
            );
        }
    }
}

use std::{collections::BTreeMap, num::NonZeroUsize};

use loraloom_scheduler::{GroupedRoom, GroupingOptions, Room, StepTimeModel, Task, TaskId};
use proptest::{collection::vec, prelude::*, sample::Index};

use super::{
    reference::{Devices, Group, with_tasks},
    support::{MODEL, Tokens, task},
};

/// Tasks come and go between two decisions.
#[derive(Debug, Clone)]
enum News {
    Comes {
        rank: usize,
        rows: usize,
        length: usize,
        passes: usize,
        priority: i64,
    },
    Ends(Index),
}

#[derive(Debug, Clone)]
struct World {
    pipeline: bool,
    groups: usize,
    budget: u64,
    known: bool,
    model: StepTimeModel,
    options: GroupingOptions,
    rounds: Vec<Vec<News>>,
}

fn worlds() -> impl Strategy<Value = World> {
    let length = prop_oneof![64..128_usize, 64..1024_usize, 1000..2048_usize];
    let rank = prop::sample::select(vec![2_usize, 8, 16, 64]);
    let passes = prop_oneof![2 => Just(1), 1 => 2..9_usize];
    let comes = (rank, 1..17_usize, length, passes, -1..=1_i64).prop_map(
        |(rank, rows, length, passes, priority)| News::Comes {
            rank,
            rows,
            length,
            passes,
            priority,
        },
    );
    let news = prop_oneof![3 => comes, 2 => any::<Index>().prop_map(News::Ends)];
    let options = prop_oneof![Just(1.0), Just(1.2), Just(2.0), Just(f64::INFINITY)].prop_map(
        |max_slowdown| GroupingOptions {
            max_slowdown,
            ..GroupingOptions::default()
        },
    );
    let pass = prop_oneof![Just(0.0), 0.0..0.01_f64, 0.0..0.2_f64];
    let model = (pass, 0.0..0.01_f64).prop_map(|(pass, segment)| StepTimeModel {
        pass,
        segment,
        ..MODEL
    });
    (
        any::<bool>(),
        1..5_usize,
        prop_oneof![Just(u64::MAX), 4000..60_000_u64],
        prop::bool::weighted(0.8),
        model,
        options,
        vec(vec(news, 0..6), 1..12),
    )
        .prop_map(
            |(pipeline, groups, budget, known, model, options, rounds)| World {
                pipeline,
                groups,
                budget,
                known,
                model,
                options,
                rounds,
            },
        )
}

impl World {
    fn room(&self) -> GroupedRoom<Tokens> {
        let budget = Tokens(self.budget);
        let mut room = if self.pipeline {
            let groups = NonZeroUsize::new(self.groups).expect("a stage");
            GroupedRoom::shared(groups, vec![budget; self.groups], self.options)
        } else {
            GroupedRoom::per_group(vec![budget; self.groups], self.options)
        }
        .expect("usable options");
        if self.known {
            assert!(room.use_step_times(self.model));
        }
        room
    }

    fn devices(&self) -> Devices {
        Devices {
            pipeline: self.pipeline,
            model: self.model,
        }
    }
}

/// What a policy does: places everybody by rank, each with the group it had. Where tasks have moved,
/// others may find room, so it goes on until nobody moves.
fn decide(
    room: &mut GroupedRoom<Tokens>,
    tasks: &BTreeMap<TaskId, Task>,
) -> (BTreeMap<TaskId, usize>, bool) {
    let mut turns: Vec<&Task> = tasks.values().collect();
    turns.sort_by_key(|task| (-task.priority, task.arrival));
    for round in 0.. {
        assert!(round < 50, "tasks keep moving");
        let mut had = BTreeMap::new();
        for (number, group) in room.groups().iter().enumerate() {
            had.extend(group.iter().map(|member| (member.task, number)));
        }
        room.clear();
        let mut placed = BTreeMap::new();
        for task in &turns {
            if let Ok(group) = room.place(task, had.get(&task.id).copied()) {
                placed.insert(task.id, group);
            }
        }
        if room.regroup().is_none() {
            return (placed, round > 0);
        }
    }
    unreachable!("the loop ends by itself")
}

/// Tokens that the group's batch asks memory for.
fn tokens_of(group: &Group<'_>) -> u64 {
    group.iter().map(|(task, _)| task.load.tokens).sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512.max(ProptestConfig::default().cases)))]
    #[test]
    fn whatever_comes_and_goes(world in worlds()) {
        let mut room = world.room();
        let devices = world.devices();
        let mut tasks = BTreeMap::new();
        let mut next = 0;
        for news in &world.rounds {
            for news in news {
                match news {
                    News::Comes { rank, rows, length, passes, priority } => {
                        let mut task = task(next, *rank, *rows, *length);
                        task.passes_per_step = *passes;
                        task.priority = *priority;
                        if room.admits_alone(&task).is_ok() {
                            tasks.insert(task.id, task);
                        }
                        next += 1;
                    }
                    News::Ends(index) if !tasks.is_empty() => {
                        let id = *tasks.keys().nth(index.index(tasks.len())).expect("a task");
                        tasks.remove(&id);
                    }
                    News::Ends(_) => {}
                }
            }
            let (placed, _) = decide(&mut room, &tasks);
            let decided = room.groups();
            prop_assert!(decided.len() <= world.groups);

            // The step with the least work is whole, and a split lowers the largest slowdown. Steps
            // of a pipeline's longest group are also split to fill its stages.
            for group in with_tasks(&room, &tasks).iter().filter(|group| group.len() > 1) {
                let tokens = |&(task, _): &(&Task, usize)| task.tokens_per_step;
                let least = group.iter().map(tokens).min();
                let split = group.iter().filter(|(_, parts)| *parts > 1);
                prop_assert!(split.clone().all(|member| Some(tokens(member)) > least));
                let whole: Group<'_> = group.iter().map(|&(task, _)| (task, 1)).collect();
                let worst = |group: &Group<'_>| devices.worst_slowdown(std::slice::from_ref(group));
                if split.count() > 0 && !world.pipeline {
                    prop_assert!(worst(group) < worst(&whole), "{group:?}");
                }
            }

            // Every placed task once, where it was said to be.
            let mut seen: Vec<TaskId> = decided.iter().flatten().map(|m| m.task).collect();
            seen.sort_unstable();
            prop_assert_eq!(&seen, &placed.keys().copied().collect::<Vec<_>>());
            for (id, group) in &placed {
                prop_assert!(decided[*group].iter().any(|member| member.task == *id));
            }

            // No empty group beside one that has several.
            let sizes: Vec<usize> = decided.iter().map(Vec::len).collect();
            let empty = sizes.contains(&0) || sizes.len() < world.groups;
            prop_assert!(!(empty && sizes.iter().any(|&size| size > 1)), "{:?}", sizes);

            let groups = with_tasks(&room, &tasks);
            let tokens: Vec<u64> = groups.iter().map(tokens_of).collect();
            let asked = if world.pipeline { tokens.iter().sum() } else {
                tokens.into_iter().max().unwrap_or(0)
            };
            prop_assert!(asked <= world.budget);
            let members = groups.iter().enumerate();
            for (number, (task, parts)) in
                members.flat_map(|(number, group)| group.iter().map(move |m| (number, *m)))
            {
                prop_assert!(parts.is_power_of_two() && parts <= task.rows_per_step);
                let said = room.seconds_per_step(task.id);
                if !world.known {
                    prop_assert_eq!((parts, said), (1, None));
                    continue;
                }
                let expected = parts as f64 * devices.iteration(&groups, world.groups, number);
                let said = said.expect("it is known");
                prop_assert!((said - expected).abs() <= 1e-9 * expected, "{said} {expected}");
            }
            if world.known {
                prop_assert!(devices.worst_slowdown(&groups) <= world.options.max_slowdown + 1e-6);
                prop_assert!(devices.beats_time_sharing(&groups, world.groups));
            }

            // Asking again changes nothing.
            let (again, moved) = decide(&mut room, &tasks);
            prop_assert!(!moved);
            prop_assert_eq!(again, placed);
            prop_assert_eq!(room.groups(), decided);
        }
    }

    #[test]
    fn tasks_that_keep_their_room_move_only_for_the_least_gain(
        shapes in vec((1..9_usize, 64..1024_usize), 2..12),
        groups in 1..4_usize, pipeline in any::<bool>(),
        mut places in vec(0..3_usize, 12),
    ) {
        // Nobody is refused, and every group has a task.
        let options = GroupingOptions { max_slowdown: f64::INFINITY, ..GroupingOptions::default() };
        let groups = groups.min(shapes.len());
        for (task, place) in places.iter_mut().enumerate() {
            *place = if task < groups { task } else { *place % groups };
        }
        let mut room = if pipeline {
            super::support::pipeline(groups, options)
        } else {
            super::support::devices(groups, options)
        };
        room.use_step_times(MODEL);
        let mut tasks = BTreeMap::new();
        for (id, &(rows, length)) in shapes.iter().enumerate() {
            let task = task(id as u64, 8, rows, length);
            room.place(&task, Some(places[id])).expect("no limits");
            tasks.insert(task.id, task);
        }
        let devices = Devices { pipeline, model: MODEL };
        let rate = |room: &GroupedRoom<Tokens>| {
            devices.tokens_per_second(&with_tasks(room, &tasks), groups)
        };
        let (before, layout) = (rate(&room), room.groups());
        let reason = room.regroup();
        let after = rate(&room);
        if reason.is_some() {
            prop_assert!(after >= 1.05 * before * (1.0 - 1e-12), "{} {}", before, after);
        } else {
            prop_assert_eq!(room.groups(), layout);
        }
        prop_assert_eq!(room.regroup(), None);
    }
}

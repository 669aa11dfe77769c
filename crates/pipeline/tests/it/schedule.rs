//! What every schedule's lists promise, for any number of stages, groups and micro-batches.

use std::collections::{BTreeMap, BTreeSet};

use loraloom_pipeline::schedule::{Operation, PipelineShape, Schedule, operations};
use proptest::{collection::vec, prelude::*};

const ALL: [Schedule; 3] = [Schedule::LoraPp, Schedule::OneFOneB, Schedule::GPipe];

fn shape() -> impl Strategy<Value = PipelineShape> {
    (1..9usize, 1..9usize, 1..6usize, 1..5usize, 0..4usize).prop_map(
        |(stages, groups, microbatches, iterations, extra)| {
            PipelineShape::new(stages, groups, microbatches, iterations).with_extra_warmup(extra)
        },
    )
}

fn forward(group: usize, microbatch: usize, iteration: usize) -> Operation {
    Operation::Forward {
        group,
        microbatch,
        iteration,
    }
}

fn backward(group: usize, microbatch: usize, iteration: usize) -> Operation {
    Operation::Backward {
        group,
        microbatch,
        iteration,
    }
}

/// What must have been done, as `(stage, operation)`, before a stage may do this.
fn needs(stage: usize, operation: Operation, shape: &PipelineShape) -> Vec<(usize, Operation)> {
    match operation {
        Operation::Forward {
            group,
            microbatch,
            iteration,
        } => {
            let below = stage.checked_sub(1);
            let input = below.map(|below| (below, forward(group, microbatch, iteration)));
            let earlier = iteration.checked_sub(1);
            let update = earlier.map(|iteration| (stage, Operation::Step { group, iteration }));
            input.into_iter().chain(update).collect()
        }
        Operation::Backward {
            group,
            microbatch,
            iteration,
        } => {
            let above = (stage + 1 < shape.stages).then_some(stage + 1);
            let gradient = above.map(|above| (above, backward(group, microbatch, iteration)));
            let activations = (stage, forward(group, microbatch, iteration));
            gradient.into_iter().chain([activations]).collect()
        }
        Operation::Step { group, iteration } => (0..shape.microbatches)
            .map(|microbatch| (stage, backward(group, microbatch, iteration)))
            .collect(),
    }
}

/// The most activations a stage may hold.
fn bound(schedule: Schedule, shape: &PipelineShape, stage: usize) -> usize {
    match schedule {
        Schedule::GPipe => shape.microbatches,
        _ => (shape.stages - 1 - stage) * (1 + shape.extra_warmup) + 1,
    }
}

proptest! {
    #[test]
    fn every_pass_is_listed_once(shape in shape()) {
        let mut expected = BTreeSet::new();
        for iteration in 0..shape.iterations {
            for group in 0..shape.groups {
                expected.insert(Operation::Step { group, iteration });
                for microbatch in 0..shape.microbatches {
                    expected.insert(forward(group, microbatch, iteration));
                    expected.insert(backward(group, microbatch, iteration));
                }
            }
        }
        for schedule in ALL {
            let lists = operations(schedule, &shape);
            prop_assert_eq!(lists.len(), shape.stages);
            for list in lists {
                prop_assert_eq!(list.len(), expected.len(), "{:?}", schedule);
                prop_assert_eq!(&list.into_iter().collect::<BTreeSet<_>>(), &expected);
            }
        }
    }

    /// Stages that run in any order relative to each other, each in its list's, never get stuck.
    #[test]
    fn no_interleaving_of_stages_deadlocks(
        shape in shape(),
        visits in vec(any::<prop::sample::Index>(), 1..64),
    ) {
        for schedule in ALL {
            let lists = operations(schedule, &shape);
            let mut done = BTreeSet::new();
            let mut places = vec![0; shape.stages];
            let mut visits = visits.iter().cycle();
            while places.iter().zip(&lists).any(|(place, list)| *place < list.len()) {
                let ready: Vec<usize> = (0..shape.stages)
                    .filter(|&stage| {
                        lists[stage].get(places[stage]).is_some_and(|&operation| {
                            let needed = needs(stage, operation, &shape);
                            needed.iter().all(|need| done.contains(need))
                        })
                    })
                    .collect();
                prop_assert!(!ready.is_empty(), "{:?} is stuck at {:?}", schedule, places);
                let stage = *visits.next().unwrap().get(&ready);
                done.insert((stage, lists[stage][places[stage]]));
                places[stage] += 1;
            }
        }
    }

    #[test]
    fn few_activations_are_held(shape in shape()) {
        for schedule in ALL {
            for (stage, list) in operations(schedule, &shape).iter().enumerate() {
                let mut held = 0;
                let mut most = 0;
                for operation in list {
                    match operation {
                        Operation::Forward { .. } => held += 1,
                        Operation::Backward { .. } => held -= 1,
                        Operation::Step { .. } => {}
                    }
                    most = most.max(held);
                }
                prop_assert_eq!(held, 0);
                let bound = bound(schedule, &shape, stage);
                prop_assert!(most <= bound, "{:?}: {} on stage {}", schedule, most, stage);
                if shape.extra_warmup == 0 && schedule != Schedule::GPipe {
                    prop_assert!(most <= shape.stages);
                }
            }
        }
    }

    /// A step comes right after the last backward pass it waits for; the group's next forward pass
    /// comes later.
    #[test]
    fn steps_lie_between_their_passes(shape in shape()) {
        for schedule in ALL {
            for list in operations(schedule, &shape) {
                let places: BTreeMap<_, _> = list.iter().zip(0..).collect();
                for iteration in 0..shape.iterations {
                    for group in 0..shape.groups {
                        let place = places[&Operation::Step { group, iteration }];
                        for microbatch in 0..shape.microbatches {
                            prop_assert!(places[&backward(group, microbatch, iteration)] < place);
                            if let Some(next) = places.get(&forward(group, microbatch, iteration + 1)) {
                                prop_assert!(*next > place);
                            }
                        }
                        let last = backward(group, shape.microbatches - 1, iteration);
                        prop_assert_eq!(list[place - 1], last);
                    }
                }
            }
        }
    }

    /// Gradients are summed in this order.
    #[test]
    fn all_schedules_go_backward_in_the_same_order(shape in shape()) {
        for schedule in ALL {
            for list in operations(schedule, &shape) {
                let mut orders: BTreeMap<_, Vec<usize>> = BTreeMap::new();
                for operation in list {
                    if let Operation::Backward { group, microbatch, iteration } = operation {
                        orders.entry((group, iteration)).or_default().push(microbatch);
                    }
                }
                let ascending: Vec<usize> = (0..shape.microbatches).collect();
                prop_assert!(orders.values().all(|order| *order == ascending));
            }
        }
    }

    #[test]
    fn the_last_stage_turns_at_once(shape in shape()) {
        for schedule in [Schedule::LoraPp, Schedule::OneFOneB] {
            let lists = operations(schedule, &shape);
            let list = lists.last().unwrap();
            for (place, operation) in list.iter().enumerate() {
                if let Operation::Forward { group, microbatch, iteration } = *operation {
                    prop_assert_eq!(list[place + 1], backward(group, microbatch, iteration));
                }
            }
        }
    }

    #[test]
    fn baselines_run_one_group_after_another(shape in shape()) {
        for schedule in [Schedule::OneFOneB, Schedule::GPipe] {
            for list in operations(schedule, &shape) {
                let mut turns: Vec<_> = list.iter().map(|next| (next.iteration(), next.group())).collect();
                turns.dedup();
                prop_assert_eq!(turns.len(), shape.iterations * shape.groups);
                prop_assert!(turns.is_sorted());
            }
        }
    }

    #[test]
    fn schedules_meet_where_there_is_nothing_to_interleave(shape in shape()) {
        let shape = PipelineShape { extra_warmup: 0, ..shape };
        let alone = PipelineShape { groups: 1, ..shape };
        let one_f_one_b = operations(Schedule::OneFOneB, &alone);
        prop_assert_eq!(&operations(Schedule::LoraPp, &alone), &one_f_one_b);
        let single = PipelineShape { microbatches: 1, ..shape };
        let one_f_one_b = operations(Schedule::OneFOneB, &single);
        prop_assert_eq!(&operations(Schedule::GPipe, &single), &one_f_one_b);
    }
}

#[test]
fn a_full_pipeline_alternates() {
    let lists = operations(Schedule::LoraPp, &PipelineShape::new(2, 2, 1, 2));
    let step = |group, iteration| Operation::Step { group, iteration };
    let first = [
        [forward(0, 0, 0), forward(1, 0, 0)].as_slice(),
        &[backward(0, 0, 0), step(0, 0), forward(0, 0, 1)],
        &[backward(1, 0, 0), step(1, 0), forward(1, 0, 1)],
        &[backward(0, 0, 1), step(0, 1), backward(1, 0, 1), step(1, 1)],
    ]
    .concat();
    assert_eq!(lists[0], first);
    let last = [
        [forward(0, 0, 0), backward(0, 0, 0), step(0, 0)],
        [forward(1, 0, 0), backward(1, 0, 0), step(1, 0)],
        [forward(0, 0, 1), backward(0, 0, 1), step(0, 1)],
        [forward(1, 0, 1), backward(1, 0, 1), step(1, 1)],
    ]
    .concat();
    assert_eq!(lists[1], last);
}

#[test]
fn nothing_to_do_is_an_empty_list() {
    for schedule in ALL {
        assert!(operations(schedule, &PipelineShape::new(0, 2, 2, 2)).is_empty());
        for shape in [
            PipelineShape::new(3, 0, 2, 2),
            PipelineShape::new(3, 2, 0, 2),
            PipelineShape::new(3, 2, 2, 0),
        ] {
            assert_eq!(operations(schedule, &shape), vec![Vec::new(); 3]);
        }
    }
}

#[test]
fn names_are_those_of_the_configuration() {
    let names = ALL.map(|schedule| serde_json::to_string(&schedule).unwrap());
    assert_eq!(names, [r#""lorapp""#, r#""one_f_one_b""#, r#""gpipe""#]);
    for (schedule, name) in ALL.iter().zip(names) {
        assert_eq!(serde_json::from_str::<Schedule>(&name).unwrap(), *schedule);
    }
}

//! The executor over stages that only sleep: order, waiting, stopping and failing, without a model.

mod sleeper;

use std::time::Duration;

use batchlora::Segments;
use loraloom_model::{Sequences, Targets};
use loraloom_pipeline::{
    Microbatch, PipelineError,
    executor::{GroupPlan, IterationOutcome, IterationPlan, IterationPlanner, Passes, run},
    schedule::{PipelineShape, Schedule},
    simulate::bubble_lorapp,
};
use sleeper::{Done, done, sleepers};

/// The same empty plan for every iteration.
struct Plans {
    groups: usize,
    microbatches: usize,
    /// Begin no iteration from this one on.
    end: usize,
    booked: Vec<IterationOutcome>,
}

fn microbatch() -> Microbatch {
    Microbatch {
        ids: vec![0],
        sequences: Sequences::from_lengths([1]),
        cached: None,
        rope_lengths: vec![1],
        segments: Segments::new(1, Vec::new()).expect("no segment is wrong"),
        draws: None,
        targets: Targets::default(),
    }
}

impl IterationPlanner for Plans {
    type Error = PipelineError;

    fn plan(&mut self, iteration: usize) -> Result<Option<IterationPlan>, PipelineError> {
        let group = |_| GroupPlan {
            microbatches: (0..self.microbatches).map(|_| microbatch()).collect(),
            updates: vec![None],
        };
        let groups = (0..self.groups).map(group).collect();
        Ok((iteration < self.end).then_some(IterationPlan { groups }))
    }

    fn book(&mut self, outcome: IterationOutcome) -> Result<bool, PipelineError> {
        assert_eq!(outcome.iteration, self.booked.len());
        self.booked.push(outcome);
        Ok(true)
    }
}

fn passes(schedule: Schedule, shape: [usize; 4]) -> Passes {
    let [stages, groups, microbatches, iterations] = shape;
    Passes {
        schedule,
        shape: PipelineShape::new(stages, groups, microbatches, iterations),
    }
}

fn plans(groups: usize, microbatches: usize) -> Plans {
    Plans {
        groups,
        microbatches,
        end: usize::MAX,
        booked: Vec::new(),
    }
}

const SCHEDULES: [Schedule; 3] = [Schedule::LoraPp, Schedule::OneFOneB, Schedule::GPipe];

/// With and without threads, every schedule: the same work in the same order with the same messages; every
/// stage's squares reach the first, their total reaches all, and no group's forward pass comes
/// before its optimizer step. One stage that cannot have a thread keeps all from having one.
#[test]
fn threads_do_what_one_thread_does() {
    for schedule in SCHEDULES {
        for [stages, groups, microbatches, extra] in [
            [1, 1, 1, 0],
            [1, 3, 2, 0],
            [2, 2, 1, 0],
            [2, 4, 1, 2],
            [2, 2, 1, 3],
            [3, 2, 3, 0],
            [3, 6, 2, 1],
            [4, 4, 1, 0],
        ] {
            let shape = [stages, groups, microbatches, 5];
            let run_with = |threads| {
                let mut stages = sleepers(stages, Duration::from_micros(200));
                stages[0].has_thread = threads;
                let mut plans = plans(groups, microbatches);
                let mut passes = passes(schedule, shape);
                passes.shape.extra_warmup = extra;
                run(&mut stages, &passes, &mut plans).unwrap();
                assert_eq!(plans.booked.len(), 5);
                (stages, plans)
            };
            let (threads, booked) = run_with(true);
            let (one, _) = run_with(false);
            for (threads, one) in threads.iter().zip(&one) {
                assert_eq!(done(threads), done(one), "{schedule:?} {shape:?}");
                assert_eq!(threads.in_flight, 0);
                let limit = match schedule {
                    Schedule::GPipe => microbatches,
                    _ => (stages - 1 - threads.index) * (1 + extra) + 1,
                };
                assert!(threads.most_in_flight <= limit, "{schedule:?} {shape:?}");
                for group in 0..groups {
                    let of_group = done(threads).into_iter().filter_map(|done| match done {
                        Done::Forward(at, hidden) if at.group == group => {
                            assert!((hidden - threads.index as f32).abs() < 0.5);
                            (at.microbatch == 0).then_some('f')
                        }
                        Done::Update(of, squares) if of == group => {
                            assert!((squares - stages as f32).abs() < 0.5);
                            Some('u')
                        }
                        _ => None,
                    });
                    assert_eq!(of_group.collect::<String>(), "fu".repeat(5));
                }
            }
            for outcome in &booked.booked {
                for group in &outcome.groups {
                    assert_eq!(group.losses, vec![vec![stages as f32]; microbatches]);
                    assert_eq!(group.squared_norms, [stages as f32]);
                }
            }
        }
    }
}

/// Places that a group has no micro-batch for stay empty, on all stages.
#[test]
fn a_group_with_fewer_micro_batches_leaves_places_empty() {
    struct Fewer(Plans);
    impl IterationPlanner for Fewer {
        type Error = PipelineError;
        fn plan(&mut self, iteration: usize) -> Result<Option<IterationPlan>, PipelineError> {
            let plan = self.0.plan(iteration)?;
            Ok(plan.map(|mut plan| {
                plan.groups[1].microbatches.truncate(1);
                plan
            }))
        }
        fn book(&mut self, outcome: IterationOutcome) -> Result<bool, PipelineError> {
            self.0.book(outcome)
        }
    }
    let mut stages = sleepers(3, Duration::ZERO);
    let mut plans = Fewer(plans(2, 3));
    let passes = passes(Schedule::LoraPp, [3, 2, 3, 4]);
    run(&mut stages, &passes, &mut plans).unwrap();
    for outcome in &plans.0.booked {
        assert_eq!(outcome.groups[0].losses.len(), 3);
        assert_eq!(outcome.groups[1].losses.len(), 1);
    }
}

/// No iteration begins after the last one that there is a plan for; those that have begun end.
#[test]
fn a_run_ends_where_plans_end() {
    for threads in [true, false] {
        let mut stages = sleepers(3, Duration::from_micros(100));
        for stage in &mut stages {
            stage.has_thread = threads;
        }
        let mut plans = Plans {
            end: 7,
            ..plans(3, 1)
        };
        run(
            &mut stages,
            &passes(Schedule::LoraPp, [3, 3, 1, 100]),
            &mut plans,
        )
        .unwrap();
        assert_eq!(plans.booked.len(), 7);
        for stage in &stages {
            let updates = done(stage).into_iter();
            let updates = updates.filter(|done| matches!(done, Done::Update(..)));
            assert_eq!(updates.count(), 7 * 3);
            assert_eq!(stage.in_flight, 0);
        }
    }
}

/// A stage that fails ends the run with its own error, wherever it is, and nobody waits for ever.
#[test]
fn a_failing_stage_ends_the_run() {
    for failing in 0..4 {
        for threads in [true, false] {
            let mut stages = sleepers(4, Duration::from_micros(100));
            for stage in &mut stages {
                stage.has_thread = threads;
            }
            stages[failing].fails_at = Some(9);
            let passes = passes(Schedule::LoraPp, [4, 4, 1, 50]);
            let error = run(&mut stages, &passes, &mut plans(4, 1)).unwrap_err();
            assert!(
                matches!(error, PipelineError::NoSuchGroup { group: 77, .. }),
                "{error}"
            );
        }
    }
}

#[test]
#[should_panic(expected = "a stage's device broke")]
fn a_panicking_stage_does_not_hang_the_run() {
    let mut stages = sleepers(3, Duration::from_micros(100));
    (stages[1].fails_at, stages[1].panics) = (Some(5), true);
    let passes = passes(Schedule::LoraPp, [3, 3, 1, 50]);
    let _ = run(&mut stages, &passes, &mut plans(3, 1));
}

/// A planner may fail, too.
#[test]
fn an_error_of_the_planner_ends_the_run() {
    struct Fails(Plans);
    impl IterationPlanner for Fails {
        type Error = PipelineError;
        fn plan(&mut self, iteration: usize) -> Result<Option<IterationPlan>, PipelineError> {
            self.0.plan(iteration)
        }
        fn book(&mut self, _: IterationOutcome) -> Result<bool, PipelineError> {
            Err(PipelineError::NoSuchGroup {
                group: 5,
                groups: 5,
            })
        }
    }
    let mut stages = sleepers(3, Duration::from_micros(100));
    let passes = passes(Schedule::LoraPp, [3, 3, 1, 50]);
    let error = run(&mut stages, &passes, &mut Fails(plans(3, 1))).unwrap_err();
    assert!(matches!(error, PipelineError::NoSuchGroup { group: 5, .. }));
}

/// Measured bubble of stages that sleep as long for every pass, between two iterations in the middle,
/// without filling and draining.
fn measured_bubble([stages, groups, microbatches]: [usize; 3]) -> f64 {
    let iterations = 10;
    let mut sleeping = sleepers(stages, Duration::from_millis(30));
    let mut plans = plans(groups, microbatches);
    let shape = [stages, groups, microbatches, iterations];
    let passes = passes(Schedule::LoraPp, shape);
    run(&mut sleeping, &passes, &mut plans).expect("nothing fails");
    let between = &plans.booked[3..=iterations - 3];
    let (first, last) = (&between[0], &between[between.len() - 1]);
    let seconds = last.at.duration_since(first.at).as_secs_f64();
    let busy = between[1..].iter().flat_map(|outcome| &outcome.busy);
    let busy: f64 = busy.map(|busy| busy.expect("sleep is measured")).sum();
    1.0 - busy / (seconds * stages as f64)
}

/// The bubble is that of the closed form, within five points: the executor itself costs next to
/// nothing. What else the machine does makes bubbles too, so the best of five tries counts.
#[test]
fn the_measured_bubble_is_that_of_the_closed_form() {
    for shape in [
        [2, 1, 1],
        [2, 2, 1],
        [4, 1, 1],
        [4, 2, 1],
        [4, 4, 1],
        [4, 1, 4],
    ] {
        let [stages, groups, microbatches] = shape;
        let expected = bubble_lorapp(stages, groups, microbatches);
        let mut tries = Vec::new();
        let good = (0..5).any(|_| {
            tries.push(measured_bubble(shape));
            (tries[tries.len() - 1] - expected).abs() < 0.05
        });
        println!("{shape:?}: measured {tries:.3?}, closed form {expected:.3}");
        assert!(good, "{shape:?}: {tries:.3?} instead of {expected:.3}");
    }
}

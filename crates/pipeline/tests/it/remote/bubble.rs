//! How much of their time workers wait, beside the closed forms: with workers that sleep in place of
//! computing, since two cores cannot be four devices. By hand, with nothing else running:
//!
//! ```text
//! cargo test --release --workspace --test remote -- --ignored --nocapture bubble
//! ```
#![expect(clippy::print_stdout, reason = "a measurement prints what it found")]

use std::{ops::Range, time::Duration};

use loraloom_pipeline::{
    Pipeline,
    executor::{IterationOutcome, Passes},
    remote::{Worker, WorkerOptions},
    schedule::Schedule,
    simulate::{bubble_gpipe, bubble_lorapp},
};

use crate::remote::{
    alone::done_alone,
    sleeping::Sleeping,
    support::{self, Model, adapter, controller, options, passes, training},
};

/// Far longer than what is not slept takes.
const PASS: Duration = Duration::from_millis(60);
/// Goal of the measurement; a machine that does something else meanwhile gets five tries.
const POINTS: f64 = 0.05;
const TRIES: usize = 5;

#[test]
#[ignore = "needs a machine that does nothing else"]
fn two_workers_wait_as_long_as_the_closed_form_says() {
    if done_alone() {
        return;
    }
    measure(&[0..2, 2..4]);
}

#[test]
#[ignore = "needs a machine that does nothing else"]
fn four_workers_wait_as_long_as_the_closed_form_says() {
    if done_alone() {
        return;
    }
    measure(&[0..1, 1..2, 2..3, 3..4]);
}

fn measure(cut: &[Range<usize>]) {
    let model = Model::open(&support::model());
    let stages = cut.len();
    for (schedule, expected) in [
        (Schedule::LoraPp, bubble_lorapp(stages, stages, 1)),
        (Schedule::OneFOneB, bubble_gpipe(stages, 1)),
        (Schedule::GPipe, bubble_gpipe(stages, 1)),
    ] {
        let mut tries = Vec::new();
        let is_close = |found: &f64| (found - expected).abs() <= POINTS;
        while tries.len() < TRIES && !tries.last().is_some_and(is_close) {
            tries.push(bubble(&model, cut, schedule));
        }
        println!("{stages} workers, {schedule:?}: {tries:.3?}, closed form {expected:.3}");
        assert!(
            tries.last().is_some_and(is_close),
            "{stages} workers, {schedule:?}: {tries:.3?} instead of {expected:.3}"
        );
    }
}

fn bubble(model: &Model, cut: &[Range<usize>], schedule: Schedule) -> f64 {
    let controller = controller();
    let directory = support::model();
    let (mut stages, mut workers) = (Vec::new(), Vec::new());
    for (stage, layers) in cut.iter().enumerate() {
        let worker = Worker::start(WorkerOptions {
            stand_in: Some(Box::new(|| Sleeping::boxed(PASS))),
            ..options(&format!("bubble-{stage}"), &directory)
        })
        .unwrap();
        let stage = model.connect(&controller, &worker, stage, layers.clone());
        stages.push(stage.unwrap());
        workers.push(worker);
    }
    let mut pipeline = Pipeline::new(stages).unwrap();
    let groups = cut.len();
    pipeline.reserve_groups(groups).unwrap();
    for group in 0..groups {
        for seed in [0, 1] {
            pipeline.push(group, adapter(&model.config, seed)).unwrap();
        }
    }
    let mut steps = training(model, groups, 1);
    let passes = Passes {
        schedule,
        ..passes(groups, groups, 1, 12)
    };
    pipeline.run(&passes, &mut steps).unwrap();
    waited(&steps.outcomes)
}

/// The share of their time that stages waited, while the pipeline was full.
fn waited(outcomes: &[IterationOutcome]) -> f64 {
    let (first, last) = (3, outcomes.len() - 3);
    let elapsed = outcomes[last].at.duration_since(outcomes[first].at);
    let steps = &outcomes[first + 1..=last];
    let busy = steps.iter().flat_map(|outcome| &outcome.busy);
    let busy: f64 = busy.map(|seconds| seconds.unwrap()).sum();
    let stages = outcomes[0].busy.len() as f64;
    1.0 - busy / stages / elapsed.as_secs_f64()
}

//! The step-time model finds what it was made from, and says how well it explains what it saw.

use loraloom_scheduler::{StepTimeModel, StepTimes, Work};
use proptest::{collection::vec, prelude::*};

/// An iteration of some adapters, each (rank, tokens).
fn work(adapters: &[(u32, u32)]) -> Work {
    let tokens = adapters.iter().map(|&(_, tokens)| f64::from(tokens));
    let ranked = adapters
        .iter()
        .map(|&(rank, tokens)| f64::from(rank) * f64::from(tokens));
    Work {
        passes: 1.0,
        tokens: tokens.sum(),
        rank_tokens: ranked.sum(),
        segments: adapters.len() as f64,
    }
}

fn adapters() -> impl Strategy<Value = Vec<(u32, u32)>> {
    let rank = prop::sample::select(vec![4_u32, 8, 16, 64]);
    vec((rank, 64_u32..4096), 1..8)
}

fn model() -> impl Strategy<Value = StepTimeModel> {
    (
        0.02..0.3_f64,
        1e-5..1e-4_f64,
        1e-7..2e-6_f64,
        1e-3..2e-2_f64,
    )
        .prop_map(|(pass, token, rank_token, segment)| StepTimeModel {
            pass,
            token,
            rank_token,
            segment,
        })
}

fn close(found: f64, truth: f64, tolerance: f64) -> bool {
    (found - truth).abs() <= tolerance * truth.abs().max(1e-12)
}

proptest! {
    #[test]
    fn exact_seconds_give_the_coefficients_back(
        truth in model(),
        iterations in vec(adapters(), 40..80),
    ) {
        let mut times = StepTimes::new();
        for adapters in &iterations {
            let work = work(adapters);
            prop_assert!(times.observe(work, truth.seconds(&work)));
        }
        let fit = times.fit().expect("varied iterations");
        let pairs = [
            (fit.model.pass, truth.pass),
            (fit.model.token, truth.token),
            (fit.model.rank_token, truth.rank_token),
            (fit.model.segment, truth.segment),
        ];
        for (found, truth) in pairs {
            prop_assert!(close(found, truth, 1e-6), "{:?} {}", fit, truth);
        }
        prop_assert!(fit.mean_error < 1e-9);
    }

    #[test]
    fn noise_is_reported_and_predictions_stay_within_it(
        truth in model(),
        iterations in vec((adapters(), -0.05..0.05_f64), 200..=200),
        unseen in vec(adapters(), 20),
    ) {
        let mut times = StepTimes::new();
        for (place, (adapters, noise)) in iterations.iter().enumerate() {
            // Noise is bounded where something was measured, and grows beyond: every third iteration
            // is as small as any, half of these with one adapter. Few come by chance.
            let tokens = |drawn| if place % 3 == 0 { 64 } else { drawn };
            let count = if place % 6 == 0 { 1 } else { adapters.len() };
            let adapters = adapters[..count].iter().map(|&(rank, drawn)| (rank, tokens(drawn)));
            let work = work(&adapters.collect::<Vec<_>>());
            times.observe(work, truth.seconds(&work) * (1.0 + noise));
        }
        let fit = times.fit().expect("varied iterations");
        // Uniform noise of ±5 % has a mean of 2.5 %.
        prop_assert!((0.018..0.032).contains(&fit.mean_error), "{:?}", fit);
        for adapters in &unseen {
            let work = work(adapters);
            let (predicted, seconds) = (fit.model.seconds(&work), truth.seconds(&work));
            prop_assert!(close(predicted, seconds, 0.05), "{} {}", predicted, seconds);
        }
    }
}

const TRUTH: StepTimeModel = StepTimeModel {
    pass: 0.1,
    token: 5e-5,
    rank_token: 1e-6,
    segment: 0.01,
};

#[test]
fn too_few_or_too_similar_iterations_say_nothing() {
    let mut times = StepTimes::new();
    for i in 0..7 {
        let work = work(&[(8, 500 + 100 * i)]);
        times.observe(work, TRUTH.seconds(&work));
    }
    assert_eq!(times.fit(), None);

    let mut same = StepTimes::new();
    for _ in 0..50 {
        let work = work(&[(8, 500), (16, 1000)]);
        same.observe(work, TRUTH.seconds(&work));
    }
    assert_eq!(same.fit(), None);
}

#[test]
fn what_cannot_be_told_apart_counts_as_tokens_or_passes() {
    let mut times = StepTimes::new();
    for i in 0..20 {
        let work = work(&[(8, 500 + 100 * i), (8, 700)]);
        times.observe(work, TRUTH.seconds(&work));
    }
    let fit = times.fit().expect("tokens vary");
    let StepTimeModel {
        pass,
        token,
        rank_token,
        segment,
    } = fit.model;
    assert!(
        close(pass, TRUTH.pass + 2.0 * TRUTH.segment, 1e-6),
        "{fit:?}"
    );
    assert!(
        close(token, TRUTH.token + 8.0 * TRUTH.rank_token, 1e-6),
        "{fit:?}"
    );
    assert_eq!((rank_token, segment), (0.0, 0.0));
}

#[test]
fn a_first_iteration_that_compiles_kernels_does_little_harm() {
    let mut times = StepTimes::new();
    for i in 0..40 {
        let work = work(&[(8, 500 + 100 * (i * 7 % 20))]);
        let delay = if i == 0 { 60.0 } else { 0.0 };
        times.observe(work, TRUTH.seconds(&work) + delay);
    }
    let fit = times.fit().expect("tokens vary");
    let typical = work(&[(8, 1500)]);
    assert!(
        close(fit.model.seconds(&typical), TRUTH.seconds(&typical), 0.01),
        "{fit:?}"
    );
}

#[test]
fn nonsense_is_refused_and_old_iterations_are_forgotten() {
    let mut times = StepTimes::new();
    let some = work(&[(8, 500)]);
    assert!(!times.observe(some, 0.0) && !times.observe(some, f64::NAN));
    assert!(!times.observe(Work::default(), 1.0));
    for slower in [3.0, 1.0] {
        for i in 0..256 {
            let work = work(&[(8, 500 + 100 * (i % 20))]);
            times.observe(work, slower * TRUTH.seconds(&work));
        }
    }
    let fit = times.fit().expect("tokens vary");
    assert!(fit.mean_error < 1e-9, "{fit:?}");
}

use loraloom_scheduler::{Asha, Rungs};

use crate::sweep::{
    curves::{Curve, STEPS, best, crossings},
    replay::{Arrival, replay},
    split_mix::SplitMix,
};

const TRIALS: usize = 64;
const SEEDS: u64 = 200;

/// All at once in step, all at once at three speeds, few at a time, one after another.
const ARRIVALS: [Arrival; 5] = [
    Arrival::new(64, 1),
    Arrival::new(64, 3),
    Arrival::new(8, 1),
    Arrival::new(8, 3),
    Arrival::new(1, 1),
];

struct Measured {
    /// Mean fraction of all steps of all trials that are taken.
    cost: f64,
    /// Fraction of seeds in which the best curve is trained to its end.
    kept: f64,
}

#[expect(clippy::print_stdout, reason = "the measurement is the result")]
fn measure(grace: usize, eta: usize, arrival: Arrival) -> Measured {
    let (mut cost, mut largest_cost, mut crossed) = (0.0, 0.0_f64, 0.0);
    let mut lost = Vec::new();
    for seed in 0..SEEDS {
        let mut random = SplitMix::new(seed);
        let curves: Vec<Curve> = (0..TRIALS).map(|_| Curve::draw(&mut random)).collect();
        let asha = Asha::new(Rungs::new(grace, eta).expect("legal rungs"));
        let replayed = replay(&curves, asha, arrival, &mut random);
        cost += replayed.cost();
        largest_cost = largest_cost.max(replayed.cost());
        crossed += crossings(&curves, grace);
        if !replayed.is_finished(best(&curves)) {
            lost.push(seed);
        }
    }
    let seeds = SEEDS as f64;
    let measured = Measured {
        cost: cost / seeds,
        kept: 1.0 - lost.len() as f64 / seeds,
    };
    println!(
        "grace {grace} of {STEPS} steps, eta {eta}, {arrival:?}: best kept in {:.1} % of {SEEDS} \
         seeds, cost {:.1} % (largest {:.1} %), {:.1} % of pairs cross after the grace period, \
         best lost with seeds {lost:?}",
        100.0 * measured.kept,
        100.0 * measured.cost,
        100.0 * largest_cost,
        100.0 * crossed / seeds,
    );
    measured
}

#[test]
fn the_best_is_kept_at_a_third_of_the_cost() {
    for arrival in ARRIVALS {
        let Measured { cost, kept } = measure(STEPS / 9, 3, arrival);
        assert!(kept >= 0.95, "{arrival:?}: kept {kept}");
        assert!(cost <= 0.35, "{arrival:?}: cost {cost}");
    }
}

#[test]
fn a_grace_period_that_is_too_short_is_cheap_and_loses_the_best() {
    let short = measure(STEPS / 27, 3, ARRIVALS[0]);
    let enough = measure(STEPS / 9, 3, ARRIVALS[0]);
    assert!(short.cost < enough.cost);
    assert!(short.kept < enough.kept - 0.05);
}

#[test]
fn without_rungs_before_the_end_nothing_is_stopped() {
    let Measured { cost, kept } = measure(STEPS, 3, ARRIVALS[3]);
    assert!((cost - 1.0).abs() < 1e-12 && (kept - 1.0).abs() < 1e-12);
}

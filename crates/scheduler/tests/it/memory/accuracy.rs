use std::time::Instant;

use crate::memory::simulated::{Random, Truth, peak, seven_b, tiny_llama, tiny_on_cpu};

/// Mean error of the fit, in percent of all bytes, on loads within the reach of `points` others.
fn mean_error(truth: &Truth, points: usize, seed: u64) -> f64 {
    let mut random = Random(seed);
    let mut memory = truth.memory([1.3; 3]);
    let mut seen = Vec::new();
    for _ in 0..points {
        let load = truth.load(&mut random);
        let bytes = truth.paged(truth.peak(load, &mut random));
        memory.observe(load, peak(bytes));
        seen.push(load);
    }
    let admissions = 1000;
    let mut sum = 0.0;
    for _ in 0..admissions {
        let load = truth.load_within(&mut random, &seen, 1.5);
        let bytes = truth.paged(truth.peak(load, &mut random));
        let expected = memory.estimate(load).expected_bytes;
        sum += 100.0 * expected.abs_diff(bytes) as f64 / bytes as f64;
    }
    sum / f64::from(admissions)
}

/// The paper's 0.25 %, with 20 measurements that are off by 0.2 % (mean 0.16 %).
#[test]
fn twenty_measurements_predict_within_a_quarter_of_a_percent() {
    for truth in [seven_b(), tiny_llama(), tiny_on_cpu()] {
        let trials = 100;
        let errors = (0..trials).map(|seed| mean_error(&truth, 20, seed));
        let errors: Vec<f64> = errors.collect();
        let mean = errors.iter().sum::<f64>() / f64::from(trials as u32);
        let worst = errors.iter().copied().fold(0.0, f64::max);
        println!("{}: MAPE {mean:.3} %, worst trial {worst:.3} %", truth.name);
        assert!(mean <= 0.25, "{}: {mean} %", truth.name);
        // Measurements alone are off by √(2/π) · 0.2 %.
        assert!(mean > 0.15, "{}: {mean} %", truth.name);
    }
}

#[test]
fn its_own_account_of_its_errors_is_right() {
    for (seed, truth) in [seven_b(), tiny_llama(), tiny_on_cpu()].iter().enumerate() {
        println!("seed {seed}");
        let mut random = Random(seed as u64);
        let mut memory = truth.memory([1.3; 3]);
        let (mut sum, mut count) = (0.0, 0_u32);
        for iteration in 0..400 {
            let load = truth.load(&mut random);
            let bytes = truth.peak(load, &mut random);
            let estimate = memory.estimate(load);
            if iteration >= 20 {
                sum += 100.0 * estimate.expected_bytes.abs_diff(bytes) as f64 / bytes as f64;
                count += 1;
            }
            memory.observe(load, peak(bytes));
        }
        let forecasts = memory.forecasts();
        let reported = forecasts.mean_absolute_percentage_error().unwrap();
        assert!((reported - sum / f64::from(count)).abs() < 1e-9);
        assert_eq!(forecasts.fitted(), u64::from(count));
        println!("{}: MAPE {reported:.3} %", truth.name);
        assert!(reported <= 0.25, "{}: {reported} %", truth.name);
    }
}

#[test]
fn noiseless_measurements_give_b_back() {
    for truth in [seven_b(), tiny_llama(), tiny_on_cpu()] {
        for seed in 0..50 {
            // Whole bytes are noise, too: with whole b there is none.
            let mut random = Random(seed);
            let mut memory = truth.memory([1.3; 3]);
            for _ in 0..20 + seed {
                let load = truth.load(&mut random);
                let exact = truth.fixed_bytes + load.adapter_bytes;
                let bytes = exact + truth.coefficients().bytes(load) as u64;
                memory.observe(load, peak(bytes));
            }
            let b = memory.model().coefficients();
            let found = b.values();
            for (found, expected) in found.into_iter().zip(truth.b) {
                let error = (found / expected - 1.0).abs();
                assert!(
                    error <= 1e-9,
                    "{} seed {seed}: {found} {expected}",
                    truth.name
                );
            }
        }
    }
}

#[test]
#[cfg_attr(debug_assertions, ignore = "a promise of the optimised build")]
fn an_observation_takes_well_below_a_millisecond() {
    let truth = seven_b();
    let mut random = Random(7);
    let mut memory = truth.memory([1.3; 3]);
    let loads: Vec<_> = (0..2000).map(|_| truth.load(&mut random)).collect();
    // The quickest of some batches, as others may be at work on the machine.
    let (mut observation, mut question) = (f64::INFINITY, f64::INFINITY);
    for loads in loads.chunks(100) {
        let start = Instant::now();
        for &load in loads {
            let bytes = truth.peak(load, &mut random);
            let mut measured = peak(bytes);
            measured.reserved_bytes = Some(bytes);
            memory.observe(load, measured);
        }
        // Until the window is full they are cheaper.
        if memory.model().measurements() == 128 {
            observation = observation.min(start.elapsed().as_secs_f64() / 100.0);
        }
        let start = Instant::now();
        for &load in loads {
            let _ = std::hint::black_box(memory.fits(load));
        }
        question = question.min(start.elapsed().as_secs_f64() / 100.0);
    }
    let [observation, question] = [observation, question].map(|seconds| seconds * 1e6);
    println!("{observation:.1} µs an observation, {question:.1} µs a question");
    assert!(observation < 1000.0, "{observation} µs");
}

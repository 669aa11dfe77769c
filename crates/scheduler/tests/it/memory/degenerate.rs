use std::ops::Range;

use loraloom_scheduler::{
    Coefficients, DeviceMemory, Load, Measurement, MemoryModel, SchedulerError,
};
use proptest::prelude::*;

use crate::memory::simulated::{Random, peak, reserved, seven_b};

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(1), Just(u64::MAX), 0..5000_u64, any::<u64>()]
}

fn any_load() -> impl Strategy<Value = Load> {
    (number(), number(), number()).prop_map(|(tokens, squared_tokens, adapter_bytes)| Load {
        tokens,
        squared_tokens,
        adapter_bytes,
        certain_bytes: 0,
    })
}

#[derive(Debug, Clone)]
enum Call {
    Observe(Load, Measurement),
    OutOfMemory(Load),
    Hold(u64),
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let measured = (prop::option::of(number()), prop::option::of(number()));
    let observe = (any_load(), measured).prop_map(|(load, (peak, reserved))| {
        let measured = Measurement {
            peak_in_use_bytes: peak,
            reserved_bytes: reserved,
        };
        Call::Observe(load, measured)
    });
    let call = prop_oneof![
        30 => observe,
        1 => any_load().prop_map(Call::OutOfMemory),
        1 => number().prop_map(Call::Hold),
    ];
    prop::collection::vec(call, 0..60)
}

fn assert_sane(memory: &DeviceMemory, load: Load) {
    let b = memory.model().coefficients();
    for b in b.values() {
        assert!(b.is_finite() && b >= 0.0, "{b}");
    }
    let estimate = memory.estimate(load);
    assert!(estimate.exact_bytes <= estimate.expected_bytes);
    assert!(estimate.expected_bytes <= estimate.bound_bytes);
    assert_eq!(
        memory.fits(load).is_ok(),
        estimate.bound_bytes <= memory.limit_bytes()
    );
    let error = memory.forecasts().mean_absolute_percentage_error();
    assert!(error.is_none_or(|percent| percent >= 0.0));
}

proptest! {
    #[test]
    fn nothing_panics_and_b_is_never_negative(
        calls in calls(), asked in any_load(), page_bytes in number(), limit in number(), fixed in number(),
    ) {
        let prior = Coefficients::new(1e6, 1e3, 1.0).unwrap();
        let model = MemoryModel::new(prior, page_bytes);
        let mut memory = DeviceMemory::new("device", limit, fixed, 0.5, model).unwrap();
        for call in calls {
            match call {
                Call::Observe(load, measured) => memory.observe(load, measured),
                Call::OutOfMemory(load) => memory.out_of_memory(load),
                Call::Hold(bytes) => memory.pools_hold(bytes),
            }
        }
        assert_sane(&memory, asked);
    }

    /// Where measurements do not tell coefficients apart, the bound allows for all of them.
    #[test]
    fn one_load_or_one_length_alone_bounds_others_too(
        b in prop::array::uniform3(prop_oneof![Just(0.0), 0.0..1.0_f64]), design in design(20..60),
        prior in 0.0..3.0_f64,
    ) {
        assert_bounded(b, design, [prior; 3]);
    }

    /// Before there is a fit, so it does if the prior is not off by more than ten times as much in one
    /// coefficient as in another, or says nothing.
    #[test]
    fn few_measurements_and_a_bad_prior_bound_others_too(
        b in prop::array::uniform3(0.1..1.0_f64), design in design(1..20), prior in 0.01..10.0_f64,
        unknown in prop::array::uniform3(prop_oneof![Just(0.0), Just(1.0)]),
    ) {
        assert_bounded(b, design, unknown.map(|factor| factor * prior));
    }
}

/// Loads of one length, or of its multiples, and one to ask for, relative to the largest.
#[derive(Debug, Clone)]
struct Design {
    length: u64,
    lengths: u64,
    rows_vary: bool,
    points: usize,
    asked: (f64, f64),
}

fn design(points: Range<usize>) -> impl Strategy<Value = Design> {
    let asked = (0.0..1.5_f64, 0.0..1.5_f64);
    (16_u64..2048, 1_u64..4, any::<bool>(), points, asked).prop_map(
        |(length, lengths, rows_vary, points, asked)| Design {
            length,
            lengths,
            rows_vary,
            points,
            asked,
        },
    )
}

/// That noiseless measurements bound what is asked for.
fn assert_bounded(b: [f64; 3], design: Design, prior: [f64; 3]) {
    // In proportion to what rows of 512 tokens take, so that each matters.
    let coefficients =
        |b: [f64; 3]| Coefficients::new(b[0] * 1e9, b[1] * 1e6, b[2] * 2e3).expect("sizes");
    let b = coefficients(b);
    let model = MemoryModel::new(coefficients(prior), 0);
    let mut memory = DeviceMemory::new("device", u64::MAX, 0, 1.0, model).expect("a share");
    let load = |tokens, squared_tokens| Load {
        tokens,
        squared_tokens,
        adapter_bytes: 0,
        certain_bytes: 0,
    };
    let (mut tokens, mut squared) = (0, 0);
    for point in 0..design.points as u64 {
        let length = design.length * (1 + point % design.lengths);
        let rows = if design.rows_vary { 1 + point % 7 } else { 4 };
        let load = load(rows * length, rows * length * length);
        (tokens, squared) = (tokens.max(load.tokens), squared.max(load.squared_tokens));
        memory.observe(load, peak(b.bytes(load).round() as u64));
    }
    let times = |most: u64, factor| (most as f64 * factor) as u64;
    let asked = load(
        times(tokens, design.asked.0),
        times(squared, design.asked.1),
    );
    let estimate = memory.estimate(asked);
    let needed = b.bytes(asked) - 1.0;
    assert!(
        estimate.bound_bytes as f64 >= needed,
        "{needed} {estimate:?} {asked:?}"
    );
}

#[test]
fn equal_loads_zero_loads_and_single_points_are_fitted_or_not_but_sane() {
    let same = Load {
        tokens: 4096,
        squared_tokens: 4096 * 512,
        adapter_bytes: 1 << 28,
        certain_bytes: 0,
    };
    for load in [same, Load::default()] {
        for points in [0, 1, 2, 19, 20, 21, 500] {
            let truth = seven_b();
            let mut random = Random(points);
            let mut memory = truth.memory([1.0; 3]);
            for _ in 0..points {
                memory.observe(load, peak(truth.peak(load, &mut random)));
            }
            for asked in [same, Load::default()] {
                assert_sane(&memory, asked);
            }
            let needed = truth.peak(load, &mut random);
            let estimate = memory.estimate(load);
            assert!(estimate.bound_bytes >= needed, "{points}");
            assert_eq!(memory.model().is_fitted(), points >= 20);
            if points >= 20 {
                assert!(
                    estimate.expected_bytes.abs_diff(needed) < needed / 50,
                    "{points}"
                );
            }
        }
    }
}

#[test]
fn nothing_measured_changes_nothing() {
    let mut memory = seven_b().memory([1.0; 3]);
    let before = memory.estimate(Load::default());
    memory.observe(Load::default(), Measurement::default());
    assert_eq!(memory.estimate(Load::default()), before);
    memory.observe(Load::default(), reserved(1));
    assert_eq!(memory.model().measurements(), 0);
}

#[test]
fn shares_that_are_none_are_refused() {
    let model = || MemoryModel::new(Coefficients::default(), 0);
    for share in [-0.1, f64::NAN, f64::INFINITY] {
        let error = DeviceMemory::new("cuda:0", 1, 0, share, model()).unwrap_err();
        assert!(matches!(error, SchedulerError::AdapterShare { .. }));
        assert!(error.to_string().contains("cuda:0"), "{error}");
    }
    let device = DeviceMemory::new("cuda:0", 1, 100, 0.25, model()).unwrap();
    let load = Load {
        adapter_bytes: 10,
        ..Load::default()
    };
    assert_eq!(device.exact_bytes(load), 103);
}

/// A fit knows nothing of loads far above those it was made from: there the bound is a load's share of
/// what a smaller one took.
#[test]
fn far_above_what_was_measured_the_fit_bounds_nothing() {
    let truth = seven_b();
    let mut random = Random(7);
    let mut memory = truth.memory([1.0; 3]);
    let load = |rows: u64, length: u64| Load {
        tokens: rows * length,
        squared_tokens: rows * length * length,
        adapter_bytes: 0,
        certain_bytes: 0,
    };
    let largest = load(4, 1024);
    for index in 0..40 {
        let load = load(1 + index % 4, 256 << (index % 3));
        memory.observe(load, peak(truth.peak(load, &mut random)));
    }
    let beside = |times: u64| {
        let asked = load(4 * times, 1024);
        memory.estimate(asked).bound_bytes - truth.fixed_bytes
    };
    let once = truth.peak(largest, &mut random) - truth.fixed_bytes;
    assert!(memory.model().is_fitted());
    // The base of 0.6 GB comes once, and four times in what four times the load is sure to take.
    assert!(beside(4) > 4 * once, "{} {once}", beside(4));
    let times = |factor: f64| Load {
        tokens: (largest.tokens as f64 * factor) as u64,
        squared_tokens: (largest.squared_tokens as f64 * factor) as u64,
        adapter_bytes: 0,
        certain_bytes: 0,
    };
    let within = memory.estimate(times(1.4)).bound_bytes - truth.fixed_bytes;
    // The fit's own bound: a share of a smaller load, with its margin, would be above this.
    assert!(
        (within as f64) < 1.4 * 1.05 * once as f64,
        "{within} {once}"
    );
}

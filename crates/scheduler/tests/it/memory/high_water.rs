//! Pools give nothing back: what they hold says what a load needs only if the load made them grow.

use loraloom_scheduler::{DeviceMemory, Load, Measurement};

use crate::memory::simulated::{
    GIB, MIB, Random, Truth, reserved, seven_b, tiny_llama, tiny_on_cpu,
};

fn load(tokens: u64) -> Load {
    Load {
        tokens,
        squared_tokens: 512 * tokens,
        adapter_bytes: 100 * MIB,
        certain_bytes: 0,
    }
}

#[test]
fn only_growth_is_a_measurement() {
    let truth = Truth {
        noise: 0.0,
        page_bytes: 64 * MIB,
        ..seven_b()
    };
    let mut random = Random(0);
    let mut memory = truth.memory([2.0; 3]);
    let held = |tokens, random: &mut Random| truth.paged(truth.peak(load(tokens), random));
    memory.pools_hold(held(0, &mut random));
    let large = held(8000, &mut random);
    memory.observe(load(8000), reserved(large));
    assert_eq!(memory.model().measurements(), 1);
    let before = memory.estimate(load(1000));
    for _ in 0..100 {
        memory.observe(load(1000), reserved(large));
    }
    // It is known to have been enough, and not to be what 1000 tokens need.
    assert_eq!(memory.model().measurements(), 1);
    assert!(!memory.model().is_fitted());
    let after = memory.estimate(load(1000));
    assert!(after.bound_bytes <= large + truth.page_bytes);
    assert_eq!(
        (after.expected_bytes, after.bound_bytes),
        (before.expected_bytes, before.bound_bytes)
    );
    // What ran fits again, but for a page, whatever the prior says.
    let again = memory.estimate(load(8000)).bound_bytes;
    assert_eq!(again, large + truth.page_bytes);
    memory.observe(load(9000), reserved(held(9000, &mut random)));
    assert_eq!(memory.model().measurements(), 2);
}

#[test]
fn what_pools_held_before_is_nobodys_need() {
    let truth = seven_b();
    let mut memory = truth.memory([1.0; 3]);
    // Weights were loaded by way of buffers that are free now.
    memory.observe(load(100), reserved(40 * GIB));
    assert_eq!(memory.model().measurements(), 0);
    assert!(memory.estimate(load(120)).bound_bytes < 20 * GIB);
    memory.pools_hold(14 * GIB);
    memory.observe(load(120), reserved(15 * GIB));
    assert_eq!(memory.model().measurements(), 1);
}

/// Replays of each device.
const SEEDS: u64 = if cfg!(debug_assertions) { 1 } else { 4 };

#[derive(Debug, Default)]
struct Replay {
    ran: u32,
    too_low: u32,
    out_of_memory: u32,
    refused: u32,
    refused_needlessly: u32,
}

/// Iterations of random loads that are asked for first, on pools that give nothing back.
fn replay(truth: &Truth, peaks: bool, seed: u64) -> (Replay, DeviceMemory) {
    let mut random = Random(seed);
    let mut memory = truth.memory([1.3; 3]);
    let mut held = truth.paged(truth.fixed_bytes + truth.fixed_bytes / 10);
    memory.pools_hold(held);
    let mut replay = Replay::default();
    for _ in 0..1000 {
        let load = truth.load(&mut random);
        let needed = |load, random: &mut Random| {
            let peak = truth.peak(load, random);
            (peak, truth.paged(peak))
        };
        if memory.fits(load).is_err() {
            replay.refused += 1;
            let (_, needed) = needed(load, &mut random);
            replay.refused_needlessly += u32::from(needed <= truth.limit_bytes);
            continue;
        }
        let bound = memory.estimate(load).bound_bytes;
        let (peak, needed) = needed(load, &mut random);
        replay.ran += 1;
        replay.too_low += u32::from(needed > bound);
        if needed > truth.limit_bytes {
            replay.out_of_memory += 1;
            memory.out_of_memory(load);
            continue;
        }
        held = held.max(needed);
        let measured = Measurement {
            peak_in_use_bytes: peaks.then_some(peak),
            reserved_bytes: Some(held),
        };
        memory.observe(load, measured);
    }
    (replay, memory)
}

#[test]
fn replays_do_not_run_out_of_memory() {
    for truth in [seven_b(), tiny_llama(), tiny_on_cpu()] {
        for peaks in [true, false] {
            let small = truth.limit_bytes < GIB;
            let pages = if small {
                [0, MIB].as_slice()
            } else {
                &[64 * MIB, 512 * MIB, 2 * GIB]
            };
            for &page_bytes in pages {
                let mut all = Replay::default();
                let mut errors = Vec::new();
                let mut fitted = 0;
                for seed in 0..SEEDS {
                    let truth = Truth {
                        page_bytes,
                        ..truth.clone()
                    };
                    let (one, memory) = replay(&truth, peaks, seed);
                    all.ran += one.ran;
                    all.too_low += one.too_low;
                    all.out_of_memory += one.out_of_memory;
                    all.refused += one.refused;
                    all.refused_needlessly += one.refused_needlessly;
                    errors.extend(memory.forecasts().mean_absolute_percentage_error());
                    fitted += u32::from(memory.model().is_fitted());
                }
                let mean = errors.iter().sum::<f64>() / errors.len().max(1) as f64;
                let what = format!(
                    "{}, pages of {} MiB, peaks {peaks}",
                    truth.name,
                    page_bytes / MIB
                );
                println!("{what}: {all:?}, fitted {fitted} of {SEEDS}, MAPE {mean:.3} %");
                assert_eq!(all.out_of_memory, 0, "{what}");
                let most = 0.001 * f64::from(all.ran);
                assert!(f64::from(all.too_low) <= most, "{what}: {all:?}");
                // Bounds that refused everything would never be too low.
                let most = 0.1 * f64::from(all.ran);
                assert!(f64::from(all.refused_needlessly) <= most, "{what}: {all:?}");
            }
        }
    }
}

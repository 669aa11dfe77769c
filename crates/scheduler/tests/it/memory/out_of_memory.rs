use loraloom_scheduler::{Budget, Coefficients, DeviceMemory, Load, MemoryModel};
use proptest::prelude::*;

use crate::memory::simulated::{GIB, Random, Truth, peak, seven_b, tiny_llama};

fn times(load: Load, factor: f64) -> Load {
    Load {
        tokens: (load.tokens as f64 * factor) as u64,
        squared_tokens: (load.squared_tokens as f64 * factor) as u64,
        adapter_bytes: load.adapter_bytes,
        certain_bytes: 0,
    }
}

/// A device, and what was learned of it.
fn learned(seed: u64, points: usize) -> (Truth, Random, DeviceMemory) {
    let truth = seven_b();
    let mut random = Random(seed);
    let mut memory = truth.memory([1.3; 3]);
    for _ in 0..points {
        let load = truth.load(&mut random);
        let bytes = truth.peak(load, &mut random);
        memory.observe(load, peak(bytes));
    }
    (truth, random, memory)
}

/// Tasks that train stay, but one with a larger adapter is not let in for their sake.
#[test]
fn what_runs_lets_nothing_larger_in() {
    let model = MemoryModel::new(Coefficients::new(0.0, 1.0, 0.0).unwrap(), 1);
    let mut memory = DeviceMemory::new("device", 100, 0, 1.0, model).unwrap();
    let load = |tokens, adapter_bytes| Load {
        tokens,
        squared_tokens: tokens,
        adapter_bytes,
        certain_bytes: 0,
    };
    let fits = |memory: &DeviceMemory, load| Budget::fits(memory, load, 2);
    assert!(!fits(&memory, load(90, 90)));
    memory.run(load(90, 90));
    assert!(fits(&memory, load(90, 90)) && fits(&memory, load(80, 10)));
    for larger in [load(90, 91), load(91, 90)] {
        assert!(!fits(&memory, larger), "{larger:?}");
    }
}

proptest! {
    #[test]
    fn what_ran_out_is_never_admitted_again(
        seed: u64, points in 0_usize..60, more in prop::array::uniform3(0.0..0.5_f64), later in 0_usize..60,
    ) {
        let (truth, mut random, mut memory) = learned(seed, points);
        let failed = truth.load(&mut random);
        let larger = Load {
            tokens: (failed.tokens as f64 * (1.0 + more[0])) as u64,
            squared_tokens: (failed.squared_tokens as f64 * (1.0 + more[1])) as u64,
            adapter_bytes: (failed.adapter_bytes as f64 * (1.0 + more[2])) as u64,
            certain_bytes: 0,
        };
        let smaller = times(failed, 0.9);
        let before = memory.estimate(smaller);
        memory.out_of_memory(failed);
        for load in [failed, larger] {
            let shortage = memory.fits(load).unwrap_err();
            prop_assert!(shortage.estimate.bound_bytes > truth.limit_bytes);
            prop_assert!(shortage.is_certain());
        }
        // Somewhat smaller loads are not trusted as before, either.
        let after = memory.estimate(smaller);
        prop_assert!(after.bound_bytes >= before.bound_bytes);
        let share = (smaller.tokens as f64 / failed.tokens as f64)
            .min(smaller.squared_tokens as f64 / failed.squared_tokens as f64);
        let exact = truth.fixed_bytes + failed.adapter_bytes;
        let least = exact as f64 + share * (truth.limit_bytes - exact) as f64;
        prop_assert!(after.least_bytes as f64 >= least);
        prop_assert!(after.expected_bytes >= after.least_bytes);
        // Nothing that is measured later takes it back.
        for _ in 0..later {
            let load = truth.load(&mut random);
            memory.observe(load, peak(truth.peak(load, &mut random)));
        }
        memory.observe(failed, peak(truth.fixed_bytes));
        prop_assert!(memory.fits(failed).is_err());
        prop_assert!(memory.fits(larger).is_err());
    }
}

#[test]
fn small_loads_go_on() {
    let (_, _, mut memory) = learned(1, 40);
    let load = Load {
        tokens: 8192,
        squared_tokens: 8192 * 512,
        adapter_bytes: 800_000_000,
        certain_bytes: 0,
    };
    memory.fits(load).unwrap();
    memory.out_of_memory(load);
    assert!(memory.fits(load).is_err());
    assert!(memory.fits(times(load, 0.5)).is_ok());
    let fewer_adapters = Load {
        adapter_bytes: 0,
        ..load
    };
    // The same activations were too many for what 800 MB of adapters left, not for more than that.
    let estimate = memory.estimate(fewer_adapters);
    assert_eq!(
        estimate.expected_bytes,
        memory.limit_bytes() - 800_000_000 + 1
    );
}

#[test]
fn a_shortage_says_what_is_missing() {
    let memory = tiny_llama().memory([1.0; 3]);
    let load = Load {
        tokens: 50_000,
        squared_tokens: 50_000 * 1024,
        adapter_bytes: GIB,
        certain_bytes: 0,
    };
    let shortage = memory.fits(load).unwrap_err();
    assert_eq!(
        shortage.to_string(),
        "TinyLlama on 24 GB needs 29.0 GiB (23.8 GiB expected + 5.2 GiB margin) of 22.4 GiB"
    );
    // Nothing was measured; a smaller step may show that it is not so bad.
    assert!(!shortage.is_certain());
    let huge = Load {
        adapter_bytes: 24 * GIB,
        ..Load::default()
    };
    let of_one_row = Load {
        adapter_bytes: GIB,
        certain_bytes: 23 * GIB,
        ..load
    };
    for load in [huge, of_one_row] {
        let shortage = memory.fits(load).unwrap_err();
        assert!(shortage.is_certain());
        assert_eq!(
            shortage.to_string(),
            "TinyLlama on 24 GB needs at least 26.0 GiB (2.0 GiB without any adapter) of 22.4 GiB"
        );
    }
}

/// A stage keeps the activations of its own layers only.
#[test]
fn certain_bytes_are_shared_among_the_devices() {
    let load = Load {
        certain_bytes: 20 * GIB,
        ..Load::default()
    };
    for (share, is_certain) in [(1.0, true), (0.5, false)] {
        let prior = Coefficients::new(0.0, 0.0, 0.0).unwrap();
        let model = MemoryModel::new(prior, 1);
        let memory = DeviceMemory::new("cuda:0", 16 * GIB, 0, share, model).unwrap();
        assert_eq!(memory.fits(load).is_err(), is_certain, "{share}");
    }
}

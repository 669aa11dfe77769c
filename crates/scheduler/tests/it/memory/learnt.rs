//! What one process has learnt, in another that goes on with the run.

use loraloom_scheduler::{DeviceMemory, LearntMemory, Load};

use crate::memory::simulated::{MIB, Random, Truth, peak, tiny_on_cpu};

/// A device that has measured enough for a fit and has run out of memory once.
fn learnt(truth: &Truth, random: &mut Random) -> DeviceMemory {
    let mut memory = truth.memory([1.3; 3]);
    for _ in 0..30 {
        let load = truth.load(random);
        let bytes = truth.peak(load, random);
        memory.observe(load, peak(bytes));
    }
    memory.out_of_memory(Load {
        tokens: 3000,
        squared_tokens: 500_000,
        adapter_bytes: truth.adapter_bytes,
        certain_bytes: 0,
    });
    memory
}

#[test]
fn predictions_go_on_where_they_were() {
    let (truth, mut random) = (tiny_on_cpu(), Random(1));
    let before = learnt(&truth, &mut random);
    let text = serde_json::to_string(&before.learnt()).unwrap();
    let read: LearntMemory = serde_json::from_str(&text).unwrap();

    let mut after = truth.memory([1.3; 3]);
    assert!(after.remember(read));
    assert!(after.model().is_fitted());
    for _ in 0..50 {
        let load = truth.load(&mut random);
        let (before, after) = (before.estimate(load), after.estimate(load));
        // A number in a file may be off in its last bit.
        assert!(before.expected_bytes.abs_diff(after.expected_bytes) <= 1);
        assert!(before.bound_bytes.abs_diff(after.bound_bytes) <= 1);
    }
}

#[test]
fn what_was_learnt_of_another_device_is_left() {
    let (truth, mut random) = (tiny_on_cpu(), Random(2));
    let learnt = learnt(&truth, &mut random).learnt();
    let paged = Truth {
        page_bytes: MIB,
        ..truth.clone()
    };
    for mut other in [truth.memory([1.3, 1.3, 1.2]), paged.memory([1.3; 3])] {
        assert!(!other.remember(learnt.clone()));
        assert_eq!(other.model().measurements(), 0);
    }
}

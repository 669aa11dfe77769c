//! The bytes that adapters may take on the device and in host memory.

use std::fs;

use loraloom_inference::{Replace, ServiceError, StoreLimits};
use loraloom_pipeline::Pipeline;

use super::{Here, bits, bytes, expected};

/// Two thousand adapters are registered where a hundred fit in host memory, and ten in the pipeline: each is answered
/// with its own weights, a cold one costs one copy, and the bytes stay within the limits.
#[test]
fn many_adapters_share_a_budget() {
    let here = Here::new(
        |pipeline| StoreLimits {
            device: 10
                * bytes(pipeline, 0, 8)
                    .max(bytes(pipeline, 1, 8))
                    .max(bytes(pipeline, 2, 8)),
            host: 100 * bytes(pipeline, 0, 8),
        },
        1000,
    )
    .start();
    for index in 0..2000 {
        let path = here.write(&format!("{index}"), index, 8);
        here.load(&format!("a{index}"), &path, Replace::Nothing)
            .expect("loaded");
    }
    assert_eq!(here.stats().adapters, 2000);
    for (count, index) in [0, 1999, 7, 1000, 3].into_iter().enumerate() {
        let answer = here.ask(&format!("a{index}"), 3).expect("an answer");
        assert_eq!(
            bits(&here.read(answer).expect("tokens")),
            bits(&expected(index, 8, 3)),
            "{index}"
        );
        assert_eq!(here.stats().fetches, count as u64 + 1);
    }
    let warm = here.ask("a1000", 1).expect("an answer");
    here.read(warm).expect("a token");
    assert_eq!(here.stats().fetches, 5);
    // More at a time than there is room for: they take turns.
    let answers: Vec<_> = (100..140)
        .map(|index| here.ask(&format!("a{index}"), 4).expect("an answer"))
        .collect();
    for (answer, index) in answers.into_iter().zip(100..) {
        assert_eq!(
            bits(&here.read(answer).expect("tokens")),
            bits(&expected(index, 8, 4)),
            "{index}"
        );
        assert!(here.stats().resident_adapters <= 12);
    }
    assert_eq!(here.stats().fetches, 45);
}

/// Of two adapters in the pipeline the one that was used longest ago makes way for a third.
#[test]
fn the_adapter_used_longest_ago_makes_way() {
    let two = |pipeline: &Pipeline| StoreLimits {
        device: 2
            * (0..4)
                .map(|seed| bytes(pipeline, seed, 8))
                .max()
                .unwrap_or(0),
        host: 1 << 40,
    };
    let here = Here::new(two, 1000).start();
    for (name, seed) in [("a", 1), ("b", 1 + 3), ("c", 1 + 6)] {
        let path = here.write(name, seed, 8);
        here.load(name, &path, Replace::Nothing).expect("loaded");
    }
    for (name, fetches) in [("a", 1), ("b", 2), ("a", 2), ("c", 3), ("a", 3), ("b", 4)] {
        let answer = here.ask(name, 2).expect("an answer");
        here.read(answer).expect("tokens");
        assert_eq!(here.stats().fetches, fetches, "{name}");
    }
}

/// Where one adapter fits, the next waits until nobody uses it.
#[test]
fn adapters_in_use_stay() {
    let one = |pipeline: &Pipeline| StoreLimits {
        device: bytes(pipeline, 1, 8),
        host: 1 << 40,
    };
    let here = Here::new(one, 1000).start();
    for (name, seed) in [("a", 1), ("b", 4)] {
        let path = here.write(name, seed, 8);
        here.load(name, &path, Replace::Nothing).expect("loaded");
    }
    let long = here.ask("a", 200).expect("an answer");
    let short = here.ask("b", 2).expect("an answer");
    let short = here.read(short).expect("tokens");
    assert_eq!(bits(&short), bits(&expected(4, 8, 2)));
    let long = here.read(long).expect("tokens");
    assert_eq!(bits(&long), bits(&expected(1, 8, 200)));
}

/// Of three adapters where host memory has room for two, the one used longest ago is read from its files again.
#[test]
fn host_memory_has_a_limit() {
    let limits = |pipeline: &Pipeline| {
        let most = [1, 4, 7].map(|seed| bytes(pipeline, seed, 8));
        let most = most.into_iter().max().unwrap_or(0);
        StoreLimits {
            device: most,
            host: 2 * most,
        }
    };
    let here = Here::new(limits, 1000).start();
    for (name, seed) in [("a", 1), ("b", 4), ("c", 7)] {
        let path = here.write(name, seed, 8);
        here.load(name, &path, Replace::Nothing).expect("loaded");
        fs::remove_dir_all(path).expect("removed");
    }
    for (name, seed) in [("b", 4), ("c", 7)] {
        let answer = here.ask(name, 2).expect("an answer");
        let found = here.read(answer).expect("tokens");
        assert_eq!(bits(&found), bits(&expected(seed, 8, 2)), "{name}");
    }
    let answer = here.ask("a", 2).expect("an answer");
    assert!(matches!(here.read(answer), Err(ServiceError::Failed(_))));
}

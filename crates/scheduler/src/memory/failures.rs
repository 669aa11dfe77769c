use serde::{Deserialize, Serialize};

use super::proportion;
use crate::Load;

/// Loads for which memory ran out. None is ever forgotten unless another says more.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Failures {
    failures: Vec<Failure>,
}

/// A load, bytes beside the exact ones that were not enough for it, and by how much more than expected
/// that was.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Failure {
    load: Load,
    too_few_bytes: u64,
    surprise_bytes: u64,
}

impl Failures {
    /// Remembers that `load`, which was expected to take `expected_bytes` beside the exact ones, took
    /// more than `too_few_bytes`.
    pub(super) fn insert(&mut self, load: Load, expected_bytes: u64, too_few_bytes: u64) {
        let new = Failure {
            load,
            too_few_bytes,
            surprise_bytes: too_few_bytes.saturating_sub(expected_bytes),
        };
        if self.failures.iter().any(|known| known.implies(&new)) {
            return;
        }
        self.failures.retain(|known| !new.implies(known));
        self.failures.push(new);
    }

    /// Least bytes beside the exact ones that `load` must take, by what has failed: more than any
    /// load no larger had, and its share of what larger ones had.
    pub(super) fn least_bytes(&self, load: Load) -> Option<f64> {
        self.most(load, |failure| failure.too_few_bytes as f64)
    }

    /// As [`least_bytes`](Self::least_bytes), were what failed as far above what it had as that was
    /// above what was expected: how much was missing is not known.
    pub(super) fn likely_bytes(&self, load: Load) -> Option<f64> {
        self.most(load, |failure| {
            failure.too_few_bytes as f64 + failure.surprise_bytes as f64
        })
    }

    fn most(&self, load: Load, bytes: impl Fn(&Failure) -> f64) -> Option<f64> {
        let most = self.failures.iter().map(|failure| {
            let share = proportion::at_least(load, failure.load);
            bytes(failure) * share + if share < 1.0 { 0.0 } else { 1.0 }
        });
        most.max_by(f64::total_cmp)
    }
}

impl Failure {
    /// Whether all that `other` says follows from this.
    fn implies(&self, other: &Self) -> bool {
        let likely = |failure: &Self| failure.too_few_bytes.saturating_add(failure.surprise_bytes);
        self.load.tokens <= other.load.tokens
            && self.load.squared_tokens <= other.load.squared_tokens
            && self.too_few_bytes >= other.too_few_bytes
            && likely(self) >= likely(other)
    }
}

#[cfg(test)]
mod tests {
    use super::Failures;
    use crate::Load;

    fn load(tokens: u64, squared_tokens: u64) -> Load {
        Load {
            tokens,
            squared_tokens,
            adapter_bytes: 0,
        }
    }

    #[test]
    fn larger_loads_take_more_and_smaller_ones_their_share() {
        let mut failures = Failures::default();
        assert_eq!(failures.least_bytes(load(1, 1)), None);
        failures.insert(load(100, 1000), 450, 500);
        assert_eq!(failures.least_bytes(load(100, 1000)), Some(501.0));
        assert_eq!(failures.least_bytes(load(200, 1000)), Some(501.0));
        assert_eq!(failures.least_bytes(load(50, 900)), Some(250.0));
        assert_eq!(failures.least_bytes(load(90, 100)), Some(50.0));
        assert_eq!(failures.likely_bytes(load(100, 1000)), Some(551.0));
        assert_eq!(failures.likely_bytes(load(50, 900)), Some(275.0));
    }

    #[test]
    fn only_what_says_more_is_kept() {
        let mut failures = Failures::default();
        failures.insert(load(100, 1000), 450, 500);
        failures.insert(load(100, 1000), 450, 500);
        failures.insert(load(200, 2000), 400, 400);
        assert_eq!(failures.failures.len(), 1);
        failures.insert(load(200, 2000), 900, 900);
        assert_eq!(failures.failures.len(), 2);
        assert_eq!(failures.least_bytes(load(200, 2000)), Some(901.0));
        failures.insert(load(100, 1000), 900, 900);
        assert_eq!(failures.failures.len(), 1);
    }
}

use crate::Load;

/// Most runs that are remembered.
const CAPACITY: usize = 256;

/// Loads that have run, with what the pools held then: upper bounds on what loads take.
#[derive(Debug, Clone, Default)]
pub(super) struct Runs {
    runs: Vec<Run>,
}

#[derive(Debug, Clone, Copy)]
struct Run {
    load: Load,
    exact_bytes: u64,
    reserved_bytes: u64,
}

impl Runs {
    /// Remembers that `reserved_bytes` were enough for `load`, `exact_bytes` of them known.
    pub(super) fn insert(&mut self, load: Load, exact_bytes: u64, reserved_bytes: u64) {
        let new = Run {
            load,
            exact_bytes,
            reserved_bytes,
        };
        if self.runs.iter().any(|known| known.implies(&new)) {
            return;
        }
        self.runs.retain(|known| !new.implies(known));
        if self.runs.len() == CAPACITY {
            // The smallest: larger ones bound what it bounds, if less closely.
            let smallest = (0..CAPACITY).min_by_key(|&run| self.runs[run].reserved_bytes);
            if let Some(smallest) = smallest {
                self.runs.swap_remove(smallest);
            }
        }
        self.runs.push(new);
    }

    /// Bytes in all that were enough for this very load.
    pub(super) fn enough_for(&self, load: Load, exact_bytes: u64) -> Option<u64> {
        let same = self.runs.iter().filter(|run| {
            run.covers(load, exact_bytes)
                && run.load.tokens == load.tokens
                && run.load.squared_tokens == load.squared_tokens
                && run.exact_bytes == exact_bytes
        });
        same.map(|run| run.reserved_bytes).min()
    }

    /// Bytes in all that were enough for a load no smaller in any respect.
    pub(super) fn enough_for_larger(&self, load: Load, exact_bytes: u64) -> Option<u64> {
        let covering = self.runs.iter().filter(|run| run.covers(load, exact_bytes));
        covering.map(|run| run.reserved_bytes).min()
    }

    /// Least bytes beside the exact ones of all runs, each multiplied by `times` of its load.
    pub(super) fn scaled_bytes(&self, times: impl Fn(Load) -> f64) -> Option<f64> {
        let scaled = self.runs.iter().map(|run| {
            let beside = run.reserved_bytes.saturating_sub(run.exact_bytes);
            beside as f64 * times(run.load)
        });
        // An infinite factor of nothing is no number.
        scaled
            .filter(|bytes| bytes.is_finite())
            .min_by(f64::total_cmp)
    }
}

impl Run {
    fn covers(&self, load: Load, exact_bytes: u64) -> bool {
        load.tokens <= self.load.tokens
            && load.squared_tokens <= self.load.squared_tokens
            && exact_bytes <= self.exact_bytes
    }

    /// Whether all that `other` says follows from this.
    fn implies(&self, other: &Self) -> bool {
        self.covers(other.load, other.exact_bytes) && self.reserved_bytes <= other.reserved_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::{CAPACITY, Runs};
    use crate::Load;

    fn load(tokens: u64, squared_tokens: u64) -> Load {
        Load {
            tokens,
            squared_tokens,
            adapter_bytes: 0,
        }
    }

    #[test]
    fn smaller_loads_need_no_more_and_larger_ones_in_proportion() {
        let mut runs = Runs::default();
        assert_eq!(runs.enough_for_larger(load(0, 0), 0), None);
        assert_eq!(runs.scaled_bytes(|_| 1.0), None);
        runs.insert(load(100, 1000), 50, 250);
        assert_eq!(runs.enough_for_larger(load(100, 1000), 50), Some(250));
        assert_eq!(runs.enough_for_larger(load(50, 1000), 20), Some(250));
        assert_eq!(runs.enough_for_larger(load(101, 1000), 50), None);
        assert_eq!(runs.enough_for_larger(load(100, 1001), 50), None);
        assert_eq!(runs.enough_for_larger(load(100, 1000), 51), None);
        assert_eq!(runs.scaled_bytes(|_| 1.5), Some(300.0));
        assert_eq!(runs.scaled_bytes(|_| f64::INFINITY), None);
    }

    #[test]
    fn a_high_water_mark_does_not_tighten_what_is_known() {
        let mut runs = Runs::default();
        runs.insert(load(100, 1000), 50, 250);
        runs.insert(load(10, 100), 50, 250);
        assert_eq!(runs.runs.len(), 1);
        runs.insert(load(200, 1000), 50, 250);
        assert_eq!(runs.runs.len(), 1);
        assert_eq!(runs.enough_for_larger(load(100, 1000), 50), Some(250));
    }

    #[test]
    fn memory_of_it_is_bounded_and_the_largest_stay() {
        let mut runs = Runs::default();
        let count = 3 * CAPACITY as u64;
        for run in 0..count {
            runs.insert(load(run, run), 0, 1000 + run);
        }
        assert_eq!(runs.runs.len(), CAPACITY);
        let largest = load(count - 1, count - 1);
        assert_eq!(runs.enough_for_larger(largest, 0), Some(999 + count));
        runs.insert(load(0, 5), 0, 0);
        assert!(runs.runs.len() <= CAPACITY);
    }
}

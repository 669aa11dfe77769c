//! A seeded permutation that is computed, not stored.

/// Rounds of the network; four already make one hard to tell from random.
const ROUNDS: usize = 8;

/// A permutation of `0..len`: a Feistel network over the next even number of bits, walked along its
/// cycles until it is back in range. Fewer than four steps are expected.
#[derive(Debug, Clone)]
pub(crate) struct Permutation {
    len: u64,
    half_bits: u32,
    keys: [u64; ROUNDS],
}

impl Permutation {
    /// The permutation of `0..len` that `seed` and `stream` name.
    pub(crate) fn new(len: usize, seed: u64, stream: u64) -> Self {
        let len = len as u64;
        let bits = u64::BITS - len.saturating_sub(1).leading_zeros();
        let mut state = mix(mix(seed) ^ stream);
        let keys = std::array::from_fn(|_| {
            state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            mix(state)
        });
        Self {
            len,
            half_bits: bits.div_ceil(2).max(1),
            keys,
        }
    }

    /// New place of `index`, which must be below the length.
    pub(crate) fn at(&self, index: usize) -> usize {
        debug_assert!((index as u64) < self.len, "index {index} of {}", self.len);
        let mut value = self.network(index as u64);
        while value >= self.len {
            value = self.network(value);
        }
        value as usize
    }

    fn network(&self, value: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for key in self.keys {
            (left, right) = (right, left ^ (mix(right ^ key) & mask));
        }
        left << self.half_bits | right
    }
}

/// Finaliser of `SplitMix64`: every input bit reaches every output bit.
pub(crate) fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::Permutation;

    proptest! {
        #[test]
        fn every_index_is_hit_once(len in 1_usize..3000, seed: u64, stream: u64) {
            let permutation = Permutation::new(len, seed, stream);
            let mut hit: Vec<_> = (0..len).map(|index| permutation.at(index)).collect();
            hit.sort_unstable();
            prop_assert_eq!(hit, (0..len).collect::<Vec<_>>());
        }
    }

    #[test]
    fn small_permutations_are_all_equally_likely() {
        let mut counts = HashMap::new();
        for seed in 0..24_000 {
            let permutation = Permutation::new(4, seed, 1);
            let order: Vec<_> = (0..4).map(|index| permutation.at(index)).collect();
            *counts.entry(order).or_insert(0_u32) += 1;
        }
        assert_eq!(counts.len(), 24);
        // Expected 1000 each; five standard deviations are 155.
        assert!(
            counts.values().all(|count| (845..1155).contains(count)),
            "{counts:?}"
        );
    }

    #[test]
    fn positions_are_uniform() {
        let (len, seeds) = (37, 18_500);
        let mut counts = vec![0_u32; len];
        for seed in 0..seeds {
            counts[Permutation::new(len, seed, 0).at(5)] += 1;
        }
        assert!(
            counts.iter().all(|count| (388..612).contains(count)),
            "{counts:?}"
        );
    }
}

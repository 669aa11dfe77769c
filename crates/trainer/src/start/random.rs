//! The normal numbers of torch's generator on the CPU, with which PEFT begins its decompositions.

use std::f64::consts::TAU;

const WORDS: usize = 624;

/// The Mersenne Twister, as torch seeds it.
struct MersenneTwister {
    state: [u32; WORDS],
    next: usize,
}

impl MersenneTwister {
    fn new(seed: u32) -> Self {
        let mut state = [seed; WORDS];
        for at in 1..WORDS {
            let before = state[at - 1];
            state[at] = (before ^ (before >> 30))
                .wrapping_mul(1_812_433_253)
                .wrapping_add(at as u32);
        }
        Self { state, next: WORDS }
    }

    fn word(&mut self) -> u32 {
        if self.next == WORDS {
            let state = &mut self.state;
            for at in 0..WORDS {
                let high = state[at] & 0x8000_0000;
                let mixed = high | state[(at + 1) % WORDS] & 0x7FFF_FFFF;
                let odd = if mixed & 1 == 1 { 0x9908_B0DF } else { 0 };
                state[at] = state[(at + 397) % WORDS] ^ (mixed >> 1) ^ odd;
            }
            self.next = 0;
        }
        let mut word = self.state[self.next];
        self.next += 1;
        word ^= word >> 11;
        word ^= (word << 7) & 0x9D2C_5680;
        word ^= (word << 15) & 0xEFC6_0000;
        word ^ (word >> 18)
    }

    /// As torch draws a `float32` or a `float64` between 0 and 1.
    fn uniform(&mut self, single: bool) -> f64 {
        if single {
            return f64::from(self.word() & 0x00FF_FFFF) / f64::from(1 << 24);
        }
        let (high, low) = (self.word() & 0x001F_FFFF, self.word());
        (f64::from(high) * 2f64.powi(32) + f64::from(low)) / 2f64.powi(53)
    }
}

/// Numbers between 0 and 1, as torch draws them in `float64`.
pub(super) fn uniform(seed: u32) -> impl FnMut() -> f64 {
    let mut words = MersenneTwister::new(seed);
    move || words.uniform(false)
}

/// `torch.randn(count)` after `torch.manual_seed(seed)`, in `float32` or `float64`, for at least 16 numbers.
pub(super) fn normal(seed: u32, count: usize, single: bool) -> Vec<f64> {
    const BLOCK: usize = 16;
    let mut words = MersenneTwister::new(seed);
    let mut values: Vec<f64> = (0..count.max(BLOCK))
        .map(|_| words.uniform(single))
        .collect();
    let transform = |block: &mut [f64]| {
        for at in 0..BLOCK / 2 {
            let radius = (-2.0 * (1.0 - block[at]).ln()).sqrt();
            let angle = TAU * block[at + BLOCK / 2];
            block[at] = radius * angle.cos();
            block[at + BLOCK / 2] = radius * angle.sin();
        }
    };
    values.chunks_exact_mut(BLOCK).for_each(transform);
    if !values.len().is_multiple_of(BLOCK) {
        let last = values.len() - BLOCK;
        values[last..].fill_with(|| words.uniform(single));
        transform(&mut values[last..]);
    }
    values.truncate(count);
    values
}

#[cfg(test)]
mod tests {
    use super::normal;

    /// Of torch 2.15.0: `torch.manual_seed(42); torch.randn(19, dtype=...)[[0, 7, 9, 18]]`.
    #[test]
    fn numbers_are_those_of_torch() {
        let single = [1.926_915_3, 1.680_620_6, -0.686_623_0, 0.803_409_3];
        let double = [0.299_556_3, 0.089_480_2, -0.118_243_7, -1.526_543_9];
        for (single, expected) in [(true, single), (false, double)] {
            let found = normal(42, 19, single);
            for (at, expected) in [0, 7, 9, 18].into_iter().zip(expected) {
                assert!((found[at] - expected).abs() < 1e-6, "{found:?}");
            }
        }
    }
}

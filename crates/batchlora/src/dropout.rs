//! Dropout masks from a counter.
//!
//! A mask is a function of (task seed, step, module, row within the task's step, column) alone. It is the same in
//! forward, backward and recomputation, on every device and in any batch. The generator is Philox4x32-10 (Salmon et
//! al., "Parallel random numbers: as easy as 1, 2, 3", SC'11).

use serde::{Deserialize, Serialize};

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// Counters computed side by side, so that the compiler can use vector registers.
const LANES: usize = 16;
/// Columns served by one block of counters: every counter gives four words.
const BLOCK: usize = 4 * LANES;

/// Seed and step of an adapter, for the dropout counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DropoutDraw {
    /// Seed of the task.
    pub seed: u64,
    /// Optimizer step of the task.
    pub step: u32,
}

/// Names one task's mask at one module and step; with a row and a column it names an element.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DropoutKey {
    /// Probability of dropping an element, in `(0, 1)`.
    pub probability: f64,
    /// Seed of the task.
    pub seed: u64,
    /// Optimizer step of the task.
    pub step: u32,
    /// Number of the module within the model.
    pub module: u32,
}

impl DropoutKey {
    /// Elements whose random word is below this are dropped.
    pub fn threshold(&self) -> u32 {
        (self.probability * 2f64.powi(32)) as u32
    }

    /// The factor of a kept element, `1 / (1 - p)`.
    pub fn keep_scale(&self) -> f32 {
        (1.0 / (1.0 - self.probability)) as f32
    }

    /// The mask for these rows, `[rows, columns]` row by row: 0 for a dropped element, `1 / (1 - p)` for a
    /// kept one.
    pub fn mask(&self, rows: &[u32], columns: usize) -> Vec<f32> {
        let mut mask = vec![0.0; rows.len() * columns];
        let (threshold, keep) = (self.threshold(), self.keep_scale());
        for (&row, mask) in rows.iter().zip(mask.chunks_exact_mut(columns.max(1))) {
            let counter = [row, self.step, self.module];
            fill_row(self.seed, counter, threshold, keep, mask);
        }
        mask
    }
}

/// A word of the counter `[block, row, step, module]` decides one element: element `c` of a row is
/// word `c % 4` of counter `c / 4`.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512dq", "x86_64+avx2"))]
fn fill_row(seed: u64, counter: [u32; 3], threshold: u32, keep: f32, mask: &mut [f32]) {
    for (block, mask) in mask.chunks_mut(BLOCK).enumerate() {
        let first = (block * LANES) as u32;
        let mut words = [[0u32; LANES]; 4];
        for lane in 0..LANES {
            words[0][lane] = first + lane as u32;
            words[1][lane] = counter[0];
            words[2][lane] = counter[1];
            words[3][lane] = counter[2];
        }
        let mut key = [seed as u32, (seed >> 32) as u32];
        for _ in 0..ROUNDS {
            for lane in 0..LANES {
                let low = u64::from(MULTIPLIERS[0]) * u64::from(words[0][lane]);
                let high = u64::from(MULTIPLIERS[1]) * u64::from(words[2][lane]);
                let next = [
                    (high >> 32) as u32 ^ words[1][lane] ^ key[0],
                    high as u32,
                    (low >> 32) as u32 ^ words[3][lane] ^ key[1],
                    low as u32,
                ];
                for (word, value) in words.iter_mut().zip(next) {
                    word[lane] = value;
                }
            }
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        for (lane, mask) in mask.chunks_mut(4).enumerate() {
            for (mask, words) in mask.iter_mut().zip(&words) {
                *mask = if words[lane] < threshold { 0.0 } else { keep };
            }
        }
    }
}

/// One Philox4x32-10 block, one word after another.
pub(crate) fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..ROUNDS {
        let low = u64::from(MULTIPLIERS[0]) * u64::from(counter[0]);
        let high = u64::from(MULTIPLIERS[1]) * u64::from(counter[2]);
        counter = [
            (high >> 32) as u32 ^ counter[1] ^ key[0],
            high as u32,
            (low >> 32) as u32 ^ counter[3] ^ key[1],
            low as u32,
        ];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    counter
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "a mask has two values")]
mod tests {
    use super::*;

    /// The known answers published with Random123 1.14 (`kat_vectors`, philox4x32 10).
    #[test]
    fn philox_gives_the_published_answers() {
        assert_eq!(
            philox([0; 4], [0; 2]),
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
        );
        assert_eq!(
            philox([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox(
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0]
            ),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn vector_form_equals_the_generator() {
        let key = DropoutKey {
            probability: 0.3,
            seed: 0x1234_5678_9abc_def0,
            step: 7,
            module: 3,
        };
        for columns in [1, 15, 16, 64, 65, 203] {
            let mask = key.mask(&[0, 5, u32::MAX], columns);
            for (index, row) in [0, 5, u32::MAX].into_iter().enumerate() {
                for column in 0..columns {
                    let counter = [(column / 4) as u32, row, 7, 3];
                    let word = philox(counter, [0x9abc_def0, 0x1234_5678])[column % 4];
                    let expected = if word < key.threshold() {
                        0.0
                    } else {
                        key.keep_scale()
                    };
                    assert_eq!(mask[index * columns + column], expected, "{row} {column}");
                }
            }
        }
    }

    #[test]
    fn the_share_of_dropped_elements_is_the_probability() {
        for probability in [0.05, 0.5, 0.9] {
            let key = DropoutKey {
                probability,
                seed: 1,
                step: 0,
                module: 0,
            };
            let mask = key.mask(&(0..1000).collect::<Vec<_>>(), 1000);
            let dropped = mask.iter().filter(|&&m| m == 0.0).count() as f64 / 1e6;
            // Five standard deviations of a binomial of a million draws.
            let bound = 5.0 * (probability * (1.0 - probability) / 1e6f64).sqrt();
            assert!(
                (dropped - probability).abs() < bound,
                "{probability}: {dropped}"
            );
        }
    }
}

//! The dropout mask of [`DropoutKey`](crate::DropoutKey), computed where it is used.

use burn_cubecl::cubecl;
use cubecl::prelude::*;

use super::tables::{KEEP, SEED_HIGH, SEED_LOW, STEP, THRESHOLD};

const MULTIPLIER_0: u32 = 0xD251_1F53;
const MULTIPLIER_1: u32 = 0xCD9E_8D57;
const WEYL_0: u32 = 0x9E37_79B9;
const WEYL_1: u32 = 0xBB67_AE85;

/// The factors of elements `column..column + N` of a row: 0 for a dropped element, `1 / (1 - p)`
/// for a kept one. `segment` is where the segment's words begin, `column` a multiple of N.
#[cube]
pub(super) fn keep_factors<N: Size>(
    segments: &[u32],
    segment: usize,
    row: u32,
    module: u32,
    column: usize,
) -> Vector<f32, N> {
    let size = N::value();
    let mut word0 = (column / 4) as u32;
    let mut word1 = row;
    let mut word2 = segments[segment + STEP];
    let mut word3 = module;
    let mut key0 = segments[segment + SEED_LOW];
    let mut key1 = segments[segment + SEED_HIGH];
    for _ in 0..10 {
        let next0 = word2.mul_hi(MULTIPLIER_1) ^ word1 ^ key0;
        let next2 = word0.mul_hi(MULTIPLIER_0) ^ word3 ^ key1;
        word1 = word2 * MULTIPLIER_1;
        word3 = word0 * MULTIPLIER_0;
        word0 = next0;
        word2 = next2;
        key0 += WEYL_0;
        key1 += WEYL_1;
    }

    let threshold = segments[segment + THRESHOLD];
    let keep = f32::reinterpret(segments[segment + KEEP]);
    let mut factors = Vector::<f32, N>::new(keep);
    #[unroll]
    for index in 0..size {
        let place = (column + index) % 4;
        let mut word = word0;
        if place == 1 {
            word = word1;
        }
        if place == 2 {
            word = word2;
        }
        if place == 3 {
            word = word3;
        }
        if word < threshold {
            factors.insert(index, 0.0);
        }
    }
    factors
}

/// Vector `column` of a row of the wide operand, in `float32` and, if the kernel masks, with the
/// row's mask on.
#[cube]
pub(super) fn read_wide<F: Float, N: Size>(
    wide: &Tensor<Vector<F, N>>,
    place: (usize, usize),
    segments: &[u32],
    segment: usize,
    dropout_rows: &[u32],
    module: u32,
    #[comptime] masked: bool,
) -> Vector<f32, N> {
    let size = N::value();
    let (row, column) = place;
    let at = row * (wide.stride(0) / size) + column;
    let mut value = Vector::<f32, N>::cast_from(wide[at]);
    if comptime!(masked) {
        let dropout_row = dropout_rows[row];
        value *= keep_factors::<N>(segments, segment, dropout_row, module, column * size);
    }
    value
}

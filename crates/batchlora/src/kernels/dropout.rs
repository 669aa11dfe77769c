//! The dropout mask of [`DropoutKey`](crate::DropoutKey), drawn where an adapter's input is first read and
//! kept as bits for backward.
//!
//! Drawing costs as much as the products of rank r: ten rounds for four elements. In a forward pass that
//! keeps a graph, `shrink` therefore writes the mask, one bit an element, `[rows, ceil(width / 32)]` words:
//! 1/16 of a `bfloat16` input.

use batchlora_kernels::launch;
use burn::{backend::TensorMetadata, tensor::DType};
use burn_cubecl::{cubecl, tensor::CubeTensor};
use cubecl::prelude::*;

use super::tables::{KEEP, ROW_TILE, SEED_HIGH, SEED_LOW, STEP, THRESHOLD, Tables};
use crate::{Routing, ops::Side};

const MULTIPLIER_0: u32 = 0xD251_1F53;
const MULTIPLIER_1: u32 = 0xCD9E_8D57;
const WEYL_0: u32 = 0x9E37_79B9;
const WEYL_1: u32 = 0xBB67_AE85;

/// Source of the mask of a kernel's wide operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Mask {
    /// No mask.
    Absent,
    /// The kernel draws it.
    Drawn,
    /// The kernel draws it and writes its bits.
    Kept,
    /// The kernel reads the bits that another wrote.
    Read,
}

impl Mask {
    /// The mask of `shrink`, and the buffer for its bits.
    pub(super) fn to_draw(
        wide: &CubeTensor,
        tables: &Tables,
        routing: &Routing,
        side: Side,
    ) -> (Self, CubeTensor) {
        if side == Side::Output || !routing.has_dropout() {
            return (Self::Absent, tables.unused.clone());
        }
        launch::record_mask();
        match routing.kept_mask() {
            Some(kept) if kept.get().is_none() => {
                let [rows, width] = wide.shape().dims();
                let bits = launch::empty(wide, [rows, width.div_ceil(32)], DType::U32);
                launch::record(&[], &[&bits]);
                (Self::Kept, kept.get_or_init(|| bits).clone())
            }
            _ => (Self::Drawn, tables.unused.clone()),
        }
    }

    /// The mask of a kernel after `shrink`, and its bits.
    pub(super) fn to_read(tables: &Tables, routing: &Routing, side: Side) -> (Self, CubeTensor) {
        if side == Side::Output || !routing.has_dropout() {
            return (Self::Absent, tables.unused.clone());
        }
        if let Some(bits) = routing.kept_mask().and_then(|kept| kept.get()) {
            launch::record(&[bits], &[]);
            return (Self::Read, bits.clone());
        }
        launch::record_mask();
        (Self::Drawn, tables.unused.clone())
    }
}

/// One bit for each of the elements `column..column + N` of a row, the first the lowest: 1 if it is kept.
/// The segment's words begin at `segment`; `column` is a multiple of N.
#[cube]
pub(super) fn draw<N: Size>(
    segments: &[u32],
    segment: usize,
    row: u32,
    module: u32,
    column: usize,
) -> u32 {
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
    let mut bits = 0u32;
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
        if word >= threshold {
            bits |= comptime!(1u32 << index);
        }
    }
    bits
}

/// The masks of one segment's rows.
#[derive(CubeType)]
pub(super) struct Dropout<'a> {
    segments: &'a [u32],
    segment: usize,
    rows: &'a [u32],
    kept: &'a [u32],
    module: u32,
    #[cube(comptime)]
    pub(super) mask: Mask,
}

#[cube]
impl<'a> Dropout<'a> {
    /// The masks of the segment whose words begin at `segment`. `rows` has the generator's counter of each
    /// row, `kept` the bits of [`Mask::Read`].
    pub(super) fn new(
        segments: &'a [u32],
        segment: usize,
        rows: &'a [u32],
        kept: &'a [u32],
        module: u32,
        #[comptime] mask: Mask,
    ) -> Dropout<'a> {
        Dropout::<'a> {
            segments,
            segment,
            rows,
            kept,
            module,
            mask,
        }
    }

    /// The mask of vector `column` of a row of `width` vectors, in the lowest N bits; higher bits are
    /// unspecified.
    pub(super) fn bits<N: Size>(&self, row: usize, column: usize, width: usize) -> u32 {
        let size = N::value();
        let first = column * size;
        if comptime!(self.mask == Mask::Absent) {
            u32::MAX.runtime()
        } else if comptime!(self.mask == Mask::Read) {
            self.kept[row * (width * size).div_ceil(32) + first / 32] >> (first % 32) as u32
        } else {
            let row = self.rows[row];
            draw::<N>(self.segments, self.segment, row, self.module, first)
        }
    }

    /// A masked vector: 0 for a dropped element, `1 / (1 - p)` times a kept one.
    pub(super) fn apply<N: Size>(&self, value: Vector<f32, N>, bits: u32) -> Vector<f32, N> {
        if comptime!(self.mask == Mask::Absent) {
            value
        } else {
            let size = N::value();
            let keep = f32::reinterpret(self.segments[self.segment + KEEP]);
            let mut factors = Vector::<f32, N>::new(keep);
            #[unroll]
            for index in 0..size {
                if bits & comptime!(1u32 << index) == 0 {
                    factors.insert(index, 0.0);
                }
            }
            value * factors
        }
    }
}

/// Vector `column` of a row of the wide operand in `float32`.
#[cube]
pub(super) fn read_wide<F: Float, N: Size>(
    wide: &Tensor<Vector<F, N>>,
    row: usize,
    column: usize,
) -> Vector<f32, N> {
    Vector::cast_from(wide[row * (wide.stride(0) / N::value()) + column])
}

/// Writes the mask of a tile: `drawn` has the bits of `columns` elements of [`ROW_TILE`] rows, a
/// vector each, from element `step * columns` of the rows on.
#[cube]
pub(super) fn keep<N: Size>(
    drawn: &Shared<[u32]>,
    kept: &mut [u32],
    first_row: usize,
    rows: usize,
    step: usize,
    width: usize,
    #[comptime] columns: usize,
) {
    let size = N::value();
    let words = comptime!(columns / 32);
    let vectors = comptime!(32 / size);
    let row = UNIT_POS as usize / words;
    let word = UNIT_POS as usize % words;
    let row_words = (width * size).div_ceil(32);
    let to = step * words + word;
    if row < rows && to < row_words {
        let mut bits = 0u32;
        #[unroll]
        for index in 0..vectors {
            let from = (row * words + word) * vectors + index;
            bits |= drawn[from] << comptime!((index * size) as u32);
        }
        kept[(first_row + row) * row_words + to] = bits;
    }
}

/// Elements of the shared memory that [`keep`] reads.
pub(super) fn drawn_elements(mask: Mask, columns: usize, size: usize) -> usize {
    if mask == Mask::Kept {
        ROW_TILE * columns / size
    } else {
        1
    }
}

//! The squared norms of all slots' gradients: one launch a bank, and one that adds up its shares.
//!
//! A cube takes one slot and one share of its elements, every [`UNITS`] · shares'th vector of A and then of B, and
//! adds their squares to that share's sum in place. Shares and the order of summation depend on the adapter alone:
//! its norm has the same bits in any bank.

use batchlora_kernels::launch::{by_rows, cube_dim, empty, packed, record, vector_size, writable};
use burn::{backend::TensorMetadata, tensor::DType};
use burn_cubecl::{cubecl, tensor::CubeTensor};
use cubecl::prelude::*;

/// Units of a cube; a power of two.
const UNITS: usize = 128;
/// Slots whose shares one cube adds up.
const TOTAL_UNITS: usize = 64;

pub(super) fn add_squares(
    sums: CubeTensor,
    a: CubeTensor,
    b: CubeTensor,
    starts: CubeTensor,
) -> CubeTensor {
    let (sums, a, b) = (writable(sums), by_rows(a), by_rows(b));
    let [slots, shares] = sums.shape().dims();
    let size = vector_size(&[&a, &b]);
    record(&[&a, &b, &sums], &[&sums]);
    let client = sums.client.clone();
    add_squares_kernel::launch(
        &client,
        CubeCount::Static(slots as u32, shares as u32, 1),
        cube_dim(UNITS, 1),
        size,
        a.into_tensor_arg(),
        b.into_tensor_arg(),
        packed(starts).into_buffer_arg(),
        sums.clone().into_tensor_arg(),
    );
    sums
}

#[cube(launch)]
fn add_squares_kernel<N: Size>(
    a: &Tensor<Vector<f32, N>>,
    b: &Tensor<Vector<f32, N>>,
    starts: &[i32],
    sums: &mut Tensor<f32>,
) {
    let slot = CUBE_POS_X as usize;
    let share = CUBE_POS_Y as usize;
    let unit = UNIT_POS as usize;
    let first_row = starts[slot] as usize;
    let rank = starts[slot + 1] as usize - first_row;
    let start = share * UNITS + unit;
    let step = sums.shape(1) * UNITS;

    let mut partial = Shared::<[f32]>::new_slice(UNITS);
    partial[unit] = sum_of_squares(a, first_row, rank, start, step)
        + sum_of_squares(b, first_row, rank, start, step);
    sync_cube();
    #[unroll]
    for level in 1..comptime!(UNITS.ilog2() as usize + 1) {
        let half = comptime!(UNITS >> level);
        if unit < half {
            let other = partial[unit + half];
            partial[unit] += other;
        }
        sync_cube();
    }
    if unit == 0 && rank > 0 {
        let at = slot * sums.stride(0) + share;
        sums[at] += partial[0];
    }
}

/// The squares of every `step`th vector from `start` on, in row order.
#[cube]
fn sum_of_squares<N: Size>(
    matrix: &Tensor<Vector<f32, N>>,
    first_row: usize,
    rows: usize,
    start: usize,
    step: usize,
) -> f32 {
    let size = N::value();
    let width = matrix.shape(1) / size;
    let stride = matrix.stride(0) / size;
    let end = rows * width;
    let mut squares = Vector::<f32, N>::new(0.0);
    let mut at = start;
    while at < end {
        let value = matrix[(first_row + at / width) * stride + at % width];
        squares += value * value;
        at += step;
    }
    let mut sum = 0.0f32;
    #[unroll]
    for lane in 0..size {
        sum += squares.extract(lane);
    }
    sum
}

pub(super) fn total_squares(sums: CubeTensor) -> CubeTensor {
    let sums = by_rows(sums);
    let slots = sums.shape()[0];
    let out = empty(&sums, [slots], DType::F32);
    if slots == 0 {
        return out;
    }
    record(&[&sums], &[&out]);
    let client = sums.client.clone();
    total_squares_kernel::launch(
        &client,
        CubeCount::Static(slots.div_ceil(TOTAL_UNITS) as u32, 1, 1),
        cube_dim(TOTAL_UNITS, 1),
        sums.into_tensor_arg(),
        out.clone().into_tensor_arg(),
    );
    out
}

#[cube(launch)]
fn total_squares_kernel(sums: &Tensor<f32>, out: &mut Tensor<f32>) {
    let slot = ABSOLUTE_POS_X as usize;
    if slot < sums.shape(0) {
        let mut total = 0.0f32;
        for share in 0..sums.shape(1) {
            total += sums[slot * sums.stride(0) + share];
        }
        out[slot] = total;
    }
}

//! `dA = dSᵀ D(X)` and `dB = s · Sᵀ dH` for all adapters: one launch of partial sums over blocks of
//! rows, one that adds them up.
//!
//! Blocks are counted from the beginning of a segment and added in row order: an adapter's gradient has the same bits
//! in any batch. A cube takes one block of [`ROW_BLOCK`] rows, 32 vectors of columns and up to 64 ranks; a unit holds
//! 4 ranks × 1 vector of each chunk of 16 ranks in registers. The wide operand is read, and masked, once per 64
//! ranks.
//!
//! [`ROW_BLOCK`]: super::tables::ROW_BLOCK

use batchlora_kernels::launch::{by_rows, cube_dim, empty, record, vector_size};
use burn::{backend::TensorMetadata, tensor::DType};
use burn_cubecl::{cubecl, tensor::CubeTensor};
use cubecl::prelude::*;

use super::{
    dropout::{Dropout, Mask, read_wide},
    shrink::{MAX_CHUNKS, RANK_CHUNK},
    tables::{BLOCK_WORDS, RANK, SEGMENT_WORDS, SUM_WORDS},
    tensor_cores,
};
use crate::{Routing, ops::Side};

/// Units side by side along the columns.
pub(super) const LANES: usize = 32;
/// Rows of units, each with its own ranks.
const RANK_LANES: usize = 4;
const UNITS: usize = LANES * RANK_LANES;
/// Ranks of a chunk that one unit computes.
const UNIT_RANKS: usize = RANK_CHUNK / RANK_LANES;
/// Rows of the batch in shared memory.
const ROW_STEP: usize = 16;

pub(super) fn weight_grad(
    wide: CubeTensor,
    narrow: CubeTensor,
    routing: &Routing,
    side: Side,
) -> CubeTensor {
    let (wide, narrow) = (by_rows(wide), by_rows(narrow));
    let width = wide.shape()[1];
    let tables = routing.tables(&wide.client, &wide.device);
    let out = empty(&wide, [routing.rank_sum(), width], DType::F32);
    let partial = empty(&wide, [tables.partial_rows.max(1), width], DType::F32);
    let size = vector_size(&[&wide, &partial, &out]);
    let cubes_along = (width / size).div_ceil(LANES) as u32;
    let client = wide.client.clone();
    if tables.block_count > 0 && tensor_cores::takes(&wide) {
        tensor_cores::partial_sums(wide, narrow, &partial, &tables, routing, side);
    } else if tables.block_count > 0 {
        let chunks = routing.rank_max().div_ceil(RANK_CHUNK);
        // Blocks are along x, where a CUDA grid may have more than 65,535 cubes.
        let cubes = CubeCount::Static(
            tables.block_count as u32,
            cubes_along,
            chunks.div_ceil(MAX_CHUNKS) as u32,
        );
        record(&[&wide, &narrow], &[&partial]);
        let (mask, kept) = Mask::to_read(&tables, routing, side);
        let dtype = wide.dtype;
        partial_sums_kernel::launch(
            &client,
            cubes,
            cube_dim(LANES, RANK_LANES),
            size,
            wide.into_tensor_arg(),
            narrow.into_tensor_arg(),
            tables.blocks.into_buffer_arg(),
            tables.segments.into_buffer_arg(),
            tables.dropout_rows.into_buffer_arg(),
            kept.into_buffer_arg(),
            partial.clone().into_tensor_arg(),
            routing.module(),
            chunks.next_power_of_two().min(MAX_CHUNKS),
            mask,
            burn::backend::cubecl::dtype_to_storage_type(dtype),
        );
    }
    if routing.rank_sum() > 0 {
        record(&[&partial], &[&out]);
        sum_kernel::launch(
            &client,
            CubeCount::Static(routing.rank_sum() as u32, cubes_along, 1),
            cube_dim(LANES, 1),
            size,
            partial.into_tensor_arg(),
            tables.sums.into_buffer_arg(),
            out.clone().into_tensor_arg(),
            u32::from(side == Side::Output),
        );
    }
    out
}

#[cube(launch)]
fn partial_sums_kernel<F: Float, N: Size>(
    wide: &Tensor<Vector<F, N>>,
    narrow: &Tensor<f32>,
    blocks: &[u32],
    segments: &[u32],
    dropout_rows: &[u32],
    kept: &[u32],
    partial: &mut Tensor<Vector<f32, N>>,
    module: u32,
    #[comptime] chunks: usize,
    #[comptime] mask: Mask,
    #[define(F)] _dtype: ElemType,
) {
    let size = N::value();
    let ranks = comptime!(chunks * RANK_CHUNK);
    let block = CUBE_POS_X as usize * BLOCK_WORDS;
    let segment = blocks[block] as usize * SEGMENT_WORDS;
    let first_row = blocks[block + 1] as usize;
    let rows = blocks[block + 2] as usize;
    let first_partial = blocks[block + 3] as usize;
    let rank = segments[segment + RANK] as usize;
    let first_rank = CUBE_POS_Z as usize * (MAX_CHUNKS * RANK_CHUNK);

    let lane = UNIT_POS_X as usize;
    let rank_lane = UNIT_POS_Y as usize;
    let unit = rank_lane * LANES + lane;
    let column = CUBE_POS_Y as usize * LANES + lane;
    let width = wide.shape(1) / size;
    let partial_stride = partial.stride(0) / size;
    let dropout = Dropout::new(segments, segment, dropout_rows, kept, module, mask);

    let mut x = Shared::<[Vector<f32, N>]>::new_slice(comptime!(ROW_STEP * LANES));
    let mut s = Shared::<[f32]>::new_slice(comptime!(ROW_STEP * chunks * RANK_CHUNK));
    let mut acc = Array::<Vector<f32, N>>::new(comptime!(chunks * UNIT_RANKS));
    #[unroll]
    for i in 0..comptime!(chunks * UNIT_RANKS) {
        acc[i] = Vector::<f32, N>::new(0.0);
    }

    if first_rank < rank {
        for step in 0..rows.div_ceil(ROW_STEP) {
            let step_row = step * ROW_STEP;
            for load in 0..comptime!(ROW_STEP / RANK_LANES) {
                let row = step_row + load * RANK_LANES + rank_lane;
                let mut value = Vector::<f32, N>::new(0.0);
                if row < rows && column < width {
                    value = read_wide::<F, N>(wide, first_row + row, column);
                    let bits = dropout.bits::<N>(first_row + row, column, width);
                    value = dropout.apply::<N>(value, bits);
                }
                x[(load * RANK_LANES + rank_lane) * LANES + lane] = value;
            }
            for load in 0..comptime!(ROW_STEP * ranks / UNITS) {
                let at = load * UNITS + unit;
                let row = step_row + at / ranks;
                let j = first_rank + at % ranks;
                let mut value = 0.0f32;
                if row < rows && j < rank {
                    value = narrow[(first_row + row) * narrow.stride(0) + j];
                }
                s[at] = value;
            }
            sync_cube();
            for row in 0..ROW_STEP {
                let value = x[row * LANES + lane];
                #[unroll]
                for chunk in 0..chunks {
                    if first_rank + chunk * RANK_CHUNK < rank {
                        #[unroll]
                        for j in 0..UNIT_RANKS {
                            let at = chunk * RANK_CHUNK + rank_lane * UNIT_RANKS + j;
                            let factor = s[row * ranks + at];
                            acc[chunk * UNIT_RANKS + j] += Vector::<f32, N>::new(factor) * value;
                        }
                    }
                }
            }
            sync_cube();
        }

        if column < width {
            #[unroll]
            for chunk in 0..chunks {
                #[unroll]
                for j in 0..UNIT_RANKS {
                    let at = first_rank + chunk * RANK_CHUNK + rank_lane * UNIT_RANKS + j;
                    if at < rank {
                        let row = (first_partial + at) * partial_stride;
                        partial[row + column] = acc[chunk * UNIT_RANKS + j];
                    }
                }
            }
        }
    }
}

/// Adds the partial sums of every packed row, in order; a row without any becomes zero.
#[cube(launch)]
fn sum_kernel<N: Size>(
    partial: &Tensor<Vector<f32, N>>,
    sums: &[u32],
    out: &mut Tensor<Vector<f32, N>>,
    of_b: u32,
) {
    let column = CUBE_POS_Y as usize * LANES + UNIT_POS_X as usize;
    sum_row::<N>(partial, sums, CUBE_POS_X as usize, column, out, of_b);
}

/// One vector of a packed row's sum; `of_b` is 1 for dB, 0 for dA.
#[cube]
pub(super) fn sum_row<N: Size>(
    partial: &Tensor<Vector<f32, N>>,
    sums: &[u32],
    row: usize,
    column: usize,
    out: &mut Tensor<Vector<f32, N>>,
    of_b: u32,
) {
    let size = N::value();
    let stride = partial.stride(0) / size;
    let out_stride = out.stride(0) / size;
    let first = sums[row * SUM_WORDS] as usize;
    let count = sums[row * SUM_WORDS + 1] as usize;
    let between = sums[row * SUM_WORDS + 2] as usize;
    if column < out.shape(1) / size {
        let mut sum = Vector::<f32, N>::new(0.0);
        for block in 0..count {
            sum += partial[(first + block * between) * stride + column];
        }
        let factor = f32::reinterpret(sums[row * SUM_WORDS + 3 + of_b as usize]);
        out[row * out_stride + column] = sum * Vector::new(factor);
    }
}

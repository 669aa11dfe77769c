//! `dS = s · dH Bᵀ` and `dB = s · Sᵀ dH` from one read of dH, all adapters in one launch of partial
//! sums and one that adds them up.
//!
//! A cube takes a block of [`ROW_BLOCK`] rows of one segment, up to 64 ranks, and a block of columns;
//! a unit holds 2 ranks of each chunk of 16 and 2 or 4 vectors of columns: its share of dB stays in
//! registers over all rows, its share of B in registers or cache. It runs over the rows by
//! [`ROW_STEP`]; its columns' part of dS is summed within the cube, in shared memory, and written as
//! one partial sum per block of columns. The second launch adds dB over row blocks and
//! dS over column blocks, both in order: an adapter's bits do not depend on its neighbours.
//!
//! This reads dH once less, and writes and reads `8 · r / columns` bytes of partial sums of dS for each
//! element of it. A block has 512 columns, or 256 in a layer narrower than 4096, which would have too few
//! cubes otherwise: 0.25 bytes at rank 16 and 1 at rank 64, or twice that. Above 64 ranks dH is read, and
//! a read of it saved, once per 64.
//!
//! [`ROW_BLOCK`]: super::tables::ROW_BLOCK

#![expect(
    clippy::too_many_lines,
    reason = "a part of a kernel that works on its registers cannot be told from the rest"
)]

use batchlora_kernels::launch::{by_rows, cube_dim, empty, record, vector_size};
use burn::{backend::TensorMetadata, tensor::DType};
use burn_cubecl::{cubecl, tensor::CubeTensor};
use cubecl::prelude::*;

use super::{
    shrink::{MAX_CHUNKS, RANK_CHUNK, shrink},
    tables::{BLOCK_WORDS, RANK, RANK_START, SCALE, SEGMENT_WORDS},
    tensor_cores,
    weight_grad::{sum_row, weight_grad},
};
use crate::{Routing, ops::Side};

/// Units side by side along the columns.
const LANES: usize = 32;
/// Rows of units, each with its own ranks.
const RANK_LANES: usize = 8;
const UNITS: usize = LANES * RANK_LANES;
/// Ranks of a chunk that one unit computes.
const UNIT_RANKS: usize = RANK_CHUNK / RANK_LANES;
/// Vectors of columns that one unit computes.
const UNIT_VECTORS: usize = 4;
/// Vectors of columns of one unit in a layer of fewer than [`WIDE`] vectors.
const NARROW_UNIT_VECTORS: usize = 2;
const WIDE: usize = 1024;
/// Rows between two sums over a cube.
const ROW_STEP: usize = 4;
/// Elements of dS in a step of one chunk.
const STEP_SUMS: usize = ROW_STEP * RANK_CHUNK;
/// Units that share the lanes of one element.
const SHARES: usize = UNITS / STEP_SUMS;
/// Lanes of one element of dS, padded so that shares are read from different memory banks.
const PITCH: usize = LANES + SHARES;
/// Chunks whose part of B a unit keeps in registers, beside as much of dB.
const HELD_CHUNKS: usize = 2;

/// `(dS, dB)`.
pub(super) fn output_grads(
    gradient: CubeTensor,
    narrow: CubeTensor,
    weight: CubeTensor,
    routing: &Routing,
) -> (CubeTensor, CubeTensor) {
    let [gradient, narrow, weight] = [gradient, narrow, weight].map(by_rows);
    let [rows, width] = gradient.shape().dims();
    let (rank_sum, rank_max) = (routing.rank_sum(), routing.rank_max());
    if tensor_cores::takes(&gradient) {
        return (
            shrink(gradient.clone(), weight, routing, Side::Output),
            weight_grad(gradient, narrow, routing, Side::Output),
        );
    }
    let tables = routing.tables(&gradient.client, &gradient.device);
    let narrow_gradient = empty(&gradient, [rows, rank_max], DType::F32);
    let weight_gradient = empty(&gradient, [rank_sum, width], DType::F32);
    if rank_sum == 0 {
        return (narrow_gradient, weight_gradient);
    }
    let weight_partial = empty(&gradient, [tables.partial_rows.max(1), width], DType::F32);
    let size = vector_size(&[&gradient, &weight, &weight_partial, &weight_gradient]);
    let vectors = width / size;
    let unit_vectors = if vectors < WIDE {
        NARROW_UNIT_VECTORS
    } else {
        UNIT_VECTORS
    };
    let column_blocks = vectors.div_ceil(LANES * unit_vectors);
    let narrow_elements = column_blocks * tables.block_elements;
    let narrow_partial = empty(&gradient, [narrow_elements.max(1)], DType::F32);
    let client = gradient.client.clone();
    if tables.block_count > 0 {
        let chunks = rank_max.div_ceil(RANK_CHUNK);
        let cubes = CubeCount::Static(
            tables.block_count as u32,
            column_blocks as u32,
            chunks.div_ceil(MAX_CHUNKS) as u32,
        );
        record(
            &[&gradient, &narrow, &weight],
            &[&weight_partial, &narrow_partial],
        );
        let dtype = gradient.dtype;
        partial_sums_kernel::launch(
            &client,
            cubes,
            cube_dim(LANES, RANK_LANES),
            size,
            gradient.into_tensor_arg(),
            narrow.into_tensor_arg(),
            weight.into_tensor_arg(),
            tables.blocks.clone().into_buffer_arg(),
            tables.segments.clone().into_buffer_arg(),
            weight_partial.clone().into_tensor_arg(),
            narrow_partial.clone().into_buffer_arg(),
            tables.block_elements as u32,
            chunks.next_power_of_two().min(MAX_CHUNKS),
            unit_vectors,
            burn::backend::cubecl::dtype_to_storage_type(dtype),
        );
    }
    record(
        &[&weight_partial, &narrow_partial],
        &[&weight_gradient, &narrow_gradient],
    );
    sum_kernel::launch(
        &client,
        CubeCount::Static(
            (rank_sum + tables.block_count) as u32,
            vectors.div_ceil(LANES) as u32,
            1,
        ),
        cube_dim(LANES, 1),
        size,
        weight_partial.into_tensor_arg(),
        narrow_partial.into_buffer_arg(),
        tables.sums.into_buffer_arg(),
        tables.blocks.into_buffer_arg(),
        tables.segments.into_buffer_arg(),
        weight_gradient.clone().into_tensor_arg(),
        narrow_gradient.clone().into_tensor_arg(),
        tables.block_elements as u32,
        column_blocks as u32,
    );
    (narrow_gradient, weight_gradient)
}

#[cube(launch)]
fn partial_sums_kernel<F: Float, N: Size>(
    gradient: &Tensor<Vector<F, N>>,
    narrow: &Tensor<f32>,
    weight: &Tensor<Vector<f32, N>>,
    blocks: &[u32],
    segments: &[u32],
    weight_partial: &mut Tensor<Vector<f32, N>>,
    narrow_partial: &mut [f32],
    block_elements: u32,
    #[comptime] chunks: usize,
    #[comptime] unit_vectors: usize,
    #[define(F)] _dtype: ElemType,
) {
    let size = N::value();
    let block = CUBE_POS_X as usize * BLOCK_WORDS;
    let segment = blocks[block] as usize * SEGMENT_WORDS;
    let first_row = blocks[block + 1] as usize;
    let rows = blocks[block + 2] as usize;
    let first_partial = blocks[block + 3] as usize;
    let first_element = CUBE_POS_Y as usize * block_elements as usize + blocks[block + 4] as usize;
    let rank_start = segments[segment + RANK_START] as usize;
    let rank = segments[segment + RANK] as usize;
    let first_rank = CUBE_POS_Z as usize * (MAX_CHUNKS * RANK_CHUNK);

    let lane = UNIT_POS_X as usize;
    let rank_lane = UNIT_POS_Y as usize;
    let unit = rank_lane * LANES + lane;
    let first_column = CUBE_POS_Y as usize * comptime!(LANES * unit_vectors) + lane;
    let width = gradient.shape(1) / size;
    let partial_stride = weight_partial.stride(0) / size;

    let held = comptime!(if chunks <= HELD_CHUNKS { chunks } else { 1 });
    let per_chunk = comptime!(UNIT_RANKS * unit_vectors);
    let mut lanes = Shared::<[f32]>::new_slice(comptime!(STEP_SUMS * PITCH));
    let mut b = Array::<Vector<f32, N>>::new(comptime!(held * per_chunk));
    let mut acc = Array::<Vector<f32, N>>::new(comptime!(chunks * per_chunk));
    #[unroll]
    for i in 0..comptime!(chunks * per_chunk) {
        acc[i] = Vector::<f32, N>::new(0.0);
    }

    if first_rank < rank {
        if comptime!(held == chunks) {
            #[unroll]
            for chunk in 0..chunks {
                let at = first_rank + chunk * RANK_CHUNK + rank_lane * UNIT_RANKS;
                let place = (rank_start, at, rank);
                load_ranks::<N>(weight, place, first_column, &mut b, chunk, unit_vectors);
            }
        }
        for step in 0..rows.div_ceil(ROW_STEP) {
            let step_row = step * ROW_STEP;
            #[unroll]
            for chunk in 0..chunks {
                let chunk_rank = first_rank + chunk * RANK_CHUNK;
                if chunk_rank < rank {
                    let unit_rank = chunk_rank + rank_lane * UNIT_RANKS;
                    if unit_rank < rank {
                        let slot = comptime!(if held == chunks { chunk } else { 0 });
                        if comptime!(held < chunks) {
                            let place = (rank_start, unit_rank, rank);
                            load_ranks::<N>(
                                weight,
                                place,
                                first_column,
                                &mut b,
                                slot,
                                unit_vectors,
                            );
                        }
                        let mut end = rows - step_row;
                        if end > ROW_STEP {
                            end = ROW_STEP.runtime();
                        }
                        for within in 0..end {
                            let row = first_row + step_row + within;
                            let mut x = Array::<Vector<f32, N>>::new(unit_vectors);
                            load_row::<F, N>(gradient, row, first_column, &mut x, unit_vectors);
                            #[unroll]
                            for j in 0..UNIT_RANKS {
                                let mut factor = 0.0f32;
                                if unit_rank + j < rank {
                                    factor = narrow[row * narrow.stride(0) + unit_rank + j];
                                }
                                let mut products = Vector::<f32, N>::new(0.0);
                                #[unroll]
                                for v in 0..unit_vectors {
                                    let at = j * unit_vectors + v;
                                    products += x[v] * b[slot * per_chunk + at];
                                    acc[chunk * per_chunk + at] +=
                                        Vector::<f32, N>::new(factor) * x[v];
                                }
                                let mut sum = 0.0f32;
                                #[unroll]
                                for element in 0..size {
                                    sum += products.extract(element);
                                }
                                let place = within * RANK_CHUNK + rank_lane * UNIT_RANKS + j;
                                lanes[place * PITCH + lane] = sum;
                            }
                        }
                    }
                    let sum = sum_lanes(&lanes);
                    let row = step_row + unit / RANK_CHUNK;
                    let j = chunk_rank + unit % RANK_CHUNK;
                    // Sums of rows and ranks beyond these are unspecified.
                    if unit < STEP_SUMS && row < rows && j < rank {
                        narrow_partial[first_element + row * rank + j] = sum;
                    }
                }
            }
        }

        #[unroll]
        for chunk in 0..chunks {
            #[unroll]
            for j in 0..UNIT_RANKS {
                let at = first_rank + chunk * RANK_CHUNK + rank_lane * UNIT_RANKS + j;
                if at < rank {
                    let row = (first_partial + at) * partial_stride;
                    #[unroll]
                    for v in 0..unit_vectors {
                        let column = first_column + v * LANES;
                        if column < width {
                            weight_partial[row + column] =
                                acc[chunk * per_chunk + j * unit_vectors + v];
                        }
                    }
                }
            }
        }
    }
}

/// A unit's columns of a row in `float32`, zero beyond the last.
#[cube]
fn load_row<F: Float, N: Size>(
    gradient: &Tensor<Vector<F, N>>,
    row: usize,
    first_column: usize,
    x: &mut Array<Vector<f32, N>>,
    #[comptime] unit_vectors: usize,
) {
    let size = N::value();
    let width = gradient.shape(1) / size;
    let first = row * (gradient.stride(0) / size);
    #[unroll]
    for v in 0..unit_vectors {
        let column = first_column + v * LANES;
        x[v] = Vector::<f32, N>::new(0.0);
        if column < width {
            x[v] = Vector::cast_from(gradient[first + column]);
        }
    }
}

/// The sum over all lanes of one element of dS: that with the unit's number, below [`STEP_SUMS`].
#[cube]
fn sum_lanes(lanes: &Shared<[f32]>) -> f32 {
    let unit = UNIT_POS as usize;
    let mut shares = Shared::<[f32]>::new_slice(UNITS);
    sync_cube();
    let mut share = 0.0f32;
    for i in 0..comptime!(LANES / SHARES) {
        share += lanes[unit / SHARES * PITCH + unit % SHARES + i * SHARES];
    }
    shares[unit] = share;
    sync_cube();
    let mut sum = 0.0f32;
    if unit < STEP_SUMS {
        for i in 0..SHARES {
            sum += shares[unit * SHARES + i];
        }
    }
    sum
}

/// A unit's ranks and columns of the packed weight, zero beyond either. `place` is the adapter's
/// first packed row, the unit's first rank and the adapter's rank.
#[cube]
fn load_ranks<N: Size>(
    weight: &Tensor<Vector<f32, N>>,
    place: (usize, usize, usize),
    first_column: usize,
    b: &mut Array<Vector<f32, N>>,
    #[comptime] slot: usize,
    #[comptime] unit_vectors: usize,
) {
    let size = N::value();
    let (rank_start, first, rank) = place;
    let width = weight.shape(1) / size;
    let stride = weight.stride(0) / size;
    #[unroll]
    for j in 0..UNIT_RANKS {
        #[unroll]
        for v in 0..unit_vectors {
            let column = first_column + v * LANES;
            let mut value = Vector::<f32, N>::new(0.0);
            if first + j < rank && column < width {
                value = weight[(rank_start + first + j) * stride + column];
            }
            b[(slot * UNIT_RANKS + j) * unit_vectors + v] = value;
        }
    }
}

/// The first cubes along x add the partial sums of a packed row of dB each, the others those of a
/// block of dS.
#[cube(launch)]
fn sum_kernel<N: Size>(
    weight_partial: &Tensor<Vector<f32, N>>,
    narrow_partial: &[f32],
    sums: &[u32],
    blocks: &[u32],
    segments: &[u32],
    weight_gradient: &mut Tensor<Vector<f32, N>>,
    narrow_gradient: &mut Tensor<f32>,
    block_elements: u32,
    column_blocks: u32,
) {
    let rank_sum = weight_gradient.shape(0);
    let cube = CUBE_POS_X as usize;
    let first = CUBE_POS_Y as usize * LANES + UNIT_POS_X as usize;
    if cube < rank_sum {
        sum_row::<N>(weight_partial, sums, cube, first, weight_gradient, 1u32);
    } else {
        let block = (cube - rank_sum) * BLOCK_WORDS;
        let segment = blocks[block] as usize * SEGMENT_WORDS;
        let first_row = blocks[block + 1] as usize;
        let rows = blocks[block + 2] as usize;
        let first_element = blocks[block + 4] as usize;
        let rank = segments[segment + RANK] as usize;
        let scale = f32::reinterpret(segments[segment + SCALE]);
        let stride = narrow_gradient.stride(0);
        let mut at = first;
        while at < rows * rank {
            let mut sum = 0.0f32;
            for column_block in 0..column_blocks as usize {
                sum += narrow_partial[column_block * block_elements as usize + first_element + at];
            }
            narrow_gradient[(first_row + at / rank) * stride + at % rank] = sum * scale;
            at += CUBE_COUNT_Y as usize * LANES;
        }
    }
}

//! `S = D(X) Aᵀ` and `dS = s · dH Bᵀ`: every row times its adapter's packed rows, all adapters in
//! one launch.
//!
//! A cube takes [`ROW_TILE`] rows of one segment and up to 64 of its ranks, in chunks of
//! [`RANK_CHUNK`]; chunks beyond the adapter's rank are not computed. It runs along the width by
//! [`WIDTH_TILE`], with both operands in shared memory as `float32`; four groups of units each take
//! a quarter of every tile and add up their sums at the end. A unit holds 4 rows × 4 ranks of a
//! chunk in registers.

use batchlora_kernels::launch::{by_rows, cube_dim, empty, record, vector_size};
use burn::{backend::TensorMetadata, tensor::DType};
use burn_cubecl::{cubecl, tensor::CubeTensor};
use cubecl::prelude::*;

use super::{
    dropout::{Dropout, Mask, drawn_elements, keep, read_wide},
    tables::{RANK, RANK_START, ROW_TILE, SCALE, SEGMENT_WORDS, TILE_WORDS},
    tensor_cores,
};
use crate::{Routing, ops::Side};

/// Ranks computed together.
pub(super) const RANK_CHUNK: usize = 16;
/// Chunks that a cube computes at most; more ranks take more cubes.
pub(super) const MAX_CHUNKS: usize = 4;
/// Elements of the width in shared memory.
const WIDTH_TILE: usize = 64;
/// Groups of units that share the summed dimension.
const SLICES: usize = 4;
const UNITS: usize = 128;

pub(super) fn shrink(
    wide: CubeTensor,
    weight: CubeTensor,
    routing: &Routing,
    side: Side,
) -> CubeTensor {
    let (wide, weight) = (by_rows(wide), by_rows(weight));
    let out = empty(&wide, [wide.shape()[0], routing.rank_max()], DType::F32);
    let tables = routing.tables(&wide.client, &wide.device);
    if tables.tile_count == 0 || routing.rank_max() == 0 {
        return out;
    }
    if tensor_cores::takes(&wide) {
        return tensor_cores::shrink(wide, weight, out, tables, routing, side);
    }
    let size = vector_size(&[&wide, &weight]);
    let chunks = routing.rank_max().div_ceil(RANK_CHUNK);
    let cubes = CubeCount::Static(
        tables.tile_count as u32,
        chunks.div_ceil(MAX_CHUNKS) as u32,
        1,
    );
    let (mask, kept) = Mask::to_draw(&wide, &tables, routing, side);
    record(&[&wide, &weight], &[&out]);
    let (client, dtype) = (wide.client.clone(), wide.dtype);
    shrink_kernel::launch(
        &client,
        cubes,
        cube_dim(UNITS, 1),
        size,
        wide.into_tensor_arg(),
        weight.into_tensor_arg(),
        tables.tiles.into_buffer_arg(),
        tables.segments.into_buffer_arg(),
        tables.dropout_rows.into_buffer_arg(),
        out.clone().into_tensor_arg(),
        kept.into_buffer_arg(),
        routing.module(),
        u32::from(side == Side::Output),
        chunks.next_power_of_two().min(MAX_CHUNKS),
        mask,
        burn::backend::cubecl::dtype_to_storage_type(dtype),
    );
    out
}

#[cube(launch)]
fn shrink_kernel<F: Float, N: Size>(
    wide: &Tensor<Vector<F, N>>,
    weight: &Tensor<Vector<f32, N>>,
    tiles: &[u32],
    segments: &[u32],
    dropout_rows: &[u32],
    out: &mut Tensor<f32>,
    kept: &mut [u32],
    module: u32,
    scaled: u32,
    #[comptime] chunks: usize,
    #[comptime] mask: Mask,
    #[define(F)] _dtype: ElemType,
) {
    let size = N::value();
    let vectors = comptime!(WIDTH_TILE / size);
    // One vector of padding keeps rows that are read together in different memory banks.
    let pitch = comptime!(vectors + 1);
    let tile = CUBE_POS_X as usize * TILE_WORDS;
    let segment = tiles[tile] as usize * SEGMENT_WORDS;
    let first_row = tiles[tile + 1] as usize;
    let rows = tiles[tile + 2] as usize;
    let rank_start = segments[segment + RANK_START] as usize;
    let rank = segments[segment + RANK] as usize;
    let first_rank = CUBE_POS_Y as usize * (MAX_CHUNKS * RANK_CHUNK);

    let unit = UNIT_POS as usize;
    let rank_lane = unit % 4;
    let row_lane = unit / 4 % 8;

    let width = wide.shape(1) / size;
    let weight_stride = weight.stride(0) / size;
    // A kernel that draws the mask reads no bits.
    let dropout = Dropout::new(segments, segment, dropout_rows, segments, module, mask);

    let mut x =
        Shared::<[Vector<f32, N>]>::new_slice(comptime!(ROW_TILE * (WIDTH_TILE / size + 1)));
    let mut w =
        Shared::<[Vector<f32, N>]>::new_slice(comptime!(RANK_CHUNK * (WIDTH_TILE / size + 1)));
    let mut drawn = Shared::<[u32]>::new_slice(comptime!(drawn_elements(mask, WIDTH_TILE, size)));
    let mut acc = Array::<f32>::new(comptime!(chunks * 16));

    if first_rank < rank {
        for step in 0..width.div_ceil(vectors) {
            for load in 0..comptime!(ROW_TILE * vectors / UNITS) {
                let at = load * UNITS + unit;
                let row = at / vectors;
                let column = step * vectors + at % vectors;
                let mut value = Vector::<f32, N>::new(0.0);
                let mut bits = 0u32;
                if row < rows && column < width {
                    value = read_wide::<F, N>(wide, first_row + row, column);
                    bits = dropout.bits::<N>(first_row + row, column, width);
                    value = dropout.apply::<N>(value, bits);
                }
                if comptime!(mask == Mask::Kept) {
                    drawn[at] = bits;
                }
                x[row * pitch + at % vectors] = value;
            }
            #[unroll]
            for chunk in 0..chunks {
                let chunk_rank = first_rank + chunk * RANK_CHUNK;
                if chunk_rank < rank {
                    for load in 0..comptime!(RANK_CHUNK * vectors / UNITS) {
                        let at = load * UNITS + unit;
                        let lane = at / vectors;
                        let column = step * vectors + at % vectors;
                        let mut value = Vector::<f32, N>::new(0.0);
                        if chunk_rank + lane < rank && column < width {
                            value =
                                weight[(rank_start + chunk_rank + lane) * weight_stride + column];
                        }
                        w[lane * pitch + at % vectors] = value;
                    }
                    sync_cube();
                    if comptime!(mask == Mask::Kept && chunk == 0) && first_rank == 0 {
                        keep::<N>(&drawn, kept, first_row, rows, step, width, WIDTH_TILE);
                    }
                    for vector in 0..comptime!(vectors / SLICES) {
                        let at = unit / 32 * comptime!(vectors / SLICES) + vector;
                        let mut ranks = Array::<Vector<f32, N>>::new(4usize);
                        #[unroll]
                        for j in 0..4 {
                            ranks[j] = w[(rank_lane + 4 * j) * pitch + at];
                        }
                        #[unroll]
                        for i in 0..4 {
                            let value = x[(row_lane + 8 * i) * pitch + at];
                            #[unroll]
                            for j in 0..4 {
                                let product = value * ranks[j];
                                #[unroll]
                                for lane in 0..size {
                                    acc[chunk * 16 + i * 4 + j] += product.extract(lane);
                                }
                            }
                        }
                    }
                    sync_cube();
                }
            }
        }

        let factor = factor(segments, segment, scaled);
        #[unroll]
        for chunk in 0..chunks {
            let chunk_rank = first_rank + chunk * RANK_CHUNK;
            if chunk_rank < rank {
                let place = ChunkPlace {
                    first_row,
                    rows,
                    first_rank: chunk_rank,
                    ranks: rank - chunk_rank,
                };
                store_chunk(acc, chunk, place, factor, out);
            }
        }
    }
}

/// The factor of a product: the segment's scale, or 1.
#[cube]
pub(super) fn factor(segments: &[u32], segment: usize, scaled: u32) -> f32 {
    let mut factor = 1.0f32;
    if scaled == 1 {
        factor = f32::reinterpret(segments[segment + SCALE]);
    }
    factor
}

/// Place of a chunk's results in the output.
#[derive(CubeType, Clone, Copy)]
struct ChunkPlace {
    first_row: usize,
    rows: usize,
    first_rank: usize,
    ranks: usize,
}

/// Adds up the groups' sums of a chunk, group after group, and writes the result.
#[cube]
fn store_chunk(
    acc: Array<f32>,
    #[comptime] chunk: usize,
    place: ChunkPlace,
    factor: f32,
    out: &mut Tensor<f32>,
) {
    let unit = UNIT_POS as usize;
    let rank_lane = unit % 4;
    let row_lane = unit / 4 % 8;
    let out_stride = out.stride(0);
    let mut sums = Shared::<[f32]>::new_slice(comptime!(ROW_TILE * RANK_CHUNK));
    #[unroll]
    for turn in 0..SLICES {
        if unit / 32 == turn {
            #[unroll]
            for i in 0..4 {
                #[unroll]
                for j in 0..4 {
                    let at = (row_lane + 8 * i) * RANK_CHUNK + rank_lane + 4 * j;
                    let mut sum = acc[chunk * 16 + i * 4 + j];
                    if comptime!(turn > 0) {
                        sum += sums[at];
                    }
                    sums[at] = sum;
                }
            }
        }
        sync_cube();
    }
    for store in 0..comptime!(ROW_TILE * RANK_CHUNK / UNITS) {
        let at = store * UNITS + unit;
        let row = at / RANK_CHUNK;
        let lane = at % RANK_CHUNK;
        if row < place.rows && lane < place.ranks {
            out[(place.first_row + row) * out_stride + place.first_rank + lane] = sums[at] * factor;
        }
    }
    // The next chunk may use the same shared memory.
    sync_cube();
}

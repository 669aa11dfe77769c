//! `H += s · S B` and `dX += D'(dS A)`: the product of rank r times the adapter's packed rows, added to the
//! wide operand in place, all adapters in one launch.
//!
//! A cube takes [`ROW_TILE`] rows of one segment and 32 vectors of columns; a unit holds 8 rows of
//! one vector in registers and runs over exactly the adapter's rank. The packed rows come from cache; the wide operand is read and written once.

use batchlora_kernels::launch::{by_rows, cube_dim, record, vector_size, writable};
use burn::backend::TensorMetadata;
use burn_cubecl::{cubecl, tensor::CubeTensor};
use cubecl::prelude::*;

use super::{
    dropout::{Dropout, Mask},
    shrink::RANK_CHUNK,
    tables::{RANK, RANK_START, ROW_TILE, SCALE, SEGMENT_WORDS, TILE_WORDS},
    tensor_cores,
};
use crate::{Routing, ops::Side};

/// Units side by side along the columns.
const LANES: usize = 32;
/// Rows of units.
const ROWS: usize = 4;
/// Rows that one unit computes.
const UNIT_ROWS: usize = ROW_TILE / ROWS;

pub(super) fn expand_add(
    wide: CubeTensor,
    narrow: CubeTensor,
    weight: CubeTensor,
    routing: &Routing,
    side: Side,
) -> CubeTensor {
    let tables = routing.tables(&wide.client, &wide.device);
    if tables.tile_count == 0 || routing.rank_max() == 0 {
        return wide;
    }
    let (wide, narrow, weight) = (writable(wide), by_rows(narrow), by_rows(weight));
    if tensor_cores::takes(&wide) {
        return tensor_cores::expand_add(wide, narrow, weight, tables, routing, side);
    }
    let size = vector_size(&[&wide, &weight]);
    let vectors = wide.shape()[1] / size;
    let cubes = CubeCount::Static(tables.tile_count as u32, vectors.div_ceil(LANES) as u32, 1);
    record(&[&wide, &narrow, &weight], &[&wide]);
    let (mask, kept) = Mask::to_read(&tables, routing, side);
    let (client, dtype) = (wide.client.clone(), wide.dtype);
    expand_add_kernel::launch(
        &client,
        cubes,
        cube_dim(LANES, ROWS),
        size,
        narrow.into_tensor_arg(),
        weight.into_tensor_arg(),
        tables.tiles.into_buffer_arg(),
        tables.segments.into_buffer_arg(),
        tables.dropout_rows.into_buffer_arg(),
        kept.into_buffer_arg(),
        wide.clone().into_tensor_arg(),
        routing.module(),
        u32::from(side == Side::Output),
        mask,
        burn::backend::cubecl::dtype_to_storage_type(dtype),
    );
    wide
}

#[cube(launch)]
fn expand_add_kernel<F: Float, N: Size>(
    narrow: &Tensor<f32>,
    weight: &Tensor<Vector<f32, N>>,
    tiles: &[u32],
    segments: &[u32],
    dropout_rows: &[u32],
    kept: &[u32],
    wide: &mut Tensor<Vector<F, N>>,
    module: u32,
    scaled: u32,
    #[comptime] mask: Mask,
    #[define(F)] _dtype: ElemType,
) {
    let size = N::value();
    let tile = CUBE_POS_X as usize * TILE_WORDS;
    let segment = tiles[tile] as usize * SEGMENT_WORDS;
    let first_row = tiles[tile + 1] as usize;
    let rows = tiles[tile + 2] as usize;
    let rank_start = segments[segment + RANK_START] as usize;
    let rank = segments[segment + RANK] as usize;

    let lane = UNIT_POS_X as usize;
    let row_lane = UNIT_POS_Y as usize;
    let unit = row_lane * LANES + lane;
    let column = CUBE_POS_Y as usize * LANES + lane;
    let width = wide.shape(1) / size;
    let wide_stride = wide.stride(0) / size;
    let weight_stride = weight.stride(0) / size;

    let mut s = Shared::<[f32]>::new_slice(comptime!(ROW_TILE * RANK_CHUNK));
    let mut acc = Array::<Vector<f32, N>>::new(UNIT_ROWS);
    #[unroll]
    for i in 0..UNIT_ROWS {
        acc[i] = Vector::<f32, N>::new(0.0);
    }
    for chunk in 0..rank.div_ceil(RANK_CHUNK) {
        let chunk_rank = chunk * RANK_CHUNK;
        for load in 0..comptime!(ROW_TILE * RANK_CHUNK / (LANES * ROWS)) {
            let at = load * (LANES * ROWS) + unit;
            let row = at / RANK_CHUNK;
            let j = chunk_rank + at % RANK_CHUNK;
            let mut value = 0.0f32;
            if row < rows && j < rank {
                value = narrow[(first_row + row) * narrow.stride(0) + j];
            }
            s[at] = value;
        }
        sync_cube();
        if column < width {
            let mut count = rank - chunk_rank;
            if count > RANK_CHUNK {
                count = RANK_CHUNK.runtime();
            }
            for j in 0..count {
                let value = weight[(rank_start + chunk_rank + j) * weight_stride + column];
                #[unroll]
                for i in 0..UNIT_ROWS {
                    let factor = s[(row_lane + ROWS * i) * RANK_CHUNK + j];
                    acc[i] += Vector::<f32, N>::new(factor) * value;
                }
            }
        }
        sync_cube();
    }

    let dropout = Dropout::new(segments, segment, dropout_rows, kept, module, mask);
    if column < width {
        #[unroll]
        for i in 0..UNIT_ROWS {
            let row = row_lane + ROWS * i;
            if row < rows {
                let mut sum = acc[i];
                let bits = dropout.bits::<N>(first_row + row, column, width);
                sum = dropout.apply::<N>(sum, bits);
                if scaled == 1 {
                    sum *= Vector::new(f32::reinterpret(segments[segment + SCALE]));
                }
                let at = (first_row + row) * wide_stride + column;
                wide[at] = Vector::cast_from(Vector::<f32, N>::cast_from(wide[at]) + sum);
            }
        }
    }
}

//! `S = D(X) Aᵀ` and `dS = s · dH Bᵀ`; see the kernel of the same name without tensor cores.
//!
//! A cube takes [`ROW_TILE`] rows of one segment and up to 64 of its ranks, and runs along the width by
//! [`WIDTH_TILE`]. A plane takes a quarter of every tile and holds the sums of all rows and ranks over its
//! part of the width; the four are added up at the end, plane after plane.

use batchlora_kernels::launch::{cube_dim, record, vector_size};
use burn_cubecl::{cubecl, tensor::CubeTensor};
use cubecl::{
    cmma::{MatrixIdent, MatrixLayout},
    prelude::*,
};

use super::{
    EDGE, FRAGMENT_BYTES, PADDING, PLANE, PLANES, UNITS,
    tiles::{Part, fragment, load_weight, load_wide, no_sums, put},
};
use crate::{
    Routing,
    kernels::{
        dropout::{Dropout, Mask, drawn_elements, keep},
        shrink::{MAX_CHUNKS, factor},
        tables::{RANK, RANK_START, ROW_TILE, SEGMENT_WORDS, TILE_WORDS, Tables},
    },
    ops::Side,
};

/// Elements of the width in shared memory.
const WIDTH_TILE: usize = EDGE * PLANES;
/// Fragments along the rows of a tile.
const ROW_FRAGMENTS: usize = ROW_TILE / EDGE;

/// Takes operands by rows, and a batch with tiles and ranks.
pub(in crate::kernels) fn shrink(
    wide: CubeTensor,
    weight: CubeTensor,
    out: CubeTensor,
    tables: Tables,
    routing: &Routing,
    side: Side,
) -> CubeTensor {
    let size = vector_size(&[&wide, &weight]);
    let chunks = routing.rank_max().div_ceil(EDGE);
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
    let pitch = comptime!((WIDTH_TILE + PADDING) / size);
    let tile = CUBE_POS_X as usize * TILE_WORDS;
    let segment = tiles[tile] as usize * SEGMENT_WORDS;
    let first_row = tiles[tile + 1] as usize;
    let rows = tiles[tile + 2] as usize;
    let rank_start = segments[segment + RANK_START] as usize;
    let rank = segments[segment + RANK] as usize;
    let first_rank = CUBE_POS_Y as usize * (MAX_CHUNKS * EDGE);

    let unit = UNIT_POS as usize;
    let plane = unit / PLANE;
    let width = wide.shape(1) / size;
    // A kernel that draws the mask reads no bits.
    let dropout = Dropout::new(segments, segment, dropout_rows, segments, module, mask);

    let mut x = Shared::<[Vector<F, N>]>::new_aligned_slice(
        comptime!(ROW_TILE * ((WIDTH_TILE + PADDING) / size)),
        FRAGMENT_BYTES,
    );
    let mut w = Shared::<[Vector<F, N>]>::new_aligned_slice(
        comptime!(chunks * EDGE * ((WIDTH_TILE + PADDING) / size)),
        FRAGMENT_BYTES,
    );
    let mut drawn = Shared::<[u32]>::new_slice(comptime!(drawn_elements(mask, WIDTH_TILE, size)));
    let sums = no_sums(comptime!(chunks * ROW_FRAGMENTS));

    if first_rank < rank {
        for step in 0..width.div_ceil(vectors) {
            let first_column = step * vectors;
            let columns = width - first_column;
            let part = Part {
                first_row,
                rows,
                first_column,
                columns,
            };
            load_wide::<F, N>(
                &mut x, &mut drawn, wide, part, &dropout, ROW_TILE, WIDTH_TILE,
            );
            let part = Part {
                first_row: rank_start + first_rank,
                rows: rank - first_rank,
                first_column,
                columns,
            };
            load_weight::<F, N>(&mut w, weight, part, comptime!(chunks * EDGE), WIDTH_TILE);
            sync_cube();
            if comptime!(mask == Mask::Kept) && first_rank == 0 {
                keep::<N>(&drawn, kept, first_row, rows, step, width, WIDTH_TILE);
            }
            let from = plane * comptime!(EDGE / size);
            #[unroll]
            for half in 0..ROW_FRAGMENTS {
                let at = half * EDGE * pitch + from;
                let left = fragment(&x, at, WIDTH_TILE, MatrixIdent::A, MatrixLayout::RowMajor);
                #[unroll]
                for chunk in 0..chunks {
                    if first_rank + chunk * EDGE < rank {
                        let at = chunk * EDGE * pitch + from;
                        let right =
                            fragment(&w, at, WIDTH_TILE, MatrixIdent::B, MatrixLayout::ColMajor);
                        let sum = &sums[comptime!(chunk * ROW_FRAGMENTS + half)];
                        cmma::execute(&left, &right, sum, sum);
                    }
                }
            }
            sync_cube();
        }

        let factor = factor(segments, segment, scaled);
        let mut partial =
            Shared::<[f32]>::new_aligned_slice(comptime!(PLANES * ROW_TILE * EDGE), FRAGMENT_BYTES);
        #[unroll]
        for chunk in 0..chunks {
            let chunk_rank = first_rank + chunk * EDGE;
            if chunk_rank < rank {
                #[unroll]
                for half in 0..ROW_FRAGMENTS {
                    let at = plane * comptime!(ROW_TILE * EDGE) + half * EDGE * EDGE;
                    put(
                        &mut partial,
                        at,
                        &sums,
                        comptime!(chunk * ROW_FRAGMENTS + half),
                        EDGE,
                    );
                }
                sync_cube();
                let place = Part {
                    first_row,
                    rows,
                    first_column: chunk_rank,
                    columns: rank - chunk_rank,
                };
                store_chunk(&partial, place, factor, out);
                sync_cube();
            }
        }
    }
}

/// Adds up the planes' sums of a chunk, plane after plane, and writes the result.
#[cube]
fn store_chunk(partial: &Shared<[f32]>, place: Part, factor: f32, out: &mut Tensor<f32>) {
    let stride = out.stride(0);
    for store in 0..comptime!(ROW_TILE * EDGE / UNITS) {
        let at = store * UNITS + UNIT_POS as usize;
        let row = at / EDGE;
        let column = at % EDGE;
        if row < place.rows && column < place.columns {
            let mut sum = 0.0f32;
            #[unroll]
            for plane in 0..PLANES {
                sum += partial[plane * (ROW_TILE * EDGE) + at];
            }
            out[(place.first_row + row) * stride + place.first_column + column] = sum * factor;
        }
    }
}

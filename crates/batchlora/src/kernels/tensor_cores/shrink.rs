//! `S = D(X) Aᵀ` and `dS = s · dH Bᵀ`; see the kernel of the same name without tensor cores.
//!
//! A cube takes [`ROW_TILE`] rows of one segment and up to 64 of its ranks, and runs along the width by
//! tiles, the next of which is on its way while one is computed. A plane takes every eighth fragment of the
//! width and holds the sums of all rows and ranks over these; the eight are added up at the end, plane after
//! plane. The length of a tile changes no bits.

use batchlora_kernels::launch::{cube_dim, record, vector_size};
use burn_cubecl::{cubecl, tensor::CubeTensor};
use cubecl::{
    cmma::{Matrix, MatrixIdent, MatrixLayout},
    prelude::*,
};

use super::{
    EDGE, FRAGMENT_BYTES, PADDING, PLANE,
    tiles::{Part, WeightLoads, WideLoads, fragment, no_sums, put},
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

/// Planes of a cube: a chain of few long steps, also where there are few rows.
const PLANES: usize = 8;
const UNITS: usize = PLANE * PLANES;
/// Elements of the width of which each plane has one fragment.
const TURN: usize = EDGE * PLANES;
/// Planes whose sums are in shared memory at a time.
const ADDED: usize = 4;
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
    let tile_width = comptime!(tile_width(chunks));
    let vectors = comptime!(tile_width / size);
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
        comptime!(ROW_TILE * ((tile_width + PADDING) / size)),
        FRAGMENT_BYTES,
    );
    let mut w = Shared::<[Vector<F, N>]>::new_aligned_slice(
        comptime!(chunks * EDGE * ((tile_width + PADDING) / size)),
        FRAGMENT_BYTES,
    );
    let mut drawn = Shared::<[u32]>::new_slice(comptime!(drawn_elements(mask, tile_width, size)));
    let sums = no_sums(comptime!(chunks * ROW_FRAGMENTS));

    if first_rank < rank {
        let mut wide_loads = WideLoads::<F, N>::new(ROW_TILE, tile_width, UNITS);
        let mut weight_loads = WeightLoads::<N>::new(comptime!(chunks * EDGE), tile_width, UNITS);
        let wide_part = Part {
            first_row,
            rows,
            first_column: 0usize,
            columns: width,
        };
        let weight_part = Part {
            first_row: rank_start + first_rank,
            rows: rank - first_rank,
            first_column: 0usize,
            columns: width,
        };
        wide_loads.issue(wide, &wide_part, &dropout);
        weight_loads.issue(weight, &weight_part);
        let steps = width.div_ceil(vectors);
        for step in 0..steps {
            let done = step * vectors;
            wide_loads.place(
                &mut x,
                &mut drawn,
                &wide_part.after(0, done),
                &dropout,
                width,
            );
            weight_loads.place::<F>(&mut w, &weight_part.after(0, done));
            sync_cube();
            // After the last tile, that one again: no branch.
            let next = (step + 1).min(steps - 1) * vectors;
            wide_loads.issue(wide, &wide_part.after(0, next), &dropout);
            weight_loads.issue(weight, &weight_part.after(0, next));
            if comptime!(mask == Mask::Kept) && first_rank == 0 {
                keep::<N>(&drawn, kept, first_row, rows, step, width, tile_width);
            }
            multiply::<F, N>(&x, &w, &sums, plane, rank - first_rank, chunks);
            sync_cube();
        }

        let factor = factor(segments, segment, scaled);
        let mut partial =
            Shared::<[f32]>::new_aligned_slice(comptime!(ADDED * ROW_TILE * EDGE), FRAGMENT_BYTES);
        #[unroll]
        for chunk in 0..chunks {
            let chunk_rank = first_rank + chunk * EDGE;
            if chunk_rank < rank {
                let place = Part {
                    first_row,
                    rows,
                    first_column: chunk_rank,
                    columns: rank - chunk_rank,
                };
                store_chunk(&sums, chunk, &mut partial, plane, place, factor, out);
            }
        }
    }
}

/// Adds a plane's products of a tile to its sums.
#[cube]
fn multiply<F: Float, N: Size>(
    x: &Shared<[Vector<F, N>]>,
    w: &Shared<[Vector<F, N>]>,
    sums: &Sequence<Matrix<f32>>,
    plane: usize,
    ranks: usize,
    #[comptime] chunks: usize,
) {
    let size = N::value();
    let width = comptime!(tile_width(chunks));
    let pitch = comptime!((width + PADDING) / size);
    #[unroll]
    for turn in 0..comptime!(width / TURN) {
        let from = turn * comptime!(TURN / size) + plane * comptime!(EDGE / size);
        #[unroll]
        for half in 0..ROW_FRAGMENTS {
            let at = half * EDGE * pitch + from;
            let left = fragment(x, at, width, MatrixIdent::A, MatrixLayout::RowMajor);
            #[unroll]
            for chunk in 0..chunks {
                if chunk * EDGE < ranks {
                    let at = chunk * EDGE * pitch + from;
                    let right = fragment(w, at, width, MatrixIdent::B, MatrixLayout::ColMajor);
                    let sum = &sums[comptime!(chunk * ROW_FRAGMENTS + half)];
                    cmma::execute(&left, &right, sum, sum);
                }
            }
        }
    }
}

/// Adds up the planes' sums of a chunk, plane after plane, and writes the result.
#[cube]
fn store_chunk(
    sums: &Sequence<Matrix<f32>>,
    #[comptime] chunk: usize,
    partial: &mut Shared<[f32]>,
    plane: usize,
    place: Part,
    factor: f32,
    out: &mut Tensor<f32>,
) {
    let unit = UNIT_POS as usize;
    let mut totals = Array::<f32>::new(comptime!(ROW_TILE * EDGE / UNITS));
    #[unroll]
    for store in 0..comptime!(ROW_TILE * EDGE / UNITS) {
        totals[store] = 0.0f32;
    }
    #[unroll]
    for round in 0..comptime!(PLANES / ADDED) {
        if plane / ADDED == round {
            #[unroll]
            for half in 0..ROW_FRAGMENTS {
                let at = plane % ADDED * comptime!(ROW_TILE * EDGE) + half * EDGE * EDGE;
                put(
                    partial,
                    at,
                    sums,
                    comptime!(chunk * ROW_FRAGMENTS + half),
                    EDGE,
                );
            }
        }
        sync_cube();
        #[unroll]
        for store in 0..comptime!(ROW_TILE * EDGE / UNITS) {
            #[unroll]
            for added in 0..ADDED {
                let at = added * comptime!(ROW_TILE * EDGE) + store * UNITS + unit;
                totals[store] += partial[at];
            }
        }
        sync_cube();
    }
    #[unroll]
    for store in 0..comptime!(ROW_TILE * EDGE / UNITS) {
        let row = (store * UNITS + unit) / EDGE;
        let column = (store * UNITS + unit) % EDGE;
        if row < place.rows && column < place.columns {
            let to = (place.first_row + row) * out.stride(0) + place.first_column + column;
            out[to] = totals[store] * factor;
        }
    }
}

/// Elements of the width in shared memory, of which a block has 48 KB: less where ranks fill it.
fn tile_width(chunks: usize) -> usize {
    if chunks == 1 { 2 * TURN } else { TURN }
}

//! The partial sums of `dA = dSᵀ D(X)` and `dB = s · Sᵀ dH`; see the kernel of the same name without
//! tensor cores.
//!
//! A cube takes one block of rows, [`COLUMNS`] columns and up to 64 ranks, a plane a quarter of these
//! columns, and runs over the rows by [`ROW_STEP`], the next of which are on their way while these are
//! computed.

use batchlora_kernels::launch::{cube_dim, record, vector_size};
use burn::backend::TensorMetadata;
use burn_cubecl::{cubecl, tensor::CubeTensor};
use cubecl::{
    cmma::{Matrix, MatrixIdent, MatrixLayout},
    prelude::*,
};

use super::{
    EDGE, FRAGMENT_BYTES, PADDING, PLANE, PLANES, UNITS,
    tiles::{NarrowLoads, Part, WideLoads, fragment, no_sums, put},
};
use crate::{
    Routing,
    kernels::{
        dropout::{Dropout, Mask},
        shrink::MAX_CHUNKS,
        tables::{BLOCK_WORDS, RANK, SEGMENT_WORDS, Tables},
    },
    ops::Side,
};

/// Columns of a cube.
const COLUMNS: usize = 128;
/// Fragments along a plane's part of the columns.
const COLUMN_FRAGMENTS: usize = COLUMNS / PLANES / EDGE;
/// Rows of the batch in shared memory.
const ROW_STEP: usize = 32;
/// Fragments along these rows.
const ROW_FRAGMENTS: usize = ROW_STEP / EDGE;

/// Takes operands by rows, and a batch with blocks.
pub(in crate::kernels) fn partial_sums(
    wide: CubeTensor,
    narrow: CubeTensor,
    partial: &CubeTensor,
    tables: &Tables,
    routing: &Routing,
    side: Side,
) {
    let size = vector_size(&[&wide, partial]);
    let chunks = routing.rank_max().div_ceil(EDGE);
    let cubes = CubeCount::Static(
        tables.block_count as u32,
        wide.shape()[1].div_ceil(COLUMNS) as u32,
        chunks.div_ceil(MAX_CHUNKS) as u32,
    );
    record(&[&wide, &narrow], &[partial]);
    let (mask, kept) = Mask::to_read(tables, routing, side);
    let (client, dtype) = (wide.client.clone(), wide.dtype);
    partial_sums_kernel::launch(
        &client,
        cubes,
        cube_dim(UNITS, 1),
        size,
        wide.into_tensor_arg(),
        narrow.into_tensor_arg(),
        tables.blocks.clone().into_buffer_arg(),
        tables.segments.clone().into_buffer_arg(),
        tables.dropout_rows.clone().into_buffer_arg(),
        kept.into_buffer_arg(),
        partial.clone().into_tensor_arg(),
        routing.module(),
        chunks.next_power_of_two().min(MAX_CHUNKS),
        mask,
        burn::backend::cubecl::dtype_to_storage_type(dtype),
    );
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
    let vectors = comptime!(COLUMNS / size);
    let ranks = comptime!(chunks * EDGE);
    let block = CUBE_POS_X as usize * BLOCK_WORDS;
    let segment = blocks[block] as usize * SEGMENT_WORDS;
    let first_row = blocks[block + 1] as usize;
    let rows = blocks[block + 2] as usize;
    let first_partial = blocks[block + 3] as usize;
    let rank = segments[segment + RANK] as usize;
    let first_rank = CUBE_POS_Z as usize * (MAX_CHUNKS * EDGE);

    let from = UNIT_POS as usize / PLANE * comptime!(COLUMN_FRAGMENTS * EDGE / size);
    let first_column = CUBE_POS_Y as usize * vectors;
    let width = wide.shape(1) / size;
    let dropout = Dropout::new(segments, segment, dropout_rows, kept, module, mask);

    let mut x = Shared::<[Vector<F, N>]>::new_aligned_slice(
        comptime!(ROW_STEP * ((COLUMNS + PADDING) / size)),
        FRAGMENT_BYTES,
    );
    let mut s = Shared::<[F]>::new_aligned_slice(
        comptime!(ROW_STEP * (chunks * EDGE + PADDING)),
        FRAGMENT_BYTES,
    );
    let mut drawn = Shared::<[u32]>::new_slice(1usize);
    let products = no_sums(comptime!(chunks * COLUMN_FRAGMENTS));

    if first_rank < rank {
        let mut wide_loads = WideLoads::<F, N>::new(ROW_STEP, COLUMNS, UNITS);
        let mut narrow_loads = NarrowLoads::new(ROW_STEP, ranks, UNITS);
        let wide_part = Part {
            first_row,
            rows,
            first_column,
            columns: width - first_column,
        };
        let narrow_part = Part {
            first_row,
            rows,
            first_column: first_rank,
            columns: rank - first_rank,
        };
        wide_loads.issue(wide, &wide_part, &dropout);
        narrow_loads.issue(narrow, &narrow_part);
        let steps = rows.div_ceil(ROW_STEP);
        for step in 0..steps {
            let done = step * ROW_STEP;
            wide_loads.place(
                &mut x,
                &mut drawn,
                &wide_part.after(done, 0),
                &dropout,
                width,
            );
            narrow_loads.place::<F>(&mut s, &narrow_part.after(done, 0));
            sync_cube();
            // After the last rows, those again: no branch.
            let next = (step + 1).min(steps - 1) * ROW_STEP;
            wide_loads.issue(wide, &wide_part.after(next, 0), &dropout);
            narrow_loads.issue(narrow, &narrow_part.after(next, 0));
            multiply::<F, N>(&s, &x, &products, from, rank - first_rank, chunks);
            sync_cube();
        }

        let mut sums = Shared::<[Vector<f32, N>]>::new_aligned_slice(
            comptime!(EDGE * ((COLUMNS + PADDING) / size)),
            FRAGMENT_BYTES,
        );
        #[unroll]
        for chunk in 0..chunks {
            let chunk_rank = first_rank + chunk * EDGE;
            if chunk_rank < rank {
                #[unroll]
                for beside in 0..COLUMN_FRAGMENTS {
                    let at = from + beside * comptime!(EDGE / size);
                    let index = comptime!(chunk * COLUMN_FRAGMENTS + beside);
                    put(
                        &mut sums,
                        at,
                        &products,
                        index,
                        comptime!(COLUMNS + PADDING),
                    );
                }
                sync_cube();
                let place = Part {
                    first_row: first_partial + chunk_rank,
                    rows: rank - chunk_rank,
                    first_column,
                    columns: width - first_column,
                };
                store_chunk::<N>(&sums, place, partial);
                sync_cube();
            }
        }
    }
}

/// Adds a plane's products of rows in shared memory to its sums.
#[cube]
fn multiply<F: Float, N: Size>(
    s: &Shared<[F]>,
    x: &Shared<[Vector<F, N>]>,
    products: &Sequence<Matrix<f32>>,
    from: usize,
    ranks: usize,
    #[comptime] chunks: usize,
) {
    let size = N::value();
    let pitch = comptime!((COLUMNS + PADDING) / size);
    let width = comptime!(chunks * EDGE);
    #[unroll]
    for part in 0..ROW_FRAGMENTS {
        #[unroll]
        for beside in 0..COLUMN_FRAGMENTS {
            let at = part * EDGE * pitch + from + beside * comptime!(EDGE / size);
            let right = fragment(x, at, COLUMNS, MatrixIdent::B, MatrixLayout::RowMajor);
            #[unroll]
            for chunk in 0..chunks {
                if chunk * EDGE < ranks {
                    let at = part * EDGE * comptime!(width + PADDING) + chunk * EDGE;
                    let left = fragment(s, at, width, MatrixIdent::A, MatrixLayout::ColMajor);
                    let product = &products[comptime!(chunk * COLUMN_FRAGMENTS + beside)];
                    cmma::execute(&left, &right, product, product);
                }
            }
        }
    }
}

/// Writes a chunk's sums.
#[cube]
fn store_chunk<N: Size>(
    sums: &Shared<[Vector<f32, N>]>,
    place: Part,
    partial: &mut Tensor<Vector<f32, N>>,
) {
    let size = N::value();
    let vectors = comptime!(COLUMNS / size);
    let pitch = comptime!((COLUMNS + PADDING) / size);
    let stride = partial.stride(0) / size;
    for store in 0..comptime!(EDGE * vectors / UNITS) {
        let at = store * UNITS + UNIT_POS as usize;
        let row = at / vectors;
        let column = at % vectors;
        if row < place.rows && column < place.columns {
            let to = (place.first_row + row) * stride + place.first_column + column;
            partial[to] = sums[row * pitch + column];
        }
    }
}

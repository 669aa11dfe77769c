//! `H += s · S B` and `dX += D'(dS A)` in place; see the kernel of the same name without tensor
//! cores.
//!
//! A cube takes [`ROW_TILE`] rows of one segment and [`COLUMNS`] columns, a plane a quarter of these
//! columns, over exactly the adapter's rank by 16. The products go through shared memory, so that
//! neighbouring units read and write neighbours of the wide operand.

use batchlora_kernels::launch::{cube_dim, record, vector_size};
use burn::backend::TensorMetadata;
use burn_cubecl::{cubecl, tensor::CubeTensor};
use cubecl::{
    cmma::{Matrix, MatrixIdent, MatrixLayout},
    prelude::*,
};

use super::{
    EDGE, FRAGMENT_BYTES, PADDING, PLANE, PLANES, UNITS,
    tiles::{NarrowLoads, Part, WeightLoads, fragment, no_sums, put},
};
use crate::{
    Routing,
    kernels::{
        dropout::{Dropout, Mask},
        tables::{RANK, RANK_START, ROW_TILE, SCALE, SEGMENT_WORDS, TILE_WORDS, Tables},
    },
    ops::Side,
};

/// Columns of a cube.
const COLUMNS: usize = 128;
/// Fragments along the rows, and along a plane's part of the columns.
const ROW_FRAGMENTS: usize = ROW_TILE / EDGE;
const COLUMN_FRAGMENTS: usize = COLUMNS / PLANES / EDGE;

/// Takes operands by rows, the wide one writable, and a batch with tiles and ranks.
pub(in crate::kernels) fn expand_add(
    wide: CubeTensor,
    narrow: CubeTensor,
    weight: CubeTensor,
    tables: Tables,
    routing: &Routing,
    side: Side,
) -> CubeTensor {
    let size = vector_size(&[&wide, &weight]);
    let columns = wide.shape()[1].div_ceil(COLUMNS);
    let cubes = CubeCount::Static(tables.tile_count as u32, columns as u32, 1);
    record(&[&wide, &narrow, &weight], &[&wide]);
    let (mask, kept) = Mask::to_read(&tables, routing, side);
    let (client, dtype) = (wide.client.clone(), wide.dtype);
    expand_add_kernel::launch(
        &client,
        cubes,
        cube_dim(UNITS, 1),
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
    let vectors = comptime!(COLUMNS / size);
    let pitch = comptime!((COLUMNS + PADDING) / size);
    let tile = CUBE_POS_X as usize * TILE_WORDS;
    let segment = tiles[tile] as usize * SEGMENT_WORDS;
    let first_row = tiles[tile + 1] as usize;
    let rows = tiles[tile + 2] as usize;
    let rank_start = segments[segment + RANK_START] as usize;
    let rank = segments[segment + RANK] as usize;

    let unit = UNIT_POS as usize;
    let from = unit / PLANE * comptime!(COLUMN_FRAGMENTS * EDGE / size);
    let first_column = CUBE_POS_Y as usize * vectors;
    let width = wide.shape(1) / size;
    let wide_stride = wide.stride(0) / size;

    let mut s =
        Shared::<[F]>::new_aligned_slice(comptime!(ROW_TILE * (EDGE + PADDING)), FRAGMENT_BYTES);
    let mut w = Shared::<[Vector<F, N>]>::new_aligned_slice(
        comptime!(EDGE * ((COLUMNS + PADDING) / size)),
        FRAGMENT_BYTES,
    );
    let products = no_sums(comptime!(ROW_FRAGMENTS * COLUMN_FRAGMENTS));
    let mut narrow_loads = NarrowLoads::new(ROW_TILE, EDGE, UNITS);
    let mut weight_loads = WeightLoads::<N>::new(EDGE, COLUMNS, UNITS);
    // The wide operand, and a mask that is read, are on their way while the product is computed.
    let dropout = Dropout::new(segments, segment, dropout_rows, kept, module, mask);
    let mut before = Array::<Vector<F, N>>::new(comptime!(ROW_TILE * vectors / UNITS));
    let mut read_bits = Array::<u32>::new(comptime!(ROW_TILE * vectors / UNITS));
    #[unroll]
    for load in 0..comptime!(ROW_TILE * vectors / UNITS) {
        let at = load * UNITS + unit;
        let row = first_row + (at / vectors).min(rows - 1);
        let column = first_column + (at % vectors).min(width - first_column - 1);
        before[load] = wide[row * wide_stride + column];
        if comptime!(mask == Mask::Read) {
            read_bits[load] = dropout.bits::<N>(row, column, width);
        }
    }
    for chunk in 0..rank.div_ceil(EDGE) {
        let chunk_rank = chunk * EDGE;
        let narrow_part = Part {
            first_row,
            rows,
            first_column: chunk_rank,
            columns: rank - chunk_rank,
        };
        let weight_part = Part {
            first_row: rank_start + chunk_rank,
            rows: rank - chunk_rank,
            first_column,
            columns: width - first_column,
        };
        narrow_loads.issue(narrow, &narrow_part);
        weight_loads.issue(weight, &weight_part);
        narrow_loads.place::<F>(&mut s, &narrow_part);
        weight_loads.place::<F>(&mut w, &weight_part);
        sync_cube();
        multiply::<F, N>(&s, &w, &products, from);
        sync_cube();
    }

    let mut sums = Shared::<[Vector<f32, N>]>::new_aligned_slice(
        comptime!(ROW_TILE * ((COLUMNS + PADDING) / size)),
        FRAGMENT_BYTES,
    );
    #[unroll]
    for half in 0..ROW_FRAGMENTS {
        #[unroll]
        for part in 0..COLUMN_FRAGMENTS {
            let at = half * EDGE * pitch + from + part * comptime!(EDGE / size);
            let index = comptime!(half * COLUMN_FRAGMENTS + part);
            put(
                &mut sums,
                at,
                &products,
                index,
                comptime!(COLUMNS + PADDING),
            );
        }
    }
    sync_cube();
    #[unroll]
    for load in 0..comptime!(ROW_TILE * vectors / UNITS) {
        let at = load * UNITS + unit;
        let row = at / vectors;
        let column = first_column + at % vectors;
        if row < rows && column < width {
            let mut sum = sums[row * pitch + at % vectors];
            let mut bits = read_bits[load];
            if comptime!(mask == Mask::Drawn) {
                bits = dropout.bits::<N>(first_row + row, column, width);
            }
            sum = dropout.apply::<N>(sum, bits);
            if scaled == 1 {
                sum *= Vector::new(f32::reinterpret(segments[segment + SCALE]));
            }
            let place = (first_row + row) * wide_stride + column;
            wide[place] = Vector::cast_from(Vector::<f32, N>::cast_from(before[load]) + sum);
        }
    }
}

/// Adds a plane's products of a chunk of ranks to its sums.
#[cube]
fn multiply<F: Float, N: Size>(
    s: &Shared<[F]>,
    w: &Shared<[Vector<F, N>]>,
    products: &Sequence<Matrix<f32>>,
    from: usize,
) {
    let size = N::value();
    #[unroll]
    for half in 0..ROW_FRAGMENTS {
        let at = half * EDGE * comptime!(EDGE + PADDING);
        let left = fragment(s, at, EDGE, MatrixIdent::A, MatrixLayout::RowMajor);
        #[unroll]
        for part in 0..COLUMN_FRAGMENTS {
            let at = from + part * comptime!(EDGE / size);
            let right = fragment(w, at, COLUMNS, MatrixIdent::B, MatrixLayout::RowMajor);
            let product = &products[comptime!(half * COLUMN_FRAGMENTS + part)];
            cmma::execute(&left, &right, product, product);
        }
    }
}

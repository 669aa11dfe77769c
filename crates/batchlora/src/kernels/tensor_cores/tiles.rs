//! Tiles in shared memory, and fragments of them.

use burn_cubecl::cubecl;
use cubecl::{
    cmma::{Matrix, MatrixIdent, MatrixLayout},
    prelude::*,
};

use super::{EDGE, PADDING, UNITS};
use crate::kernels::dropout::{Dropout, Mask, read_wide};

/// The part of an operand that a tile holds; the rest of the tile is zero. Columns are counted in the
/// operand's vectors.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Part {
    pub(super) first_row: usize,
    pub(super) rows: usize,
    pub(super) first_column: usize,
    pub(super) columns: usize,
}

/// Loads `rows` × `columns` elements of the wide operand, masked, and writes a mask to be kept to `drawn`.
#[cube]
pub(super) fn load_wide<F: Float, N: Size>(
    tile: &mut Shared<[Vector<F, N>]>,
    drawn: &mut Shared<[u32]>,
    wide: &Tensor<Vector<F, N>>,
    part: Part,
    dropout: &Dropout,
    #[comptime] rows: usize,
    #[comptime] columns: usize,
) {
    let size = N::value();
    let vectors = comptime!(columns / size);
    let pitch = comptime!((columns + PADDING) / size);
    for load in 0..comptime!(rows * vectors / UNITS) {
        let at = load * UNITS + UNIT_POS as usize;
        let row = at / vectors;
        let column = at % vectors;
        let mut value = Vector::<f32, N>::new(0.0);
        let mut bits = 0u32;
        if row < part.rows && column < part.columns {
            let row = part.first_row + row;
            let column = part.first_column + column;
            bits = dropout.bits::<N>(row, column, wide.shape(1) / size);
            value = dropout.apply::<N>(read_wide::<F, N>(wide, row, column), bits);
        }
        if comptime!(dropout.mask == Mask::Kept) {
            drawn[at] = bits;
        }
        tile[row * pitch + column] = Vector::cast_from(value);
    }
}

/// Loads `rows` × `columns` elements of the packed rows, rounded.
#[cube]
pub(super) fn load_weight<F: Float, N: Size>(
    tile: &mut Shared<[Vector<F, N>]>,
    weight: &Tensor<Vector<f32, N>>,
    part: Part,
    #[comptime] rows: usize,
    #[comptime] columns: usize,
) {
    let size = N::value();
    let vectors = comptime!(columns / size);
    let pitch = comptime!((columns + PADDING) / size);
    let stride = weight.stride(0) / size;
    for load in 0..comptime!(rows * vectors / UNITS) {
        let at = load * UNITS + UNIT_POS as usize;
        let row = at / vectors;
        let column = at % vectors;
        let mut value = Vector::<f32, N>::new(0.0);
        if row < part.rows && column < part.columns {
            value = weight[(part.first_row + row) * stride + part.first_column + column];
        }
        tile[row * pitch + column] = Vector::cast_from(value);
    }
}

/// Loads `rows` × `columns` elements of the product of rank r, rounded.
#[cube]
pub(super) fn load_narrow<F: Float>(
    tile: &mut Shared<[F]>,
    narrow: &Tensor<f32>,
    part: Part,
    #[comptime] rows: usize,
    #[comptime] columns: usize,
) {
    let stride = narrow.stride(0);
    for load in 0..comptime!(rows * columns / UNITS) {
        let at = load * UNITS + UNIT_POS as usize;
        let row = at / columns;
        let column = at % columns;
        let mut value = 0.0f32;
        if row < part.rows && column < part.columns {
            value = narrow[(part.first_row + row) * stride + part.first_column + column];
        }
        tile[row * comptime!(columns + PADDING) + column] = F::cast_from(value);
    }
}

/// The fragment of a tile of `columns` columns that begins at this element of it.
#[cube]
pub(super) fn fragment<C: CubePrimitive>(
    tile: &Shared<[C]>,
    at: usize,
    #[comptime] columns: usize,
    #[comptime] ident: MatrixIdent,
    #[comptime] layout: MatrixLayout,
) -> Matrix<C> {
    let end = tile.len();
    Matrix::<C>::from_slice(
        ident,
        EDGE,
        EDGE,
        EDGE,
        layout,
        &tile[at..end],
        comptime!((columns + PADDING) as u32),
    )
}

/// Writes one of the sums to shared memory, from element `at` on, with `stride` elements from row to row.
#[cube]
pub(super) fn put<C: CubePrimitive>(
    tile: &mut Shared<[C]>,
    at: usize,
    sums: &Sequence<Matrix<f32>>,
    #[comptime] index: usize,
    #[comptime] stride: usize,
) {
    let end = tile.len();
    let to = &mut tile[at..end];
    let stride = comptime!(stride as u32);
    cmma::store(to, &sums[index], stride, MatrixLayout::RowMajor);
}

/// `count` sums of fragments' products, all zero.
#[cube]
pub(super) fn no_sums(#[comptime] count: usize) -> Sequence<Matrix<f32>> {
    let mut sums = Sequence::new();
    #[unroll]
    for _ in 0..count {
        sums.push(Matrix::<f32>::from_value(
            MatrixIdent::Accumulator,
            EDGE,
            EDGE,
            EDGE,
            MatrixLayout::Undefined,
            0.0,
        ));
    }
    sums
}

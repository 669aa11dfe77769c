//! Tiles in shared memory, and fragments of them.

use burn_cubecl::cubecl;
use cubecl::{
    cmma::{Matrix, MatrixIdent, MatrixLayout},
    prelude::*,
};

use super::{EDGE, PADDING};
use crate::kernels::dropout::{Dropout, Mask};

/// The part of an operand that a tile holds; the rest of the tile is zero. Columns are counted in the
/// operand's vectors.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Part {
    pub(super) first_row: usize,
    pub(super) rows: usize,
    pub(super) first_column: usize,
    pub(super) columns: usize,
}

#[cube]
impl Part {
    /// The part without its first rows and columns.
    pub(super) fn after(&self, rows: usize, columns: usize) -> Part {
        Part {
            first_row: self.first_row + rows,
            rows: self.rows - rows,
            first_column: self.first_column + columns,
            columns: self.columns - columns,
        }
    }
}

/// A unit's loads of a tile of the wide operand, with the bits of a mask that is read. Every load is issued before
/// one is waited for: there is no branch, and no write to shared memory, between them.
#[derive(CubeType)]
pub(super) struct WideLoads<F: Float, N: Size> {
    values: Array<Vector<F, N>>,
    bits: Array<u32>,
    #[cube(comptime)]
    rows: usize,
    #[cube(comptime)]
    columns: usize,
    #[cube(comptime)]
    units: usize,
}

#[cube]
impl<F: Float, N: Size> WideLoads<F, N> {
    /// Of a tile of `rows` × `columns` elements, which `units` units share.
    pub(super) fn new(
        #[comptime] rows: usize,
        #[comptime] columns: usize,
        #[comptime] units: usize,
    ) -> WideLoads<F, N> {
        let size = N::value();
        WideLoads::<F, N> {
            values: Array::new(comptime!(rows * columns / size / units)),
            bits: Array::new(comptime!(rows * columns / size / units)),
            rows,
            columns,
            units,
        }
    }

    /// Issues the loads of a part. Elements outside are loaded from its edge and never used.
    pub(super) fn issue(&mut self, wide: &Tensor<Vector<F, N>>, part: &Part, dropout: &Dropout) {
        let size = N::value();
        let vectors = comptime!(self.columns / size);
        let stride = wide.stride(0) / size;
        #[unroll]
        for load in 0..comptime!(self.rows * vectors / self.units) {
            let at = load * self.units + UNIT_POS as usize;
            let row = part.first_row + (at / vectors).min(part.rows - 1);
            let column = part.first_column + (at % vectors).min(part.columns - 1);
            self.values[load] = wide[row * stride + column];
            if comptime!(dropout.mask == Mask::Read) {
                self.bits[load] = dropout.bits::<N>(row, column, wide.shape(1) / size);
            }
        }
    }

    /// Masks the loaded elements and writes them to a tile, and a mask to be kept to `drawn`.
    pub(super) fn place(
        &mut self,
        tile: &mut Shared<[Vector<F, N>]>,
        drawn: &mut Shared<[u32]>,
        part: &Part,
        dropout: &Dropout,
        width: usize,
    ) {
        let size = N::value();
        let vectors = comptime!(self.columns / size);
        let pitch = comptime!((self.columns + PADDING) / size);
        #[unroll]
        for load in 0..comptime!(self.rows * vectors / self.units) {
            let at = load * self.units + UNIT_POS as usize;
            let row = at / vectors;
            let column = at % vectors;
            let inside = row < part.rows && column < part.columns;
            let mut value = Vector::<f32, N>::cast_from(self.values[load]);
            let mut bits = self.bits[load];
            if comptime!(dropout.mask == Mask::Drawn || dropout.mask == Mask::Kept) {
                let row = part.first_row + row.min(part.rows - 1);
                bits = dropout.bits::<N>(row, part.first_column + column, width);
            }
            if comptime!(dropout.mask == Mask::Kept) {
                drawn[at] = select(inside, bits, 0u32);
            }
            value = dropout.apply::<N>(value, bits);
            value = select(inside, value, Vector::new(0.0f32));
            tile[row * pitch + column] = Vector::cast_from(value);
        }
    }
}

/// A unit's loads of a tile of packed rows; see [`WideLoads`].
#[derive(CubeType)]
pub(super) struct WeightLoads<N: Size> {
    values: Array<Vector<f32, N>>,
    #[cube(comptime)]
    rows: usize,
    #[cube(comptime)]
    columns: usize,
    #[cube(comptime)]
    units: usize,
}

#[cube]
impl<N: Size> WeightLoads<N> {
    pub(super) fn new(
        #[comptime] rows: usize,
        #[comptime] columns: usize,
        #[comptime] units: usize,
    ) -> WeightLoads<N> {
        let size = N::value();
        WeightLoads::<N> {
            values: Array::new(comptime!(rows * columns / size / units)),
            rows,
            columns,
            units,
        }
    }

    pub(super) fn issue(&mut self, weight: &Tensor<Vector<f32, N>>, part: &Part) {
        let size = N::value();
        let vectors = comptime!(self.columns / size);
        let stride = weight.stride(0) / size;
        #[unroll]
        for load in 0..comptime!(self.rows * vectors / self.units) {
            let at = load * self.units + UNIT_POS as usize;
            let row = part.first_row + (at / vectors).min(part.rows - 1);
            let column = part.first_column + (at % vectors).min(part.columns - 1);
            self.values[load] = weight[row * stride + column];
        }
    }

    /// Rounds the loaded elements and writes them to a tile.
    pub(super) fn place<F: Float>(&self, tile: &mut Shared<[Vector<F, N>]>, part: &Part) {
        let size = N::value();
        let vectors = comptime!(self.columns / size);
        let pitch = comptime!((self.columns + PADDING) / size);
        #[unroll]
        for load in 0..comptime!(self.rows * vectors / self.units) {
            let at = load * self.units + UNIT_POS as usize;
            let row = at / vectors;
            let column = at % vectors;
            let inside = row < part.rows && column < part.columns;
            let value = select(inside, self.values[load], Vector::new(0.0f32));
            tile[row * pitch + column] = Vector::cast_from(value);
        }
    }
}

/// A unit's loads of a tile of the product of rank r; see [`WideLoads`].
#[derive(CubeType)]
pub(super) struct NarrowLoads {
    values: Array<f32>,
    #[cube(comptime)]
    rows: usize,
    #[cube(comptime)]
    columns: usize,
    #[cube(comptime)]
    units: usize,
}

#[cube]
impl NarrowLoads {
    pub(super) fn new(
        #[comptime] rows: usize,
        #[comptime] columns: usize,
        #[comptime] units: usize,
    ) -> NarrowLoads {
        NarrowLoads {
            values: Array::new(comptime!(rows * columns / units)),
            rows,
            columns,
            units,
        }
    }

    pub(super) fn issue(&mut self, narrow: &Tensor<f32>, part: &Part) {
        let stride = narrow.stride(0);
        #[unroll]
        for load in 0..comptime!(self.rows * self.columns / self.units) {
            let at = load * self.units + UNIT_POS as usize;
            let row = part.first_row + (at / self.columns).min(part.rows - 1);
            let column = part.first_column + (at % self.columns).min(part.columns - 1);
            self.values[load] = narrow[row * stride + column];
        }
    }

    /// Rounds the loaded elements and writes them to a tile.
    pub(super) fn place<F: Float>(&self, tile: &mut Shared<[F]>, part: &Part) {
        #[unroll]
        for load in 0..comptime!(self.rows * self.columns / self.units) {
            let at = load * self.units + UNIT_POS as usize;
            let row = at / self.columns;
            let column = at % self.columns;
            let inside = row < part.rows && column < part.columns;
            let value = select(inside, self.values[load], 0.0f32);
            tile[row * comptime!(self.columns + PADDING) + column] = F::cast_from(value);
        }
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

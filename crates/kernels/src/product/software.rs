//! Products on software implementations of a graphics API.
//!
//! There a barrier saves and restores every unit's registers, and every load is a loop over the lanes of a
//! vector register. A unit therefore keeps a large tile of the result in registers and reads both operands
//! in place, whatever their strides: no shared memory, and one kernel for all layouts.

#![expect(
    clippy::used_underscore_binding,
    reason = "`#[define]` makes a kernel's type from an argument that its body never names"
)]

use burn::{
    backend::{TensorMetadata, cubecl::dtype_to_storage_type},
    tensor::DType,
};
use burn_cubecl::{cubecl, tensor::CubeTensor};
use cubecl::prelude::*;

use crate::launch::{cube_dim, empty};

/// Units of a cube, one below the other along the rows: the lanes of a vector register.
const UNITS: usize = 8;
/// Cubes that WebGPU launches along one axis.
const MAX_CUBES: usize = 65_535;

/// The product of two matrices, or of two batches of equal length or with one broadcast; `None` for other
/// dimensions, or more cubes than a launch may have.
pub(super) fn software_product(
    lhs: &CubeTensor,
    rhs: &CubeTensor,
    dtype: DType,
) -> Option<CubeTensor> {
    let dims = lhs.meta.num_dims();
    let (left, right) = (lhs.shape(), rhs.shape());
    let batch = match dims {
        2 => 1,
        3 => left[0].max(right[0]),
        _ => return None,
    };
    let [rows, columns] = [left[dims - 2], right[dims - 1]];
    let (tile_rows, tile_columns) = (tile(rows), tile(columns));
    let cubes = [
        columns.div_ceil(tile_columns),
        rows.div_ceil(tile_rows * UNITS),
        batch,
    ];
    if cubes.iter().any(|&count| count > MAX_CUBES) {
        return None;
    }
    let out = match dims {
        2 => empty(lhs, [rows, columns], dtype),
        _ => empty(lhs, [batch, rows, columns], dtype),
    };
    if batch * rows * columns == 0 {
        return Some(out);
    }
    let [x, y, z] = cubes.map(|count| count as u32);
    product_kernel::launch(
        &lhs.client,
        CubeCount::Static(x, y, z),
        cube_dim(UNITS, 1),
        lhs.clone().into_tensor_arg(),
        rhs.clone().into_tensor_arg(),
        out.clone().into_tensor_arg(),
        tile_rows,
        tile_columns,
        dims,
        dtype_to_storage_type(lhs.dtype),
        dtype_to_storage_type(rhs.dtype),
        dtype_to_storage_type(dtype),
    );
    Some(out)
}

/// Rows or columns of a unit's tile. Larger tiles are a little faster but take far longer to compile: 16 x 16
/// ten seconds, 8 x 8 less than one.
fn tile(extent: usize) -> usize {
    if extent > 4 { 8 } else { 4 }
}

#[cube(launch)]
fn product_kernel<L: Float, R: Float, O: Float>(
    lhs: &Tensor<L>,
    rhs: &Tensor<R>,
    out: &mut Tensor<O>,
    #[comptime] tile_rows: usize,
    #[comptime] tile_columns: usize,
    #[comptime] dims: usize,
    #[define(L)] _lhs_dtype: ElemType,
    #[define(R)] _rhs_dtype: ElemType,
    #[define(O)] _out_dtype: ElemType,
) {
    let (row_axis, column_axis) = comptime!((dims - 2, dims - 1));
    let rows = out.shape(row_axis);
    let columns = out.shape(column_axis);
    let first_row = (CUBE_POS_Y as usize * UNITS + UNIT_POS as usize) * tile_rows;
    let first_column = CUBE_POS_X as usize * tile_columns;
    if first_row < rows {
        let mut lhs_start = 0usize;
        let mut rhs_start = 0usize;
        let mut out_start = 0usize;
        if comptime!(dims > 2) {
            let batch = CUBE_POS_Z as usize;
            lhs_start = batch % lhs.shape(0) * lhs.stride(0);
            rhs_start = batch % rhs.shape(0) * rhs.stride(0);
            out_start = batch * out.stride(0);
        }
        let mut lhs_rows = Array::<usize>::new(tile_rows);
        let mut rhs_columns = Array::<usize>::new(tile_columns);
        let mut sums = Array::<f32>::new(comptime!(tile_rows * tile_columns));
        // Beyond the edge the last row and column are read again and nothing is written.
        #[unroll]
        for i in 0..tile_rows {
            lhs_rows[i] = lhs_start + at_most(first_row + i, rows - 1) * lhs.stride(row_axis);
        }
        #[unroll]
        for j in 0..tile_columns {
            let column = at_most(first_column + j, columns - 1);
            rhs_columns[j] = rhs_start + column * rhs.stride(column_axis);
        }
        #[unroll]
        for at in 0..comptime!(tile_rows * tile_columns) {
            sums[at] = 0.0;
        }
        for step in 0..lhs.shape(column_axis) {
            let mut values = Array::<f32>::new(tile_columns);
            #[unroll]
            for j in 0..tile_columns {
                values[j] = f32::cast_from(rhs[rhs_columns[j] + step * rhs.stride(row_axis)]);
            }
            #[unroll]
            for i in 0..tile_rows {
                let value = f32::cast_from(lhs[lhs_rows[i] + step * lhs.stride(column_axis)]);
                #[unroll]
                for j in 0..tile_columns {
                    sums[i * tile_columns + j] += value * values[j];
                }
            }
        }
        #[unroll]
        for i in 0..tile_rows {
            #[unroll]
            for j in 0..tile_columns {
                if first_row + i < rows && first_column + j < columns {
                    let row = out_start + (first_row + i) * out.stride(row_axis);
                    out[row + first_column + j] = O::cast_from(sums[i * tile_columns + j]);
                }
            }
        }
    }
}

#[cube]
fn at_most(value: usize, most: usize) -> usize {
    let mut least = value;
    if value > most {
        least = most;
    }
    least
}

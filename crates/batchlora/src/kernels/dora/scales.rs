//! Columns times an adapter's scales, and the gradient of these.
//!
//! The gradient is summed over blocks of [`ROW_BLOCK`] rows of one segment, and these in row order: it has the same bits in
//! any batch.
//!
//! [`ROW_BLOCK`]: crate::kernels::tables::ROW_BLOCK

use batchlora_kernels::launch::{by_rows, cube_dim, empty, record, vector_size, zeros};
use burn::{
    backend::{TensorMetadata, cubecl::dtype_to_storage_type},
    tensor::DType,
};
use burn_cubecl::{cubecl, tensor::CubeTensor};
use cubecl::prelude::*;

use super::{LANES, UNITS, over};
use crate::{
    Routing,
    kernels::{
        dropout::read_wide,
        tables::{BLOCK_WORDS, DoraTables, MAGNITUDE_WORDS, NO_ADAPTER},
    },
};

/// Rows of units.
const ROWS: usize = 8;
/// Rows that a unit loads at once.
const LOADS: usize = 4;

pub(in crate::kernels) fn scale_columns(
    wide: CubeTensor,
    scales: CubeTensor,
    routing: &Routing,
) -> CubeTensor {
    let Some(tables) = routing.tables(&wide.client, &wide.device).dora else {
        return wide;
    };
    let (wide, scales) = (by_rows(wide), by_rows(scales));
    let out = empty(&wide, wide.shape(), wide.dtype);
    let size = vector_size(&[&wide, &scales, &out]);
    record(&[&wide, &scales], &[&out]);
    let (client, dtype) = (wide.client.clone(), wide.dtype);
    scale_columns_kernel::launch(
        &client,
        over(&wide, size),
        cube_dim(UNITS, 1),
        size,
        wide.into_tensor_arg(),
        scales.into_tensor_arg(),
        tables.magnitude_rows.into_buffer_arg(),
        out.clone().into_tensor_arg(),
        dtype_to_storage_type(dtype),
    );
    out
}

#[cube(launch)]
fn scale_columns_kernel<F: Float, N: Size>(
    wide: &Tensor<Vector<F, N>>,
    scales: &Tensor<Vector<f32, N>>,
    magnitude_rows: &[u32],
    out: &mut Tensor<Vector<F, N>>,
    #[define(F)] _dtype: ElemType,
) {
    let size = N::value();
    let width = wide.shape(1) / size;
    let row = ABSOLUTE_POS / width;
    let column = ABSOLUTE_POS % width;
    if row < wide.shape(0) {
        let mut value = read_wide::<F, N>(wide, row, column);
        let magnitude = magnitude_rows[row];
        if magnitude != NO_ADAPTER {
            value *= scales[magnitude as usize * (scales.stride(0) / size) + column];
        }
        let at = row * (out.stride(0) / size) + column;
        out[at] = Vector::cast_from(value);
    }
}

pub(in crate::kernels) fn scale_grad(
    wide: CubeTensor,
    gradient: CubeTensor,
    routing: &Routing,
) -> CubeTensor {
    let (wide, gradient) = (by_rows(wide), by_rows(gradient));
    let width = wide.shape()[1];
    let tables = routing.tables(&wide.client, &wide.device);
    let out = empty(&wide, [routing.magnitudes(), width], DType::F32);
    let partial = empty(&wide, [tables.block_count.max(1), width], DType::F32);
    let Some(DoraTables {
        magnitude_rows,
        magnitudes,
        ..
    }) = tables.dora
    else {
        return zeros(&wide, out.shape(), DType::F32);
    };
    let size = vector_size(&[&wide, &gradient, &partial, &out]);
    let cubes_along = (width / size).div_ceil(LANES) as u32;
    record(&[&wide, &gradient], &[&partial]);
    let (client, dtype) = (wide.client.clone(), wide.dtype);
    scale_partial_sums_kernel::launch(
        &client,
        CubeCount::Static(tables.block_count as u32, cubes_along, 1),
        cube_dim(LANES, ROWS),
        size,
        wide.into_tensor_arg(),
        gradient.into_tensor_arg(),
        tables.blocks.into_buffer_arg(),
        magnitude_rows.into_buffer_arg(),
        partial.clone().into_tensor_arg(),
        dtype_to_storage_type(dtype),
    );
    record(&[&partial], &[&out]);
    scale_sum_kernel::launch(
        &client,
        CubeCount::Static(routing.magnitudes() as u32, cubes_along, 1),
        cube_dim(LANES, 1),
        size,
        partial.into_tensor_arg(),
        magnitudes.into_buffer_arg(),
        out.clone().into_tensor_arg(),
    );
    out
}

#[cube(launch)]
fn scale_partial_sums_kernel<F: Float, N: Size>(
    wide: &Tensor<Vector<F, N>>,
    gradient: &Tensor<Vector<F, N>>,
    blocks: &[u32],
    magnitude_rows: &[u32],
    partial: &mut Tensor<Vector<f32, N>>,
    #[define(F)] _dtype: ElemType,
) {
    let size = N::value();
    let width = wide.shape(1) / size;
    let block = CUBE_POS_X as usize * BLOCK_WORDS;
    let first_row = blocks[block + 1] as usize;
    let rows = blocks[block + 2] as usize;
    let lane = UNIT_POS_X as usize;
    let row_lane = UNIT_POS_Y as usize;
    let column = CUBE_POS_Y as usize * LANES + lane;

    let mut sums = Shared::<[Vector<f32, N>]>::new_slice(comptime!(ROWS * LANES));
    let mut sum = Vector::<f32, N>::new(0.0);
    if column < width && magnitude_rows[first_row] != NO_ADAPTER {
        for step in 0..rows.div_ceil(comptime!(ROWS * LOADS)) {
            let step_row = step * comptime!(ROWS * LOADS) + row_lane;
            let mut products = Array::<Vector<f32, N>>::new(LOADS);
            #[unroll]
            for load in 0..LOADS {
                // All loads of a step are issued at once: the last row stands in for those beyond it.
                let mut row = step_row + comptime!(load * ROWS);
                if row >= rows {
                    row = rows - 1;
                }
                products[load] = read_wide::<F, N>(wide, first_row + row, column)
                    * read_wide::<F, N>(gradient, first_row + row, column);
            }
            #[unroll]
            for load in 0..LOADS {
                if step_row + comptime!(load * ROWS) < rows {
                    sum += products[load];
                }
            }
        }
    }
    sums[row_lane * LANES + lane] = sum;
    sync_cube();
    if row_lane == 0 && column < width {
        let mut total = Vector::<f32, N>::new(0.0);
        #[unroll]
        for other in 0..ROWS {
            total += sums[other * LANES + lane];
        }
        let at = CUBE_POS_X as usize * (partial.stride(0) / size) + column;
        partial[at] = total;
    }
}

#[cube(launch)]
fn scale_sum_kernel<N: Size>(
    partial: &Tensor<Vector<f32, N>>,
    magnitudes: &[u32],
    out: &mut Tensor<Vector<f32, N>>,
) {
    let size = N::value();
    let column = CUBE_POS_Y as usize * LANES + UNIT_POS_X as usize;
    let magnitude = CUBE_POS_X as usize;
    let words = magnitude * MAGNITUDE_WORDS;
    let first = magnitudes[words] as usize;
    if column < out.shape(1) / size {
        let mut sum = Vector::<f32, N>::new(0.0);
        for block in 0..magnitudes[words + 1] as usize {
            sum += partial[(first + block) * (partial.stride(0) / size) + column];
        }
        let factor = f32::reinterpret(magnitudes[words + 2]);
        let at = magnitude * (out.stride(0) / size) + column;
        out[at] = sum * Vector::new(factor);
    }
}

//! `y = w · x / rms(x)` and its gradient.
//!
//! Units of a cube share a row; a cube takes several short rows. A row is read from memory once: the second
//! pass finds it in the multiprocessor's cache. The result is written once.

use batchlora_kernels::launch::{by_rows, cube_dim, empty, record, wide_vector_size};
use burn::backend::TensorMetadata;
use burn_cubecl::{cubecl, tensor::CubeTensor};
use cubecl::prelude::*;

use super::rows::{RowLayout, element_sum, row_sum};

pub(super) fn rms_norm(x: CubeTensor, weight: CubeTensor, epsilon: f64) -> CubeTensor {
    let (x, weight) = (by_rows(x), by_rows(weight));
    let [rows, width] = x.shape().dims();
    let out = empty(&x, [rows, width], x.dtype);
    if rows * width == 0 {
        return out;
    }
    let size = wide_vector_size(&[&x, &weight, &out]);
    let layout = RowLayout::new(width / size);
    record(&[&x, &weight], &[&out]);
    let (client, dtypes) = (x.client.clone(), [x.dtype, weight.dtype]);
    rms_norm_kernel::launch(
        &client,
        layout.cubes(rows),
        cube_dim(layout.lanes, layout.rows),
        size,
        x.into_tensor_arg(),
        weight.into_tensor_arg(),
        out.clone().into_tensor_arg(),
        epsilon as f32,
        layout.lanes,
        layout.rows,
        dtypes.map(burn::backend::cubecl::dtype_to_storage_type),
    );
    out
}

pub(super) fn rms_norm_backward(
    x: CubeTensor,
    weight: CubeTensor,
    gradient: CubeTensor,
    epsilon: f64,
) -> CubeTensor {
    let (x, weight, gradient) = (by_rows(x), by_rows(weight), by_rows(gradient));
    let [rows, width] = x.shape().dims();
    let out = empty(&x, [rows, width], x.dtype);
    if rows * width == 0 {
        return out;
    }
    let size = wide_vector_size(&[&x, &weight, &gradient, &out]);
    let layout = RowLayout::new(width / size);
    record(&[&x, &weight, &gradient], &[&out]);
    let (client, dtypes) = (x.client.clone(), [x.dtype, weight.dtype]);
    rms_norm_backward_kernel::launch(
        &client,
        layout.cubes(rows),
        cube_dim(layout.lanes, layout.rows),
        size,
        x.into_tensor_arg(),
        weight.into_tensor_arg(),
        gradient.into_tensor_arg(),
        out.clone().into_tensor_arg(),
        epsilon as f32,
        layout.lanes,
        layout.rows,
        dtypes.map(burn::backend::cubecl::dtype_to_storage_type),
    );
    out
}

#[cube(launch)]
fn rms_norm_kernel<F: Float, W: Float, N: Size>(
    x: &Tensor<Vector<F, N>>,
    weight: &Tensor<Vector<W, N>>,
    out: &mut Tensor<Vector<F, N>>,
    epsilon: f32,
    #[comptime] lanes: usize,
    #[comptime] rows: usize,
    #[define(F, W)] _dtypes: [ElemType; 2],
) {
    let size = N::value();
    let lane = UNIT_POS_X as usize;
    let row = CUBE_POS * rows + UNIT_POS_Y as usize;
    let inside = row < x.shape(0);
    let width = x.shape(1) / size;
    let x_row = row * (x.stride(0) / size);
    let out_row = row * (out.stride(0) / size);

    let mut squares = Vector::<f32, N>::new(0.0);
    for step in 0..width.div_ceil(lanes) {
        let column = step * lanes + lane;
        if inside && column < width {
            let value = Vector::<f32, N>::cast_from(x[x_row + column]);
            squares += value * value;
        }
    }
    let sum = row_sum(element_sum::<N>(squares), lanes);
    let inverse = 1.0f32 / f32::sqrt(sum / x.shape(1) as f32 + epsilon);
    for step in 0..width.div_ceil(lanes) {
        let column = step * lanes + lane;
        if inside && column < width {
            let value = Vector::<f32, N>::cast_from(x[x_row + column]);
            let weight = Vector::<f32, N>::cast_from(weight[column]);
            out[out_row + column] = Vector::cast_from(value * Vector::new(inverse) * weight);
        }
    }
}

/// With r = rms(x): dx = (g·w - x/r² · mean(g·w·x)) / r.
#[cube(launch)]
fn rms_norm_backward_kernel<F: Float, W: Float, N: Size>(
    x: &Tensor<Vector<F, N>>,
    weight: &Tensor<Vector<W, N>>,
    gradient: &Tensor<Vector<F, N>>,
    out: &mut Tensor<Vector<F, N>>,
    epsilon: f32,
    #[comptime] lanes: usize,
    #[comptime] rows: usize,
    #[define(F, W)] _dtypes: [ElemType; 2],
) {
    let size = N::value();
    let lane = UNIT_POS_X as usize;
    let row = CUBE_POS * rows + UNIT_POS_Y as usize;
    let inside = row < x.shape(0);
    let width = x.shape(1) / size;
    let x_row = row * (x.stride(0) / size);
    let gradient_row = row * (gradient.stride(0) / size);
    let out_row = row * (out.stride(0) / size);

    let mut squares = Vector::<f32, N>::new(0.0);
    let mut products = Vector::<f32, N>::new(0.0);
    for step in 0..width.div_ceil(lanes) {
        let column = step * lanes + lane;
        if inside && column < width {
            let value = Vector::<f32, N>::cast_from(x[x_row + column]);
            let weight = Vector::<f32, N>::cast_from(weight[column]);
            squares += value * value;
            products +=
                value * weight * Vector::<f32, N>::cast_from(gradient[gradient_row + column]);
        }
    }
    let elements = x.shape(1) as f32;
    let square = row_sum(element_sum::<N>(squares), lanes);
    let product = row_sum(element_sum::<N>(products), lanes);
    let inverse = 1.0f32 / f32::sqrt(square / elements + epsilon);
    let along = product * inverse / elements;
    for step in 0..width.div_ceil(lanes) {
        let column = step * lanes + lane;
        if inside && column < width {
            let normal = Vector::<f32, N>::cast_from(x[x_row + column]) * Vector::new(inverse);
            let weight = Vector::<f32, N>::cast_from(weight[column]);
            let own = weight * Vector::<f32, N>::cast_from(gradient[gradient_row + column]);
            let dx = (own - normal * Vector::new(along)) * Vector::new(inverse);
            out[out_row + column] = Vector::cast_from(dx);
        }
    }
}

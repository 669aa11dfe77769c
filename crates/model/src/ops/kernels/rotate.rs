//! The rotary embedding and its inverse.
//!
//! A unit takes one vector of a head's first half and the one it is paired with in the second: x is
//! read and the result written once; the tables, shared by all heads, come from cache.

use batchlora_kernels::launch::{by_rows, cube_dim, cubes, empty, record, wide_vector_size};
use burn::backend::TensorMetadata;
use burn_cubecl::{cubecl, tensor::CubeTensor};
use cubecl::prelude::*;

use super::rows::{UNITS, float32};
use crate::ops::Rotation;

pub(super) fn rotate(
    x: CubeTensor,
    cos: CubeTensor,
    sin: CubeTensor,
    rotation: Rotation,
) -> CubeTensor {
    let (x, cos, sin) = (by_rows(x), by_rows(float32(cos)), by_rows(float32(sin)));
    let [rows, width] = x.shape().dims();
    let out = empty(&x, [rows, width], x.dtype);
    if rows * width == 0 {
        return out;
    }
    let size = wide_vector_size(&[&x, &cos, &sin, &out]);
    record(&[&x, &cos, &sin], &[&out]);
    let (client, dtype) = (x.client.clone(), x.dtype);
    rotate_kernel::launch(
        &client,
        cubes((rows * width / 2 / size).div_ceil(UNITS)),
        cube_dim(UNITS, 1),
        size,
        x.into_tensor_arg(),
        cos.into_tensor_arg(),
        sin.into_tensor_arg(),
        out.clone().into_tensor_arg(),
        rotation == Rotation::Back,
        burn::backend::cubecl::dtype_to_storage_type(dtype),
    );
    out
}

#[cube(launch)]
fn rotate_kernel<F: Float, N: Size>(
    x: &Tensor<Vector<F, N>>,
    cos: &Tensor<Vector<f32, N>>,
    sin: &Tensor<Vector<f32, N>>,
    out: &mut Tensor<Vector<F, N>>,
    #[comptime] back: bool,
    #[define(F)] _dtype: ElemType,
) {
    let size = N::value();
    let half = cos.shape(1) / size;
    let pairs = x.shape(1) / size / 2;
    let row = ABSOLUTE_POS / pairs;
    let pair = ABSOLUTE_POS % pairs;
    let column = pair % half;
    let first = pair / half * (2 * half) + column;
    let out_row = row * (out.stride(0) / size);
    if row < x.shape(0) {
        let x_row = row * (x.stride(0) / size);
        let cos = cos[row * (cos.stride(0) / size) + column];
        let mut sin = sin[row * (sin.stride(0) / size) + column];
        if comptime!(back) {
            sin = Vector::<f32, N>::new(0.0) - sin;
        }
        let one = Vector::<f32, N>::cast_from(x[x_row + first]);
        let other = Vector::<f32, N>::cast_from(x[x_row + first + half]);
        out[out_row + first] = Vector::cast_from(one * cos - other * sin);
        out[out_row + first + half] = Vector::cast_from(other * cos + one * sin);
    }
}

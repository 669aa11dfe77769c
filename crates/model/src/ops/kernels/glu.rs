//! `act(gate) · up` and its gradients.
//!
//! A unit takes one vector; every operand is read once and every result written once.

use batchlora_kernels::launch::{by_rows, cube_dim, cubes, empty, record, wide_vector_size};
use burn::backend::TensorMetadata;
use burn_cubecl::{cubecl, tensor::CubeTensor};
use cubecl::prelude::*;

use super::rows::UNITS;
use crate::ops::activation::{Activation, GELU_CUBE, GELU_SLOPE};

pub(super) fn glu(gate: CubeTensor, up: CubeTensor, activation: Activation) -> CubeTensor {
    let (gate, up) = (by_rows(gate), by_rows(up));
    let [rows, width] = gate.shape().dims();
    let out = empty(&gate, [rows, width], gate.dtype);
    if rows * width == 0 {
        return out;
    }
    let size = wide_vector_size(&[&gate, &up, &out]);
    record(&[&gate, &up], &[&out]);
    let (client, dtype) = (gate.client.clone(), gate.dtype);
    glu_kernel::launch(
        &client,
        cubes((rows * width / size).div_ceil(UNITS)),
        cube_dim(UNITS, 1),
        size,
        gate.into_tensor_arg(),
        up.into_tensor_arg(),
        out.clone().into_tensor_arg(),
        activation,
        burn::backend::cubecl::dtype_to_storage_type(dtype),
    );
    out
}

pub(super) fn glu_backward(
    gate: CubeTensor,
    up: CubeTensor,
    gradient: CubeTensor,
    activation: Activation,
) -> (CubeTensor, CubeTensor) {
    let (gate, up, gradient) = (by_rows(gate), by_rows(up), by_rows(gradient));
    let [rows, width] = gate.shape().dims();
    let d_gate = empty(&gate, [rows, width], gate.dtype);
    let d_up = empty(&gate, [rows, width], gate.dtype);
    if rows * width == 0 {
        return (d_gate, d_up);
    }
    let size = wide_vector_size(&[&gate, &up, &gradient, &d_gate, &d_up]);
    record(&[&gate, &up, &gradient], &[&d_gate, &d_up]);
    let (client, dtype) = (gate.client.clone(), gate.dtype);
    glu_backward_kernel::launch(
        &client,
        cubes((rows * width / size).div_ceil(UNITS)),
        cube_dim(UNITS, 1),
        size,
        gate.into_tensor_arg(),
        up.into_tensor_arg(),
        gradient.into_tensor_arg(),
        d_gate.clone().into_tensor_arg(),
        d_up.clone().into_tensor_arg(),
        activation,
        burn::backend::cubecl::dtype_to_storage_type(dtype),
    );
    (d_gate, d_up)
}

/// `1 / (1 + exp(-z))` without an exponential that overflows.
#[cube]
fn sigmoid<N: Size>(z: Vector<f32, N>) -> Vector<f32, N> {
    let size = N::value();
    let mut value = Vector::<f32, N>::new(0.0);
    #[unroll]
    for index in 0..size {
        let element = z.extract(index);
        let small = f32::exp(-f32::abs(element));
        let mut above = small;
        if element >= 0.0 {
            above = 1.0f32;
        }
        value.insert(index, above / (1.0f32 + small));
    }
    value
}

/// The argument s(z) of the sigmoid.
#[cube]
fn argument<N: Size>(z: Vector<f32, N>, #[comptime] activation: Activation) -> Vector<f32, N> {
    let mut argument = z;
    if comptime!(activation == Activation::GeluTanh) {
        argument = z * (Vector::new(GELU_SLOPE) + Vector::new(GELU_CUBE) * z * z);
    }
    argument
}

#[cube(launch)]
fn glu_kernel<F: Float, N: Size>(
    gate: &Tensor<Vector<F, N>>,
    up: &Tensor<Vector<F, N>>,
    out: &mut Tensor<Vector<F, N>>,
    #[comptime] activation: Activation,
    #[define(F)] _dtype: ElemType,
) {
    let size = N::value();
    let width = gate.shape(1) / size;
    let row = ABSOLUTE_POS / width;
    let column = ABSOLUTE_POS % width;
    let out_stride = out.stride(0) / size;
    if row < gate.shape(0) {
        let z = Vector::<f32, N>::cast_from(gate[row * (gate.stride(0) / size) + column]);
        let up = Vector::<f32, N>::cast_from(up[row * (up.stride(0) / size) + column]);
        let gate = sigmoid::<N>(argument::<N>(z, activation));
        out[row * out_stride + column] = Vector::cast_from(z * gate * up);
    }
}

/// With act(z) = z·σ(s(z)), act'(z) = σ(s)·(1 + z·(1 - σ(s))·s').
#[cube(launch)]
fn glu_backward_kernel<F: Float, N: Size>(
    gate: &Tensor<Vector<F, N>>,
    up: &Tensor<Vector<F, N>>,
    gradient: &Tensor<Vector<F, N>>,
    d_gate: &mut Tensor<Vector<F, N>>,
    d_up: &mut Tensor<Vector<F, N>>,
    #[comptime] activation: Activation,
    #[define(F)] _dtype: ElemType,
) {
    let size = N::value();
    let width = gate.shape(1) / size;
    let row = ABSOLUTE_POS / width;
    let column = ABSOLUTE_POS % width;
    let d_gate_stride = d_gate.stride(0) / size;
    let d_up_stride = d_up.stride(0) / size;
    if row < gate.shape(0) {
        let z = Vector::<f32, N>::cast_from(gate[row * (gate.stride(0) / size) + column]);
        let up = Vector::<f32, N>::cast_from(up[row * (up.stride(0) / size) + column]);
        let gradient_at = row * (gradient.stride(0) / size) + column;
        let gradient = Vector::<f32, N>::cast_from(gradient[gradient_at]);
        let sigmoid = sigmoid::<N>(argument::<N>(z, activation));
        let one = Vector::<f32, N>::new(1.0);
        let mut inner = z * (one - sigmoid);
        if comptime!(activation == Activation::GeluTanh) {
            inner *= Vector::new(GELU_SLOPE) + Vector::new(3.0 * GELU_CUBE) * z * z;
        }
        let slope = sigmoid * (one + inner);
        d_gate[row * d_gate_stride + column] = Vector::cast_from(gradient * up * slope);
        d_up[row * d_up_stride + column] = Vector::cast_from(gradient * z * sigmoid);
    }
}

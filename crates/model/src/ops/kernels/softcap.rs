//! Scores bounded by a tangent, `cap · tanh(score / cap)`, as in Gemma 2, and their gradient. A unit takes
//! one vector, in place.

use batchlora_kernels::launch::{cube_dim, cubes, record, vector_size};
use burn::backend::TensorMetadata;
use burn_cubecl::{cubecl, tensor::CubeTensor};
use cubecl::prelude::*;

use super::rows::UNITS;

/// Scores `[batch, rows, keys]`, contiguous; `scale · score` is bounded by `cap`. The result still has to
/// be scaled.
pub(super) fn softcap(scores: &CubeTensor, scale: f32, cap: f32) {
    let elements = scores.shape().num_elements();
    if elements == 0 {
        return;
    }
    let size = vector_size(&[scores]);
    record(&[scores], &[scores]);
    softcap_kernel::launch(
        &scores.client,
        cubes((elements / size).div_ceil(UNITS)),
        cube_dim(UNITS, 1),
        size,
        scores.clone().into_tensor_arg(),
        scale / cap,
        cap / scale,
        burn::backend::cubecl::dtype_to_storage_type(scores.dtype),
    );
}

/// Multiplies the gradient of bounded scores by the slope of the bound at scores as they were before
/// [`softcap`]: `1 - tanh²(scale · score / cap)`. Both are `[batch, rows, keys]`, contiguous.
pub(super) fn softcap_backward(gradient: &CubeTensor, scores: CubeTensor, scale: f32, cap: f32) {
    let elements = scores.shape().num_elements();
    if elements == 0 {
        return;
    }
    let size = vector_size(&[gradient, &scores]);
    record(&[gradient, &scores], &[gradient]);
    let dtypes = [gradient.dtype, scores.dtype];
    softcap_backward_kernel::launch(
        &gradient.client.clone(),
        cubes((elements / size).div_ceil(UNITS)),
        cube_dim(UNITS, 1),
        size,
        gradient.clone().into_tensor_arg(),
        scores.into_tensor_arg(),
        scale / cap,
        dtypes.map(burn::backend::cubecl::dtype_to_storage_type),
    );
}

#[cube(launch)]
fn softcap_kernel<F: Float, N: Size>(
    scores: &mut Tensor<Vector<F, N>>,
    inner: f32,
    outer: f32,
    #[define(F)] _dtype: ElemType,
) {
    if ABSOLUTE_POS < scores.len() {
        let score = Vector::<f32, N>::cast_from(scores[ABSOLUTE_POS]);
        let bounded = (score * Vector::new(inner)).tanh() * Vector::new(outer);
        scores[ABSOLUTE_POS] = Vector::cast_from(bounded);
    }
}

#[cube(launch)]
fn softcap_backward_kernel<F: Float, S: Float, N: Size>(
    gradient: &mut Tensor<Vector<F, N>>,
    scores: &Tensor<Vector<S, N>>,
    inner: f32,
    #[define(F, S)] _dtypes: [ElemType; 2],
) {
    if ABSOLUTE_POS < gradient.len() {
        let score = Vector::<f32, N>::cast_from(scores[ABSOLUTE_POS]);
        let tangent = (score * Vector::new(inner)).tanh();
        let slope = Vector::new(1.0f32) - tangent * tangent;
        let value = Vector::<f32, N>::cast_from(gradient[ABSOLUTE_POS]);
        gradient[ABSOLUTE_POS] = Vector::cast_from(value * slope);
    }
}

//! Scores bounded by a tangent, `cap · tanh(score / cap)`, as in Gemma 2, and their gradient. A unit takes
//! one vector, in place.

use batchlora_kernels::launch::{cube_dim, cubes, record, wide_vector_size};
use burn::backend::TensorMetadata;
use burn_cubecl::{cubecl, tensor::CubeTensor};
use cubecl::prelude::*;

use super::rows::UNITS;

/// Bounds scores `[batch, rows, keys]` that still have to be multiplied by `scale`, so that
/// `scale · score` ends at `cap`.
pub(super) fn softcap(scores: CubeTensor, scale: f32, cap: f32) -> CubeTensor {
    let elements = scores.shape().num_elements();
    if elements == 0 {
        return scores;
    }
    let size = wide_vector_size(&[&scores]);
    record(&[&scores], &[&scores]);
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
    scores
}

/// Multiplies the gradient of bounded scores by the slope of the bound, `1 - tanh²(scale · score / cap)`,
/// at scores that are not bounded. Both are `[batch, rows, keys]`.
pub(super) fn softcap_backward(
    gradient: CubeTensor,
    scores: CubeTensor,
    scale: f32,
    cap: f32,
) -> CubeTensor {
    let elements = scores.shape().num_elements();
    if elements == 0 {
        return gradient;
    }
    let size = wide_vector_size(&[&gradient, &scores]);
    record(&[&gradient, &scores], &[&gradient]);
    let dtypes = [gradient.dtype, scores.dtype];
    softcap_backward_kernel::launch(
        &gradient.client,
        cubes((elements / size).div_ceil(UNITS)),
        cube_dim(UNITS, 1),
        size,
        gradient.clone().into_tensor_arg(),
        scores.into_tensor_arg(),
        scale / cap,
        dtypes.map(burn::backend::cubecl::dtype_to_storage_type),
    );
    gradient
}

/// The place of a vector in a tensor `[batch, rows, keys]` of `width` vectors a row, whose rows may be padded.
#[cube]
fn place(vector: usize, width: usize, rows: usize, of_batch: usize, of_row: usize) -> usize {
    let row = vector / width;
    row / rows * of_batch + row % rows * of_row + vector % width
}

#[cube(launch)]
fn softcap_kernel<F: Float, N: Size>(
    scores: &mut Tensor<Vector<F, N>>,
    inner: f32,
    outer: f32,
    #[define(F)] _dtype: ElemType,
) {
    let size = N::value();
    let (rows, width) = (scores.shape(1), scores.shape(2) / size);
    if ABSOLUTE_POS < scores.shape(0) * rows * width {
        let (of_batch, of_row) = (scores.stride(0) / size, scores.stride(1) / size);
        let at = place(ABSOLUTE_POS, width, rows, of_batch, of_row);
        let score = Vector::<f32, N>::cast_from(scores[at]);
        let bounded = (score * Vector::new(inner)).tanh() * Vector::new(outer);
        scores[at] = Vector::cast_from(bounded);
    }
}

#[cube(launch)]
fn softcap_backward_kernel<F: Float, S: Float, N: Size>(
    gradient: &mut Tensor<Vector<F, N>>,
    scores: &Tensor<Vector<S, N>>,
    inner: f32,
    #[define(F, S)] _dtypes: [ElemType; 2],
) {
    let size = N::value();
    let (rows, width) = (scores.shape(1), scores.shape(2) / size);
    if ABSOLUTE_POS < scores.shape(0) * rows * width {
        let (of_batch, of_row) = (scores.stride(0) / size, scores.stride(1) / size);
        let from = place(ABSOLUTE_POS, width, rows, of_batch, of_row);
        let score = Vector::<f32, N>::cast_from(scores[from]);
        let tangent = (score * Vector::new(inner)).tanh();
        let slope = Vector::new(1.0f32) - tangent * tangent;
        let (of_batch, of_row) = (gradient.stride(0) / size, gradient.stride(1) / size);
        let at = place(ABSOLUTE_POS, width, rows, of_batch, of_row);
        let value = Vector::<f32, N>::cast_from(gradient[at]);
        gradient[at] = Vector::cast_from(value * slope);
    }
}

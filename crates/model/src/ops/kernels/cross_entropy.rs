//! Losses and the gradient of the logits.
//!
//! A cube takes one row, or several where the vocabulary is small. It reads the row once for maximum and
//! sum together and once more, from cache where it fits, for the gradient, which it writes over the logits
//! if they have no other owner.

use batchlora_kernels::launch::{by_rows, cube_dim, empty, record, wide_vector_size};
use burn::{backend::TensorMetadata, tensor::DType};
use burn_cubecl::{cubecl, tensor::CubeTensor};
use cubecl::prelude::*;

use super::rows::{LOWEST, RowLayout, element_max, element_sum, float32, row_max, row_sum};

pub(super) fn cross_entropy(
    logits: CubeTensor,
    targets: CubeTensor,
    weights: CubeTensor,
) -> (CubeTensor, CubeTensor) {
    let (logits, targets, weights) = (by_rows(logits), by_rows(targets), by_rows(float32(weights)));
    let [rows, vocabulary] = logits.shape().dims();
    let losses = empty(&logits, [rows], DType::F32);
    let in_place = logits.can_mut() && logits.is_nonoverlapping();
    let gradient = if in_place {
        logits.clone()
    } else {
        empty(&logits, [rows, vocabulary], logits.dtype)
    };
    if rows * vocabulary == 0 {
        return (losses, gradient);
    }
    let size = wide_vector_size(&[&logits, &gradient]);
    let layout = RowLayout::new(vocabulary / size);
    let read = if in_place { &gradient } else { &logits };
    record(&[read, &targets, &weights], &[&losses, &gradient]);
    let (client, dtypes) = (logits.client.clone(), [logits.dtype, targets.dtype]);
    cross_entropy_kernel::launch(
        &client,
        layout.cubes(rows),
        cube_dim(layout.lanes, layout.rows),
        size,
        logits.into_tensor_arg(),
        targets.into_tensor_arg(),
        weights.into_tensor_arg(),
        losses.clone().into_tensor_arg(),
        if in_place {
            gradient.as_tensor_alias(0)
        } else {
            gradient.clone().into_tensor_arg()
        },
        layout.lanes,
        layout.rows,
        dtypes.map(burn::backend::cubecl::dtype_to_storage_type),
    );
    (losses, gradient)
}

#[cube(launch)]
fn cross_entropy_kernel<F: Float, I: Int, N: Size>(
    logits: &Tensor<Vector<F, N>>,
    targets: &Tensor<I>,
    weights: &Tensor<f32>,
    losses: &mut Tensor<f32>,
    gradient: &mut Tensor<Vector<F, N>>,
    #[comptime] lanes: usize,
    #[comptime] rows: usize,
    #[define(F, I)] _dtypes: [ElemType; 2],
) {
    let size = N::value();
    let lane = UNIT_POS_X as usize;
    let row = CUBE_POS * rows + UNIT_POS_Y as usize;
    let inside = row < logits.shape(0);
    let width = logits.shape(1) / size;
    let logits_row = row * (logits.stride(0) / size);
    let gradient_row = row * (gradient.stride(0) / size);

    let mut largest = LOWEST.runtime();
    let mut sum = 0.0f32;
    for step in 0..width.div_ceil(lanes) {
        let column = step * lanes + lane;
        if inside && column < width {
            let value = Vector::<f32, N>::cast_from(logits[logits_row + column]);
            let top = element_max::<N>(value);
            if top > largest {
                sum *= f32::exp(largest - top);
                largest = top;
            }
            let shifted = value - Vector::new(largest);
            sum += element_sum::<N>(shifted.exp());
        }
    }
    let highest = row_max(largest, lanes);
    let total = row_sum(sum * f32::exp(largest - highest), lanes);

    let mut target = 0usize;
    let mut weight = 0.0f32;
    if inside {
        target = usize::cast_from(targets[row * targets.stride(0)]);
        weight = weights[row * weights.stride(0)];
    }
    for step in 0..width.div_ceil(lanes) {
        let column = step * lanes + lane;
        if inside && column < width {
            let value = Vector::<f32, N>::cast_from(logits[logits_row + column]);
            let shifted = value - Vector::new(highest);
            let mut slope = shifted.exp() * Vector::new(weight / total);
            #[unroll]
            for index in 0..size {
                if column * size + index == target {
                    losses[row] = f32::ln(total) - shifted.extract(index);
                    let own = slope.extract(index) - weight;
                    slope.insert(index, own);
                }
            }
            gradient[gradient_row + column] = Vector::cast_from(slope);
        }
    }
}

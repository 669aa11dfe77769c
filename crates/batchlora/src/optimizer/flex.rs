//! The optimizer on the CPU: one pass over memory, rows in parallel.

use burn::backend::TensorMetadata;
use burn_flex::FlexTensor;
use multiversion::multiversion;
use rayon::{prelude::*, slice::ChunksExactMut};

use super::slot_update::{CLIP_EPSILON, column};
use crate::ops::flex::whole;

/// Partial sums side by side, so that the compiler can use vector registers.
const LANES: usize = 16;

/// Adds the squares to every slot's first share, rows in order.
pub(super) fn add_squares(
    sums: FlexTensor,
    gradients: [&FlexTensor; 2],
    starts: &FlexTensor,
) -> FlexTensor {
    let shares = sums.shape()[1];
    let mut sums = whole(sums);
    for gradient in gradients {
        let width = gradient.shape()[1];
        let gradient = gradient.to_contiguous();
        let rows: Vec<f32> = floats(&gradient)
            .par_chunks_exact(width)
            .map(sum_of_squares)
            .collect();
        let starts = integers(starts).windows(2);
        let sums = sums.storage_mut::<f32>().chunks_exact_mut(shares);
        for (sums, ranks) in sums.zip(starts) {
            let rows = &rows[ranks[0] as usize..ranks[1] as usize];
            for squares in rows {
                sums[0] += squares;
            }
        }
    }
    sums
}

/// Updates weight, first and second moment in place.
pub(super) fn adamw(
    [weight, first, second]: &mut [FlexTensor; 3],
    gradient: &FlexTensor,
    table: &FlexTensor,
    slots: &FlexTensor,
    squared_norms: &FlexTensor,
) {
    let width = weight.shape()[1];
    let [gradient, table, squared_norms] =
        [gradient, table, squared_norms].map(FlexTensor::to_contiguous);
    let table: Vec<_> = floats(&table).chunks_exact(column::COUNT).collect();
    let squared_norms = floats(&squared_norms);
    let state = (rows(weight), rows(first), rows(second)).into_par_iter();
    state
        .zip(floats(&gradient).par_chunks_exact(width))
        .zip(integers(slots))
        .for_each(|(((weight, first, second), gradient), &slot)| {
            let (row, squared) = (table[slot as usize], squared_norms[slot as usize]);
            if row[column::ACTIVE] > 0.0 && squared.is_finite() {
                let clip = (row[column::MAX_GRAD_NORM] / (squared.sqrt() + CLIP_EPSILON)).min(1.0);
                adamw_row([weight, first, second], gradient, clip, row);
            }
        });
}

/// The elements of a contiguous tensor.
fn floats(tensor: &FlexTensor) -> &[f32] {
    &tensor.storage()[tensor.layout().start_offset()..][..tensor.shape().num_elements()]
}

fn integers(tensor: &FlexTensor) -> &[i32] {
    &tensor.storage()[tensor.layout().start_offset()..][..tensor.shape().num_elements()]
}

fn rows(tensor: &mut FlexTensor) -> ChunksExactMut<'_, f32> {
    let width = tensor.shape()[1];
    tensor.storage_mut().par_chunks_exact_mut(width)
}

#[multiversion(targets("x86_64+avx512f+avx512dq", "x86_64+avx2"))]
fn sum_of_squares(row: &[f32]) -> f32 {
    let mut sums = [0f32; LANES];
    let (blocks, rest) = row.as_chunks::<LANES>();
    for block in blocks {
        for lane in 0..LANES {
            sums[lane] += block[lane] * block[lane];
        }
    }
    let rest: f32 = rest.iter().map(|value| value * value).sum();
    sums.iter().sum::<f32>() + rest
}

#[multiversion(targets("x86_64+avx512f+avx512dq", "x86_64+avx2"))]
fn adamw_row(state: [&mut [f32]; 3], gradient: &[f32], clip: f32, row: &[f32]) {
    let [weight, first, second] = state;
    let length = gradient.len();
    let (weight, first, second) = (
        &mut weight[..length],
        &mut first[..length],
        &mut second[..length],
    );
    for at in 0..length {
        let gradient = gradient[at] * clip;
        first[at] += (gradient - first[at]) * row[column::ONE_MINUS_BETA1];
        second[at] =
            second[at] * row[column::BETA2] + gradient * gradient * row[column::ONE_MINUS_BETA2];
        let denominator =
            second[at].sqrt() / row[column::ROOT_BIAS_CORRECTION2] + row[column::EPSILON];
        weight[at] =
            weight[at] * row[column::DECAY] - first[at] / denominator * row[column::STEP_SIZE];
    }
}

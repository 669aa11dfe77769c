//! torch's `AdamW` on one packed matrix, weight and moments in place, all adapters in one launch.
//!
//! A cube takes 4 packed rows and up to [`UNIT_VECTORS`] · 32 vectors of columns. A unit derives from the
//! row's slot if the row is updated, and how far its gradient is clipped.

use batchlora_kernels::launch::{by_rows, cube_dim, packed, record, vector_size, writable};
use burn::backend::TensorMetadata;
use burn_cubecl::{cubecl, tensor::CubeTensor};
use cubecl::prelude::*;

use crate::optimizer::{CLIP_EPSILON, column};

/// Units side by side along the columns.
const LANES: usize = 32;
/// Packed rows of a cube.
const ROWS: usize = 4;
/// Vectors that one unit updates at most.
const UNIT_VECTORS: usize = 4;
/// The exponent bits of a `float32` that is not finite.
const NOT_FINITE: u32 = 0x7F80_0000;

pub(super) fn adamw(
    [weight, first, second]: [CubeTensor; 3],
    gradient: CubeTensor,
    table: CubeTensor,
    slots: CubeTensor,
    squared_norms: CubeTensor,
) -> [CubeTensor; 3] {
    let [weight, first, second] = [weight, first, second].map(writable);
    let (gradient, table) = (by_rows(gradient), by_rows(table));
    let size = vector_size(&[&weight, &first, &second, &gradient]);
    let [rows, width] = weight.shape().dims();
    let vectors = width / size;
    let cubes = CubeCount::Static(
        rows.div_ceil(ROWS) as u32,
        vectors.div_ceil(LANES * UNIT_VECTORS) as u32,
        1,
    );
    record(
        &[&weight, &first, &second, &gradient],
        &[&weight, &first, &second],
    );
    let client = weight.client.clone();
    adamw_kernel::launch(
        &client,
        cubes,
        cube_dim(LANES, ROWS),
        size,
        weight.clone().into_tensor_arg(),
        first.clone().into_tensor_arg(),
        second.clone().into_tensor_arg(),
        gradient.into_tensor_arg(),
        table.into_tensor_arg(),
        packed(slots).into_buffer_arg(),
        packed(squared_norms).into_buffer_arg(),
    );
    [weight, first, second]
}

#[cube(launch)]
fn adamw_kernel<N: Size>(
    weight: &mut Tensor<Vector<f32, N>>,
    first: &mut Tensor<Vector<f32, N>>,
    second: &mut Tensor<Vector<f32, N>>,
    gradient: &Tensor<Vector<f32, N>>,
    table: &Tensor<f32>,
    slots: &[i32],
    squared_norms: &[f32],
) {
    let size = N::value();
    let row = CUBE_POS_X as usize * ROWS + UNIT_POS_Y as usize;
    let first_column = CUBE_POS_Y as usize * (LANES * UNIT_VECTORS) + UNIT_POS_X as usize;
    let width = weight.shape(1) / size;
    let weight_row = row * (weight.stride(0) / size);
    let first_row = row * (first.stride(0) / size);
    let second_row = row * (second.stride(0) / size);
    let gradient_row = row * (gradient.stride(0) / size);

    if row < weight.shape(0) {
        let slot = slots[row] as usize;
        let squared_norm = squared_norms[slot];
        let at = slot * table.stride(0);
        let finite = u32::reinterpret(squared_norm) & NOT_FINITE != NOT_FINITE;
        if finite && table[at + column::ACTIVE] > 0.0 {
            let norm = squared_norm.sqrt();
            let mut clip = table[at + column::MAX_GRAD_NORM] / (norm + CLIP_EPSILON);
            if clip > 1.0 {
                clip = 1.0f32.runtime();
            }
            let clip = Vector::<f32, N>::new(clip);
            let decay = Vector::<f32, N>::new(table[at + column::DECAY]);
            let one_minus_beta1 = Vector::<f32, N>::new(table[at + column::ONE_MINUS_BETA1]);
            let beta2 = Vector::<f32, N>::new(table[at + column::BETA2]);
            let one_minus_beta2 = Vector::<f32, N>::new(table[at + column::ONE_MINUS_BETA2]);
            let epsilon = Vector::<f32, N>::new(table[at + column::EPSILON]);
            let step_size = Vector::<f32, N>::new(table[at + column::STEP_SIZE]);
            let root_correction = Vector::<f32, N>::new(table[at + column::ROOT_BIAS_CORRECTION2]);
            // All loads are issued before one is waited for: there is no branch, and no write, between them.
            let mut g = Array::<Vector<f32, N>>::new(UNIT_VECTORS);
            let mut m = Array::<Vector<f32, N>>::new(UNIT_VECTORS);
            let mut v = Array::<Vector<f32, N>>::new(UNIT_VECTORS);
            let mut w = Array::<Vector<f32, N>>::new(UNIT_VECTORS);
            #[unroll]
            for vector in 0..UNIT_VECTORS {
                let column = (first_column + vector * LANES).min(width - 1);
                g[vector] = gradient[gradient_row + column];
                m[vector] = first[first_row + column];
                v[vector] = second[second_row + column];
                w[vector] = weight[weight_row + column];
            }
            #[unroll]
            for vector in 0..UNIT_VECTORS {
                let column = first_column + vector * LANES;
                if column < width {
                    let g = g[vector] * clip;
                    let m = m[vector] + (g - m[vector]) * one_minus_beta1;
                    let v = v[vector] * beta2 + g * g * one_minus_beta2;
                    let denominator = v.sqrt() / root_correction + epsilon;
                    let w = w[vector] * decay - m / denominator * step_size;
                    first[first_row + column] = m;
                    second[second_row + column] = v;
                    weight[weight_row + column] = w;
                }
            }
        }
    }
}

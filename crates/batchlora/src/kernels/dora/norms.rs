//! The norms of adapted weights.

use batchlora_kernels::{
    launch::{by_rows, cube_dim, empty, record, table, vector_size},
    matmul,
};
use burn::{backend::TensorMetadata, tensor::DType};
use burn_cubecl::{cubecl, tensor::CubeTensor};
use cubecl::prelude::*;

use super::LANES;
use crate::ops::ScaledRanks;

/// Two products and a launch, for all adapters: `‖w‖² + s·Σ b ∘ (2·A w + s·A Aᵀ b)`.
pub(in crate::kernels) fn norms(
    squares: CubeTensor,
    products: CubeTensor,
    a: CubeTensor,
    b: CubeTensor,
    adapters: &[ScaledRanks],
) -> CubeTensor {
    let mut transposed = a.clone();
    transposed.meta.swap(0, 1);
    let among = matmul(a, transposed, DType::F32);
    let [squares, products, among, b] = [squares, products, among, b].map(by_rows);
    let width = b.shape()[1];
    let out = empty(&b, [adapters.len(), width], DType::F32);
    let words: Vec<u32> = adapters
        .iter()
        .flat_map(|ScaledRanks { ranks, scale }| {
            let scale = (*scale as f32).to_bits();
            [ranks.start as u32, ranks.len() as u32, scale]
        })
        .collect();
    let words = table(&b.client, &b.device, &words);
    let size = vector_size(&[&squares, &products, &b, &out]);
    record(&[&squares, &products, &among, &b], &[&out]);
    let client = b.client.clone();
    norms_kernel::launch(
        &client,
        CubeCount::Static(
            adapters.len() as u32,
            (width / size).div_ceil(LANES) as u32,
            1,
        ),
        cube_dim(LANES, 1),
        size,
        squares.into_tensor_arg(),
        products.into_tensor_arg(),
        among.into_tensor_arg(),
        b.into_tensor_arg(),
        words.into_buffer_arg(),
        out.clone().into_tensor_arg(),
    );
    out
}

#[cube(launch)]
fn norms_kernel<N: Size>(
    squares: &Tensor<Vector<f32, N>>,
    products: &Tensor<Vector<f32, N>>,
    among: &Tensor<f32>,
    b: &Tensor<Vector<f32, N>>,
    adapters: &[u32],
    out: &mut Tensor<Vector<f32, N>>,
) {
    let size = N::value();
    let column = CUBE_POS_Y as usize * LANES + UNIT_POS_X as usize;
    let adapter = CUBE_POS_X as usize;
    let start = adapters[adapter * 3] as usize;
    let rank = adapters[adapter * 3 + 1] as usize;
    let scale = Vector::<f32, N>::new(f32::reinterpret(adapters[adapter * 3 + 2]));
    if column < out.shape(1) / size {
        let stride = b.stride(0) / size;
        let mut sum = Vector::<f32, N>::new(0.0);
        for j in start..start + rank {
            let mut inner = Vector::<f32, N>::new(0.0);
            for k in start..start + rank {
                let factor = among[j * among.stride(0) + k];
                inner += Vector::<f32, N>::new(factor) * b[k * stride + column];
            }
            let product = products[j * (products.stride(0) / size) + column];
            sum += b[j * stride + column] * (product + product + scale * inner);
        }
        let square = squares[column] + scale * sum;
        let mut norm = Vector::<f32, N>::new(0.0);
        #[unroll]
        for index in 0..size {
            // A column of zeros would have a scale of 0 / 0, and rounding may make a square negative.
            let mut element = square.extract(index);
            if element < f32::MIN_POSITIVE {
                element = f32::MIN_POSITIVE.runtime();
            }
            norm.insert(index, f32::sqrt(element));
        }
        let at = adapter * (out.stride(0) / size) + column;
        out[at] = norm;
    }
}

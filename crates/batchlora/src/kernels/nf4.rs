//! Weights in NF4 in floating point. Each unit writes one vector; codes and scales are read once.

use std::ops::Range;

use batchlora_kernels::launch::{cube_dim, cubes, empty, packed, record, wide_vector_size};
use burn::{
    backend::cubecl::dtype_to_storage_type,
    tensor::{DType, FloatDType},
};
use burn_cubecl::{cubecl, tensor::CubeTensor};
use cubecl::prelude::*;

use crate::nf4::{BLOCK, CODES, NESTED_BLOCK, Nf4Layout, TABLE};

/// Units of a cube.
const UNITS: usize = 256;

/// The type that values are rounded to before they are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Rounding {
    None,
    F16,
    Bf16,
}

pub(super) fn dequantize(
    codes: CubeTensor,
    scales: CubeTensor,
    layout: Nf4Layout,
    rows: Range<usize>,
) -> CubeTensor {
    let (codes, scales) = (packed(codes), packed(scales));
    let [d_out, d_in] = layout.shape;
    let out = empty(&codes, [rows.len(), d_in], layout.dtype.into());
    let size = wide_vector_size(&[&out]);
    let scale_codes = layout
        .double_quant
        .then_some((d_out * d_in).div_ceil(CODES));
    let rounding = match layout.rounding {
        FloatDType::F16 => Rounding::F16,
        FloatDType::BF16 => Rounding::Bf16,
        _ => Rounding::None,
    };
    record(&[&codes, &scales], &[&out]);
    let client = codes.client.clone();
    dequantize_kernel::launch(
        &client,
        cubes((rows.len() * d_in / size).div_ceil(UNITS)),
        cube_dim(UNITS, 1),
        size,
        codes.into_buffer_arg(),
        scales.into_buffer_arg(),
        out.clone().into_tensor_arg(),
        scale_codes.unwrap_or(0) as u32,
        (rows.start * d_in) as u32,
        scale_codes.is_some(),
        rounding,
        dtype_to_storage_type(DType::from(layout.dtype)),
    );
    out
}

#[cube(launch)]
fn dequantize_kernel<F: Float, N: Size>(
    codes: &[u32],
    scales: &[f32],
    out: &mut Tensor<Vector<F, N>>,
    scale_codes: u32,
    start: u32,
    #[comptime] double_quant: bool,
    #[comptime] rounding: Rounding,
    #[define(F)] _dtype: ElemType,
) {
    let size = N::value();
    let width = out.shape(1) / size;
    let row = ABSOLUTE_POS / width;
    let column = ABSOLUTE_POS % width;
    if row < out.shape(0) {
        let first = start as usize + ABSOLUTE_POS * size;
        let mut values = Vector::<f32, N>::new(0.0f32);
        #[unroll]
        for i in 0..size {
            let element = first + i;
            let block = element / BLOCK;
            let scale = if comptime!(double_quant) {
                let word = codes[scale_codes as usize + block / 4];
                let code = (word >> (8 * (block as u32 % 4))) & 0xff;
                let factor = scales[TABLE.len() + 257 + block / NESTED_BLOCK];
                scales[TABLE.len() + code as usize] * factor + scales[TABLE.len() + 256]
            } else {
                scales[TABLE.len() + block]
            };
            // A byte has its first code in the upper half.
            let at = element as u32 % 8;
            let shift = 8 * (at / 2) + 4 * (1 - at % 2);
            let code = (codes[element / CODES] >> shift) & 15;
            values.insert(i, rounded(scales[code as usize] * scale, rounding));
        }
        let at = row * (out.stride(0) / size) + column;
        out[at] = Vector::cast_from(values);
    }
}

/// The nearest value of another type; of two the one with an even last bit. In whole numbers, for devices without the type.
#[cube]
fn rounded(value: f32, #[comptime] rounding: Rounding) -> f32 {
    let bits = u32::reinterpret(value);
    match rounding {
        Rounding::None => value,
        Rounding::Bf16 => {
            let up = 0x7fffu32 + ((bits >> 16u32) & 1u32);
            f32::reinterpret((bits + up) & 0xffff_0000u32)
        }
        Rounding::F16 => {
            let up = 0xfffu32 + ((bits >> 13u32) & 1u32);
            let mut nearest = f32::reinterpret((bits + up) & 0xffff_e000u32);
            // Below the smallest normal number steps are of one size, that of 32-bit numbers from 1/2 to 1.
            let magnitude = f32::reinterpret(bits & 0x7fff_ffffu32);
            if magnitude < 0.000_061_035_156f32 {
                let steps = u32::reinterpret(magnitude + 0.5f32) - u32::reinterpret(0.5f32);
                let small = f32::cast_from(steps) * 0.000_000_059_604_645f32;
                nearest = f32::reinterpret(u32::reinterpret(small) | (bits & 0x8000_0000u32));
            }
            nearest
        }
    }
}

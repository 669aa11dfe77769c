//! Products of rank r on tensor cores, for `bfloat16` activations on devices that have them.
//!
//! All operands are rounded to `bfloat16`, including packed rows and the product of rank r; sums are `float32`. An
//! adapter's ranks are padded to a multiple of 16, so that its results do not depend on its neighbours.

mod expand_add;
mod gradients;
mod shrink;
mod tiles;
mod weight_grad;

pub(super) use expand_add::expand_add;
pub(super) use gradients::gradients;
pub(super) use shrink::shrink;
pub(super) use weight_grad::partial_sums;

use burn::{
    backend::DispatchDevice,
    tensor::{DType, Device},
};
use burn_cubecl::{
    cubecl::ir::{DeviceProperties, ElemType, FloatKind, features::MmaConfig},
    tensor::CubeTensor,
};

/// Rows, columns and summed elements of a fragment.
const EDGE: usize = 16;
/// Units that compute a fragment together.
const PLANE: usize = 32;
/// Planes of a cube.
const PLANES: usize = 4;
const UNITS: usize = PLANE * PLANES;
/// Unused elements between rows in shared memory: rows that are read together are in different memory
/// banks, and every fragment still begins at a multiple of 32 bytes.
const PADDING: usize = 8;

/// A fragment begins at a multiple of this in shared memory.
const FRAGMENT_BYTES: usize = 32;

/// True if a device has tensor cores that the kernels can use with `bfloat16` activations. Opens the device.
pub fn has_tensor_cores(device: &Device) -> bool {
    match device.clone().without_autodiff().as_dispatch() {
        DispatchDevice::Cube(device) => suit(device.client().properties()),
        _ => false,
    }
}

/// True if products with this wide operand are computed on tensor cores.
pub(super) fn takes(wide: &CubeTensor) -> bool {
    wide.dtype == DType::BF16 && suit(wide.client.properties())
}

fn suit(properties: &DeviceProperties) -> bool {
    let hardware = &properties.hardware;
    let factor = ElemType::Float(FloatKind::BF16);
    let edge = EDGE as u32;
    let fragment = MmaConfig {
        a_type: factor,
        b_type: factor,
        cd_type: ElemType::Float(FloatKind::F32),
        m: edge,
        n: edge,
        k: edge,
    };
    [hardware.plane_size_min, hardware.plane_size_max] == [PLANE as u32; 2]
        && properties.features.matmul.cmma.contains(&fragment)
}

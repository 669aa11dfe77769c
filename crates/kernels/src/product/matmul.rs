#![expect(
    clippy::used_underscore_binding,
    reason = "`#[define]` makes a kernel's type from an argument that its body never names"
)]

use std::sync::OnceLock;

use burn::{
    backend::{TensorMetadata, cubecl::dtype_to_storage_type},
    tensor::DType,
};
use burn_cubecl::{
    CubeDevice,
    cubecl::{self, device::WgpuDeviceKind, ir::FloatKind, prelude::*},
    kernel::matmul::{MatmulStrategy, matmul as burn_matmul},
    tensor::CubeTensor,
};
use cubek::{
    matmul::{
        definition::{MatmulElems, MatmulGlobalElems, MatmulSetupError},
        launch::launch_ref,
        multi_level::Strategy,
        routine::BlueprintStrategy,
    },
    std::InputBinding,
};

#[cfg(feature = "cuda")]
use super::cublas;
use super::software::software_product;
use crate::launch::{cube_dim, cubes, empty, record, record_elements, vector_size};

/// Units of a cube.
const UNITS: usize = 256;

/// `lhs · rhs` over the last two dimensions, summed in `float32` and written as `dtype`.
///
/// cuBLAS multiplies on CUDA devices where it is in use ([`products`](crate::products)), Burn's kernels
/// elsewhere; with Burn's feature `autotune` they are tuned by measurement. Two cases are not tuned:
/// `float32` factors that tuning might round, and software devices, where tuning takes minutes and a kernel
/// of our own is faster.
///
/// # Panics
/// If no kernel takes these operands.
pub fn matmul(lhs: CubeTensor, rhs: CubeTensor, dtype: DType) -> CubeTensor {
    #[cfg(feature = "cuda")]
    if let Some(out) = cublas::product(&lhs, &rhs, dtype) {
        return out;
    }
    record(&[&lhs, &rhs], &[]);
    record_elements(
        dtype,
        lines(&lhs) * rhs.meta.shape()[rhs.meta.num_dims() - 1],
    );
    let product = if rounds_factors(&lhs) {
        exact(lhs, rhs, dtype)
    } else if is_software(&lhs.device) {
        match software_product(&lhs, &rhs, dtype) {
            Some(product) => Ok(product),
            None => burn_matmul(lhs, rhs, None, MatmulStrategy::Cube, dtype),
        }
    } else {
        burn_matmul(lhs, rhs, None, MatmulStrategy::default(), dtype)
    };
    match product {
        Ok(out) => out,
        Err(error) => panic!("a product that no kernel computes: {error:?}"),
    }
}

/// Writes `lhs · rhs` to lines `first..` of each matrix of `out`, `[batch, lines, columns]`, or adds it
/// to them. One launch with cuBLAS; elsewhere a product and one more launch.
///
/// # Panics
/// If no kernel takes these operands.
pub fn matmul_onto(lhs: CubeTensor, rhs: CubeTensor, out: &CubeTensor, first: usize, add: bool) {
    #[cfg(feature = "cuda")]
    if cublas::product_onto(&lhs, &rhs, out, first, add) {
        return;
    }
    let part = matmul(lhs, rhs, out.dtype);
    let size = vector_size(&[out, &part]);
    record(&[&part], &[]);
    record_elements(part.dtype, part.shape().num_elements());
    put_kernel::launch(
        &out.client,
        cubes((part.shape().num_elements() / size).div_ceil(UNITS)),
        cube_dim(UNITS, 1),
        size,
        part.into_tensor_arg(),
        out.clone().into_tensor_arg(),
        first as u32,
        add,
        dtype_to_storage_type(out.dtype),
    );
}

/// The number of lines of all matrices of a batch.
fn lines(tensor: &CubeTensor) -> usize {
    let shape = tensor.shape();
    shape[..shape.num_dims() - 1].iter().product()
}

#[cube(launch)]
fn put_kernel<F: Float, N: Size>(
    part: &Tensor<Vector<F, N>>,
    out: &mut Tensor<Vector<F, N>>,
    first: u32,
    #[comptime] add: bool,
    #[define(F)] _dtype: ElemType,
) {
    let size = N::value();
    let width = part.shape(2) / size;
    let column = ABSOLUTE_POS % width;
    let line = ABSOLUTE_POS / width % part.shape(1);
    let batch = ABSOLUTE_POS / width / part.shape(1);
    if batch < part.shape(0) {
        let out_line = line + first as usize;
        let at = batch * (out.stride(0) / size) + out_line * (out.stride(1) / size) + column;
        let part_at = batch * (part.stride(0) / size) + line * (part.stride(1) / size) + column;
        let mut value = part[part_at];
        if comptime!(add) {
            value += out[at];
        }
        out[at] = value;
    }
}

/// True if Burn may round these factors: it tries tensor cores first, which take `float32` as TF32, with 10
/// bits of mantissa.
fn rounds_factors(factor: &CubeTensor) -> bool {
    let properties = factor.client.properties();
    factor.dtype == DType::F32 && properties.supports_type(ElemType::Float(FloatKind::TF32))
}

/// The product without tensor cores.
fn exact(lhs: CubeTensor, rhs: CubeTensor, dtype: DType) -> Result<CubeTensor, MatmulSetupError> {
    let dims = lhs.meta.num_dims();
    let mut shape = lhs.shape();
    for (axis, length) in shape.iter_mut().enumerate().take(dims - 2) {
        *length = (*length).max(rhs.meta.shape()[axis]);
    }
    shape[dims - 1] = rhs.meta.shape()[dims - 1];
    let out = empty(&lhs, shape, dtype);
    let storage = dtype_to_storage_type(lhs.dtype);
    let mut types = MatmulElems::from_globals(&MatmulGlobalElems {
        lhs: storage,
        rhs: storage,
        out: dtype_to_storage_type(dtype),
    });
    let client = lhs.client.clone();
    launch_ref(
        &Strategy::SimpleUnit(BlueprintStrategy::default()).into(),
        &client,
        InputBinding::new(lhs.binding(), storage),
        InputBinding::new(rhs.binding(), storage),
        out.clone().binding(),
        &mut types,
    )?;
    Ok(out)
}

/// True for a software implementation of a graphics API.
pub fn is_software(device: &CubeDevice) -> bool {
    static ONLY_SOFTWARE: OnceLock<bool> = OnceLock::new();
    let CubeDevice::Wgpu(device) = device else {
        return false;
    };
    match device.kind {
        WgpuDeviceKind::Cpu => true,
        WgpuDeviceKind::DefaultDevice => *ONLY_SOFTWARE.get_or_init(|| {
            let hardware = [
                WgpuDeviceKind::DiscreteGpu(0),
                WgpuDeviceKind::IntegratedGpu(0),
                WgpuDeviceKind::VirtualGpu(0),
                WgpuDeviceKind::Other(0),
            ];
            !hardware
                .into_iter()
                .any(|kind| CubeDevice::wgpu(kind).is_ok())
        }),
        _ => false,
    }
}

//! Products of matrices: Burn's kernels, on software adapters our own.

use std::sync::OnceLock;

use burn::{
    backend::{TensorMetadata, cubecl::dtype_to_storage_type},
    tensor::DType,
};
use burn_cubecl::{
    CubeDevice,
    cubecl::{
        device::WgpuDeviceKind,
        ir::{ElemType, FloatKind},
    },
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

use super::{
    launch::{empty, record},
    software_product::software_product,
};

/// `lhs · rhs` over the last two dimensions, summed in `float32` and written as `dtype`.
///
/// Tuned by measurement where Burn's `autotune` is on, except where tuning would give up precision,
/// and on software adapters, where trying kernels takes minutes and Burn's are made for something
/// else.
///
/// # Panics
/// If no kernel takes these operands.
pub fn matmul(lhs: CubeTensor, rhs: CubeTensor, dtype: DType) -> CubeTensor {
    let (left, right) = (lhs.clone(), rhs.clone());
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
        Ok(out) => {
            record(&[&left, &right, &out]);
            out
        }
        Err(error) => panic!("a product that no kernel computes: {error:?}"),
    }
}

/// Whether Burn may multiply these with fewer bits than they have: tensor cores take `float32` as
/// TF32, with 10 bits of mantissa, and are tried first.
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

/// Whether the device is a software implementation of a graphics API.
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

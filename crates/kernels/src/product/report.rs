use burn::{backend::DispatchDevice, tensor::Device};

/// Takes the error of the first cuBLAS product of this process that failed, on any device.
///
/// CubeCL does not know of such an error: the product's result is NaN where its memory can be reached. Call
/// this after reading results back.
pub fn product_failure() -> Option<String> {
    #[cfg(feature = "cuda")]
    let failure = super::cublas::take_failure();
    #[cfg(not(feature = "cuda"))]
    let failure = None;
    failure
}

/// Names the library that multiplies matrices on a device: `cuBLAS 13.1`, or Burn's kernels and the
/// reason why cuBLAS is not in use. Opens the device.
pub fn products(device: &Device) -> String {
    match device.clone().without_autodiff().as_dispatch() {
        DispatchDevice::Flex(_) => "gemm".to_owned(),
        #[cfg(feature = "cuda")]
        DispatchDevice::Cube(device @ burn_cubecl::CubeDevice::Cuda(_)) => {
            match super::cublas::version(&device.client()) {
                Ok(version) => format!("cuBLAS {}.{}", version / 10_000, version / 100 % 100),
                Err(reason) => format!("Burn's kernels, without cuBLAS: {reason}"),
            }
        }
        #[cfg(feature = "cubecl")]
        DispatchDevice::Cube(device) if super::is_software(device) => {
            "kernels for software devices".to_owned()
        }
        #[cfg(feature = "cubecl")]
        DispatchDevice::Cube(_) => "Burn's kernels".to_owned(),
        other => format!("{other:?}"),
    }
}

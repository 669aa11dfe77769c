use burn::tensor::Device;

/// The device under test: the CPU, or what `LORALOOM_TEST_DEVICE` names.
///
/// # Panics
/// If this build or this machine has no such device.
pub fn device() -> Device {
    match std::env::var("LORALOOM_TEST_DEVICE").as_deref() {
        Err(_) | Ok("flex") => Device::flex(),
        #[cfg(feature = "wgpu")]
        Ok("wgpu") => Device::wgpu(burn::tensor::DeviceKind::DefaultDevice),
        #[cfg(feature = "cuda")]
        Ok("cuda") => Device::cuda(0),
        Ok(other) => panic!("LORALOOM_TEST_DEVICE: this build has no device {other}"),
    }
}

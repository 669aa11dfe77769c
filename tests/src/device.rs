use burn::tensor::Device;
#[cfg(feature = "wgpu")]
use burn::tensor::{DeviceKind, DeviceType};

/// The device under test: the CPU, or what `LORALOOM_TEST_DEVICE` names.
///
/// # Panics
/// If this build or this machine has no such device.
pub fn device() -> Device {
    match std::env::var("LORALOOM_TEST_DEVICE").as_deref() {
        Err(_) | Ok("flex") => Device::flex(),
        #[cfg(feature = "wgpu")]
        Ok("wgpu") => Device::wgpu(DeviceKind::DefaultDevice),
        #[cfg(feature = "cuda")]
        Ok("cuda") => Device::cuda(0),
        Ok(other) => panic!("LORALOOM_TEST_DEVICE: this build has no device {other}"),
    }
}

/// Whether an adapter has the same bits on the device under test whatever is trained beside it: on the
/// CPU, and on software adapters. On hardware Burn chooses a kernel for the frozen product by the
/// number of rows.
pub fn keeps_bits() -> bool {
    let device = device();
    device == Device::flex() || is_software(&device)
}

/// Whether it is wgpu's, and no adapter here is hardware.
#[cfg(feature = "wgpu")]
fn is_software(device: &Device) -> bool {
    let software = Device::wgpu(DeviceKind::Cpu);
    let mut adapters = Device::enumerate(DeviceType::Wgpu).into_iter();
    *device == Device::wgpu(DeviceKind::DefaultDevice) && adapters.all(|listed| listed == software)
}

#[cfg(not(feature = "wgpu"))]
fn is_software(_device: &Device) -> bool {
    false
}

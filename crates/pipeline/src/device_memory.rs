use burn::{backend::DispatchDevice, tensor::Device};

use crate::HostMemory;

/// Bytes of memory that a device has, if it says so; this opens it. The CPU has what its machine has.
/// CUDA devices say so, wgpu's, whose shaders are WGSL here, do not.
pub fn device_memory(device: &Device) -> Option<u64> {
    match device.clone().without_autodiff().as_dispatch() {
        DispatchDevice::Flex(_) => HostMemory::installed(),
        #[cfg(feature = "cubecl")]
        DispatchDevice::Cube(device) => device.client().properties().memory.max_memory(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::device_memory;
    use crate::HostMemory;

    #[test]
    fn the_cpu_has_the_machines_memory_with_and_without_autodiff() {
        let installed = HostMemory::installed();
        assert!(installed.is_some_and(|bytes| bytes > 1 << 28));
        assert_eq!(device_memory(&Device::flex()), installed);
        assert_eq!(device_memory(&Device::flex().autodiff()), installed);
    }
}

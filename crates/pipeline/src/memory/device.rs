#[cfg(feature = "remote")]
use std::sync::Arc;

use burn::{backend::DispatchDevice, tensor::Device};

use super::HostMemory;
#[cfg(feature = "remote")]
use crate::remote::WorkerConnection;

/// Name of a device: `cpu` and `cuda:0` as in a configuration; wgpu's, which every process numbers
/// for itself, by their kind.
pub fn device_name(device: &Device) -> String {
    match device.clone().without_autodiff().as_dispatch() {
        DispatchDevice::Flex(_) => "cpu".to_owned(),
        #[cfg(feature = "cubecl")]
        DispatchDevice::Cube(burn::backend::CubeDevice::Cuda(device)) => {
            format!("cuda:{}", device.index)
        }
        other => format!("{other:?}"),
    }
}

/// Bytes of memory of a device, if it reports them; opens it. The CPU has the memory of its machine.
/// CUDA devices report it; wgpu's, whose shaders are WGSL here, do not.
pub fn device_memory(device: &Device) -> Option<u64> {
    match device.clone().without_autodiff().as_dispatch() {
        DispatchDevice::Flex(_) => HostMemory::installed(),
        #[cfg(feature = "cubecl")]
        DispatchDevice::Cube(device) => device.client().properties().memory.max_memory(),
        _ => None,
    }
}

/// Measures the memory that a device has reserved, also while stages work on it.
#[derive(Debug, Clone)]
pub struct MemoryGauge(Kind);

#[derive(Debug, Clone)]
enum Kind {
    Device(Device),
    #[cfg(feature = "remote")]
    Worker(Arc<WorkerConnection>),
}

impl MemoryGauge {
    pub(crate) fn of(device: &Device) -> Self {
        Self(Kind::Device(device.clone()))
    }

    #[cfg(feature = "remote")]
    pub(crate) fn of_worker(worker: &Arc<WorkerConnection>) -> Self {
        Self(Kind::Worker(Arc::clone(worker)))
    }

    /// True if both measure the same device. Two workers never do.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Kind::Device(device), Kind::Device(other)) => device == other,
            #[cfg(feature = "remote")]
            _ => false,
        }
    }

    /// Bytes that the device has reserved, if it reports them. A worker's are those of its last
    /// report, which it sends about once a second.
    pub fn reserved_bytes(&self) -> Option<u64> {
        match &self.0 {
            Kind::Device(device) => {
                let usage = device.memory_pool_usage();
                usage.map(|usage| usage.bytes_reserved)
            }
            #[cfg(feature = "remote")]
            Kind::Worker(worker) => worker.reserved_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::{device_memory, device_name};
    use crate::HostMemory;

    #[test]
    fn the_cpu_is_called_as_in_a_configuration_with_and_without_autodiff() {
        assert_eq!(device_name(&Device::flex()), "cpu");
        assert_eq!(device_name(&Device::flex().autodiff()), "cpu");
    }

    #[test]
    fn the_cpu_has_the_machines_memory_with_and_without_autodiff() {
        let installed = HostMemory::installed();
        assert!(installed.is_some_and(|bytes| bytes > 1 << 28));
        assert_eq!(device_memory(&Device::flex()), installed);
        assert_eq!(device_memory(&Device::flex().autodiff()), installed);
    }
}

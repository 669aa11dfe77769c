#[cfg(feature = "remote")]
use std::sync::Arc;

use burn::tensor::Device;

#[cfg(feature = "remote")]
use crate::remote::Line;

/// Tells how much memory a device has reserved, also while stages work on it.
#[derive(Debug, Clone)]
pub struct MemoryGauge(Kind);

#[derive(Debug, Clone)]
enum Kind {
    Device(Device),
    #[cfg(feature = "remote")]
    Worker(Arc<Line>),
}

impl MemoryGauge {
    pub(crate) fn of(device: &Device) -> Self {
        Self(Kind::Device(device.clone()))
    }

    #[cfg(feature = "remote")]
    pub(crate) fn of_worker(line: &Arc<Line>) -> Self {
        Self(Kind::Worker(Arc::clone(line)))
    }

    /// Whether both are of one device. Two workers are never taken for one.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Kind::Device(device), Kind::Device(other)) => device == other,
            #[cfg(feature = "remote")]
            _ => false,
        }
    }

    /// Bytes that the device has reserved, where it can tell. A worker is not asked: it says so about
    /// once a second.
    pub fn reserved_bytes(&self) -> Option<u64> {
        match &self.0 {
            Kind::Device(device) => {
                let usage = device.memory_pool_usage();
                usage.map(|usage| usage.bytes_reserved)
            }
            #[cfg(feature = "remote")]
            Kind::Worker(line) => line.reserved_bytes(),
        }
    }
}

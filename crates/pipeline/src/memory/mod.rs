//! Memory of devices: total and in use.

mod device;
mod host;

pub use device::{MemoryGauge, device_memory, device_name};
pub use host::HostMemory;

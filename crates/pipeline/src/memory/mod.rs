//! Memory of devices: how much there is, and how much is in use.

mod device;
mod host;

pub use device::{MemoryGauge, device_memory, device_name};
pub use host::HostMemory;

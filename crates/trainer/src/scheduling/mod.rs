//! The scheduler of a run, and the memory of the run's devices.

mod budget;
mod device_room;
mod scheduler;

pub(crate) use budget::{
    HOST_PAGE_BYTES, POOL_PAGE_BYTES, allowed, devices, limit_warnings, measured, memories, rooms,
    shares,
};
pub use device_room::DeviceRoom;
pub(crate) use scheduler::scheduler;

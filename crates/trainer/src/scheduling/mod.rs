//! Who trains when: the scheduler of a run, and what it learns from the run's iterations.

mod budget;
mod device_room;
mod load;
mod overseer;

pub(crate) use budget::{DeviceBudget, budgets};
pub use device_room::DeviceRoom;
pub(crate) use load::{adapter_bytes, described, fresh_bytes};
pub(crate) use overseer::Overseer;

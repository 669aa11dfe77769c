//! Who trains when: the scheduler of a run, and what it learns from the run's iterations.

mod budget;
mod device_room;
mod load;
mod overseer;
mod scheduler;

pub(crate) use budget::{
    DeviceBudget, HOST_PAGE_BYTES, POOL_PAGE_BYTES, Residents, budgets, fits, refusal,
    without_limit,
};
pub use device_room::DeviceRoom;
pub(crate) use load::{BYTES_PER_PARAMETER, adapter_bytes, described, fresh_bytes};
pub(crate) use overseer::Overseer;
pub(crate) use scheduler::task_scheduler;

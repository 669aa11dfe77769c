//! Who trains when: the scheduler of a run, and what it learns from the run's iterations.

mod budget;
mod load;
mod overseer;
mod scheduler;

pub(crate) use budget::budgets;
pub(crate) use budget::{DeviceBudget, HOST_PAGE_BYTES, POOL_PAGE_BYTES, Residents, fits, refusal};
pub(crate) use load::{BYTES_PER_PARAMETER, adapter_bytes, described};
pub(crate) use overseer::Overseer;
pub(crate) use scheduler::task_scheduler;

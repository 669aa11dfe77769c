//! The section `scheduler`: which adapters train at the same time, and in which groups.

mod memory_limit;
mod settings;

pub use memory_limit::MemoryLimit;
pub use settings::{PolicyChoice, SchedulerConfig};

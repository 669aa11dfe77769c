//! The section `scheduler`: which adapters train at the same time, and in which groups.

mod check;
mod memory_limit;
mod settings;

pub(crate) use check::check;
pub use memory_limit::{MemoryLimit, ParseSizeError};
pub use settings::{PolicyChoice, SchedulerConfig};

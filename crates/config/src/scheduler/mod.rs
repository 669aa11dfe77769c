//! The section `scheduler`: which adapters train at a time, and beside which others.

mod memory_limit;
mod resolve;
mod settings;

pub use memory_limit::{MemoryLimit, ParseSizeError};
pub(crate) use resolve::resolve;
pub use settings::{PolicyChoice, SchedulerConfig};

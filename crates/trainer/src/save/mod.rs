//! Saves a run: adapters for PEFT, and checkpoints for `--resume`. Training stops only while adapters are copied to
//! host memory.

mod moment;
mod saver;
mod standby;
mod writer;

pub(crate) use moment::{Moment, Running};
pub(crate) use saver::Saver;
pub use standby::Standby;

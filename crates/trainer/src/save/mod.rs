//! What a run writes: adapters for PEFT, and checkpoints to go on from. The training stands still only
//! while adapters are copied to the host's memory.

mod moment;
mod saver;
mod standby;
mod writer;

pub(crate) use moment::{Moment, Running};
pub(crate) use saver::Saver;
pub use standby::Standby;

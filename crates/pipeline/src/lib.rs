//! The backbone as stages: each holds contiguous decoder layers on one device, with their adapters
//! and optimizer state, and runs them forward, backward and through an optimizer step.
//!
//! What a stage needs from the one below is hidden states, from the one above their gradient; a
//! run on one device is one stage.
//!
//! [`partition()`] says which layers a stage holds, [`schedule`] in which order it works for several
//! groups, [`simulate`] how long that takes; the three are functions of numbers and know no device.

mod error;
mod microbatch;
mod partition;
pub mod schedule;
pub mod simulate;
mod stage;
mod tape;

pub use error::PipelineError;
pub use microbatch::Microbatch;
pub use partition::{Balance, PartitionError, partition};
pub use stage::Stage;
pub use tape::{StageGradients, Tape};

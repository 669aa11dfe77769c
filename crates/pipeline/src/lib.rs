//! The backbone as stages: each holds contiguous decoder layers on one device, with their adapters
//! and optimizer state, and runs them forward, backward and through an optimizer step.
//!
//! What a stage needs from the one below is hidden states, from the one above their gradient; a
//! run on one device is one stage.

mod error;
mod microbatch;
mod stage;
mod tape;

pub use error::PipelineError;
pub use microbatch::Microbatch;
pub use stage::Stage;
pub use tape::{StageGradients, Tape};

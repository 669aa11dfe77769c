//! A stage: contiguous decoder layers on one device, with the adapters of all groups at these layers
//! and their optimizer state.

mod local;
mod microbatch;
mod passes;
mod traits;

pub use local::Stage;
pub use microbatch::{Microbatch, MicrobatchId};
pub use traits::{Forwarded, PipelineStage, StageCache, TrainStage};

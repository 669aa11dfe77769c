//! Layers of the model on devices and workers.

mod balance;
mod dtype;
mod loader;
mod model;

pub(crate) use balance::{TypicalMicrobatch, balanced, estimated, spread};
pub(crate) use dtype::planned_dtype;
pub use dtype::resolve_dtype;
pub use loader::OpenedStage;
pub(crate) use loader::{ReachedStage, StageLoader};
pub use model::{model_config, quantized};

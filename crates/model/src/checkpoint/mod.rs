//! Frozen weights from (sharded) safetensors: memory-mapped, one tensor at a time.

mod dtype;
mod open;
mod parameters;
mod shard;
mod tensor;

pub use dtype::TensorDtype;
pub use open::Checkpoint;
pub use parameters::{frozen_parameters, parameter_shapes, stage_parameters};
pub(crate) use shard::Shard;
pub use tensor::HostTensor;

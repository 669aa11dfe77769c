//! Frozen weights from (sharded) safetensors: memory-mapped, one tensor at a time.

mod dtype;
mod index;
mod locate;
mod open;
mod parameters;
mod shard;
mod tensor;
mod verify;

pub use dtype::TensorDtype;
pub use open::Checkpoint;
pub use parameters::{frozen_parameters, parameter_shapes, stage_parameters};
pub(crate) use shard::Shard;
pub use tensor::HostTensor;

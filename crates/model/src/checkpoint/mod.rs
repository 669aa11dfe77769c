//! Frozen weights from (sharded) safetensors: memory-mapped, one tensor at a time.

mod dequantize;
mod digest;
mod dtype;
mod nf4;
mod open;
mod parameters;
mod shard;
mod tensor;
mod write;

pub use dtype::TensorDtype;
pub use open::Checkpoint;
pub(crate) use open::{INDEX_FILE, SINGLE_FILE};
pub use parameters::{
    dense_copy_bytes, frozen_parameters, parameter_shapes, stage_parameters, weight_bytes,
};
pub(crate) use shard::Shard;
pub use tensor::HostTensor;
pub(crate) use write::{NewTensor, write_safetensors};

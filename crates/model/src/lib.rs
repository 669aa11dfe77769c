//! The Llama family as Burn modules: Hugging Face weights in, PEFT adapters in and out.

mod checkpoint;
mod config;
mod error;
mod files;
mod peft;
mod rope;

pub use checkpoint::{Checkpoint, HostTensor, TensorDtype, parameter_shapes};
pub use config::{Architecture, LinearShape, LlamaConfig, RopeConfig, RopeScaling};
pub use error::ModelError;
pub use peft::{LoraWeights, PeftAdapter, PeftLoraConfig, TargetModules};
pub use rope::RopeTable;

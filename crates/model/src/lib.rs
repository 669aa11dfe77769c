//! The Llama family as Burn modules: Hugging Face weights in, PEFT adapters in and out.

mod adapters;
mod backbone;
mod batch;
mod cache;
mod check;
mod checkpoint;
mod config;
pub mod cost;
mod durable;
mod error;
mod files;
mod head;
mod layer;
mod load;
mod matrix_view;
mod ops;
mod peft;
mod projection;
mod rope;

pub use adapters::{LayerAdapter, LayerBanks, LayerGradients, LayerLora, to_host};
pub use backbone::Backbone;
pub use batch::{RotaryTables, SequenceBatch};
pub use cache::LayerCache;
pub use check::{Deviation, check_operations};
pub use checkpoint::{Checkpoint, HostTensor, TensorDtype, parameter_shapes, stage_parameters};
pub use config::{Architecture, LinearShape, LlamaConfig, RopeConfig, RopeScaling};
pub use durable::{create_directories, create_directory, sync_directory, write_synced};
pub use error::{ModelError, causes, says_out_of_memory};
pub use head::{LanguageModelHead, Targets};
pub use layer::DecoderLayer;
pub use matrix_view::MatrixView;
pub use ops::{AttentionShape, Sequences, cross_entropy, rms_norm, rotate, self_attention, swiglu};
pub use peft::{LoraWeights, PeftAdapter, PeftLoraConfig, TargetModules, keep_others};
pub use projection::Projection;
pub use rope::RopeTable;

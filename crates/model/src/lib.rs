//! The Llama family as Burn modules: Hugging Face weights in, PEFT adapters in and out.

mod adapters;
mod backbone;
mod batch;
mod cache;
mod causes;
mod check;
mod checkpoint;
mod config;
pub mod cost;
mod durable;
mod error;
mod files;
mod gguf;
mod head;
mod json;
mod layer;
mod load;
mod matrix_view;
mod merge;
mod ops;
mod peft;
mod projection;
mod replace;
mod rope;
mod smoothing;
mod targets;

pub use adapters::{LayerAdapter, LayerBanks, LayerGradients, LayerLora, to_host};
pub use backbone::Backbone;
pub use batch::{RotaryRows, RotaryTables, SequenceBatch};
pub use cache::LayerCache;
pub use causes::causes;
pub use check::{Deviation, check_operations};
pub use checkpoint::{Checkpoint, HostTensor, TensorDtype, parameter_shapes, stage_parameters};
pub use config::{
    Architecture, LayerRotation, LinearShape, LlamaConfig, Multipliers, NormPlacement, QkNorm,
    Quantization, RopeConfig, RopeScaling, StoredFormat,
};
pub use durable::{create_directories, create_directory, sync_directory, write_synced};
pub use error::{ModelError, says_out_of_memory};
pub use gguf::write_gguf_lora;
pub use head::{HeadAdapters, HeadLoss, LanguageModelHead};
pub use layer::DecoderLayer;
pub use matrix_view::MatrixView;
pub use merge::{MergePart, MergeRecord, Merged, MergedPart, Merger, merge};
pub use ops::{
    Activation, AttentionShape, BLOCK_TOKENS, BlockTable, BlockTables, Sampled, SampledRow,
    Sampling, Sequences, append_kv, cross_entropy, glu, paged_attention, rms_norm, rotate, sample,
    self_attention,
};
pub use peft::{
    LoraWeights, ModuleNote, PeftAdapter, PeftLoraConfig, PeftNotes, TargetModules, copy_adapter,
};
pub use projection::Projection;
pub use replace::keep_others;
pub use rope::RopeTable;
pub use smoothing::SmoothedTargets;
pub use targets::{PreferenceTargets, Targets};

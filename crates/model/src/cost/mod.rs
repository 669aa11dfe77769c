//! The cost of training: parameters, bytes and floating-point operations, from shapes alone. Balance,
//! plans, admission and benchmarks take their numbers from here.

mod activations;
mod adapter;
mod operations;

pub use activations::{
    ActivationStorage, TokenBytes, backward_bytes_per_token, bytes_per_token,
    least_bytes_per_token, most_bytes_per_token,
};
pub use adapter::{AdapterRanks, GRADIENT_BYTES, STORED_BYTES, TRAINED_BYTES, adapter_parameters};
pub use operations::{
    LayerWork, Operations, attention_pairs, embedding_operations, head_operations, layer_operations,
};

pub use crate::{
    checkpoint::{dense_copy_bytes, frozen_parameters, weight_bytes},
    head::loss_bytes,
};

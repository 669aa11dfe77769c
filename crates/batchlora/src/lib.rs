#![doc = include_str!("../README.md")]

mod adapter;
mod attached;
mod bank;
mod check;
mod dora;
mod dropout;
mod embedding;
mod error;
mod frozen;
#[cfg(feature = "cubecl")]
mod kernels;
mod layer;
mod linear;
mod nf4;
mod ops;
mod optimizer;
mod packed;
pub mod primitives;
mod rank_tables;
mod routing;
mod segments;
mod spec;

pub use adapter::{AdapterState, LoraPair};
pub use attached::BatchLora;
pub use bank::AdapterBank;
#[cfg(feature = "cubecl")]
pub use batchlora_kernels::{KernelProfile, KernelTime, LaunchCount};
#[cfg(feature = "persistence")]
pub use batchlora_kernels::{UnwritableKernels, persist_kernels};
pub use batchlora_kernels::{product_failure, products};
pub use check::{check_device, check_product};
pub use dropout::{DropoutDraw, DropoutKey};
pub use error::BatchLoraError;
pub use frozen::{FrozenWeight, Nf4Weight};
#[cfg(feature = "cubecl")]
pub use kernels::has_tensor_cores;
pub use layer::{BatchLoraLinear, BatchLoraLinearConfig};
pub use linear::{frozen_linear, frozen_linear_backward, lora_linear, seed_gradient};
pub use nf4::{
    BLOCK as NF4_BLOCK, NESTED_BLOCK as NF4_NESTED_BLOCK, Nf4, Nf4Scales, TABLE as NF4_TABLE,
};
pub use optimizer::{AdamWStep, BatchAdamW, GradientNorms, LearningRates, SlotUpdate};
pub use routing::{RoutedSegment, Routing};
pub use segments::{Segment, Segments};
pub use spec::LoraSpec;

#![doc = include_str!("../README.md")]

mod adapter;
mod attached;
mod bank;
mod check;
mod dropout;
mod error;
#[cfg(feature = "cubecl")]
mod kernels;
mod linear;
#[doc(hidden)]
pub mod matrix;
mod ops;
mod optimizer;
#[doc(hidden)]
pub mod primitives;
mod rank_tables;
mod routing;
mod segments;
mod spec;

pub use adapter::{AdapterState, LoraPair};
pub use attached::BatchLora;
pub use bank::{AdapterBank, DropoutDraw};
pub use check::{check_device, check_product, product_failure, products};
pub use dropout::DropoutKey;
pub use error::BatchLoraError;
#[cfg(feature = "cubecl")]
#[doc(hidden)]
pub use kernels::launch;
#[cfg(feature = "persistence")]
pub use kernels::persist_kernels;
#[cfg(feature = "cubecl")]
pub use kernels::{KernelProfile, KernelTime, LaunchCount};
pub use linear::{frozen_linear, lora_linear, seed_gradient};
pub use optimizer::{AdamWStep, GradientNorms, SlotUpdate};
pub use routing::{RoutedSegment, Routing};
pub use segments::{Segment, Segments};
pub use spec::LoraSpec;

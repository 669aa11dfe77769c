#![doc = include_str!("../README.md")]

mod adamw;
mod adapter;
mod attached;
mod bank;
mod dropout;
mod error;
mod linear;
#[doc(hidden)]
pub mod matrix;
mod ops;
mod routing;
mod segments;
mod spec;

pub use adamw::{AdamWStep, SlotUpdate, squared_gradient_norms};
pub use adapter::{AdapterState, LoraPair};
pub use attached::BatchLora;
pub use bank::{AdapterBank, DropoutDraw};
pub use dropout::DropoutKey;
pub use error::BatchLoraError;
pub use linear::{frozen_linear, lora_linear, seed_gradient};
pub use routing::{RoutedSegment, Routing};
pub use segments::{Segment, Segments};
pub use spec::LoraSpec;

//! Code that the kernels of [batchlora](https://docs.rs/batchlora) and of loraloom's decoder share: launch
//! operands, matrix products, and counts and times of launches.
//!
//! The interface is not stable: depend on batchlora instead.

#[cfg(feature = "cubecl")]
mod count;
#[cfg(feature = "cubecl")]
pub mod launch;
pub mod matrix;
#[cfg(feature = "persistence")]
mod persistence;
mod product;
#[cfg(feature = "cubecl")]
mod profile;

#[cfg(feature = "cubecl")]
pub use count::LaunchCount;
#[cfg(feature = "persistence")]
pub use persistence::{UnwritableKernels, persist_kernels};
#[cfg(feature = "cubecl")]
pub use product::{is_software, matmul, matmul_onto};
pub use product::{product_failure, products};
#[cfg(feature = "cubecl")]
pub use profile::{KernelProfile, KernelTime};

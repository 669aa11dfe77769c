//! The memory that tasks take on a device, learnt from measured iterations.
//!
//! Mem = exact + b₀ + b₁·ΣBL + b₂·ΣBL² with b ≥ 0 (mLoRA, Eq. 5). Backbone, adapters, gradients and moments
//! are known to the byte; b is fitted by non-negative least squares. Admission compares a bound with the
//! limit: the fit and a margin from its largest residual. A load that ran out of memory is not
//! admitted again.

mod coefficients;
mod device;
mod forecasts;
mod model;
mod size;

pub use coefficients::Coefficients;
pub use device::{DeviceMemory, Shortage};
pub use forecasts::Forecasts;
pub use model::{Estimate, LearntMemory, Measurement, MemoryModel};
pub use size::{size, sizes};

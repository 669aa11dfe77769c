//! What a device's memory holds while tasks train, learnt from what iterations took.
//!
//! Mem = exact + b₀ + b₁·ΣBL + b₂·ΣBL² with b ≥ 0 (mLoRA, Eq. 5). Backbone, adapters, gradients and moments
//! are known to the byte; b is fitted by non-negative least squares. Admission goes by a bound above
//! the fit: its margin is the largest residual, and no load is let in again that memory ran out for.

mod coefficients;
mod device;
mod forecasts;
mod model;
mod size;

pub use coefficients::Coefficients;
pub use device::{DeviceMemory, Shortage};
pub use forecasts::Forecasts;
pub use model::{Estimate, LearntMemory, Measurement, MemoryModel};

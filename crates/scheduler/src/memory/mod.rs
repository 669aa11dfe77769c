//! What a device's memory holds while tasks train, learned from what iterations really took.
//!
//! Mem = exact + b₀ + b₁·ΣBL + b₂·ΣBL² with b ≥ 0 (mLoRA, Eq. 5). Backbone, adapters, gradients and
//! moments are known to the byte and added; the rest, b, is fitted. Admission does not look at the
//! fit but at a bound above it: a mean error says nothing about the one load that does not fit.

mod bytes;
mod coefficients;
mod device;
mod estimate;
mod failures;
mod forecasts;
mod learnt;
mod measurement;
mod model;
mod pools;
mod proportion;
mod regression;
mod runs;
mod unfitted;
mod verdict;
mod window;

pub use coefficients::Coefficients;
pub use device::DeviceMemory;
pub use estimate::{Basis, Estimate, Probe};
pub use forecasts::Forecasts;
pub use learnt::LearntMemory;
pub use measurement::Measurement;
pub use model::MemoryModel;
pub use verdict::{Fit, Shortage};

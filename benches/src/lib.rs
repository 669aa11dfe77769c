//! Measurements of this machine: the operator at one layer ([`KernelBench`]) and whole training steps over a model
//! with random weights ([`EndToEndBench`]), and answers to requests ([`ServingBench`]). `loraloom bench` prints them; the
//! programs in `benches/` measure the rest.

mod end_to_end;
mod kernels;
mod launches;
mod layer;
mod serving;
mod tasks;
mod timing;

pub use end_to_end::{EndToEndBench, EndToEndMeasurement};
pub use kernels::{KernelBench, KernelMeasurement};
pub use launches::KernelShare;
pub use serving::{Percentiles, ServingBench, ServingMeasurement, ServingPolicy};
pub use timing::median_seconds;

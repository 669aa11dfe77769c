//! What this machine does: the operator alone, and whole training steps over random weights.

mod count;
mod end_to_end;
mod kernels;
mod layer;
mod measure;
mod report;
mod trial;
mod workload;

pub use end_to_end::EndToEndBench;
pub use kernels::KernelBench;
pub use report::{BenchReport, EndToEndMeasurement, KernelMeasurement, KernelShare, Rung};

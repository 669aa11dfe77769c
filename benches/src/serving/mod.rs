//! Answers to requests: throughput, times to tokens, and fairness, alone and beside training.

mod bench;
mod figures;
mod load;
mod policy;

pub use bench::ServingBench;
pub use figures::{Percentiles, ServingMeasurement};
pub use policy::ServingPolicy;

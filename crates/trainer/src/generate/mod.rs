//! Decoding with adapters, several side by side.

mod answers;
mod decode;
mod exact_match;
mod generator;
mod live;
mod options;
mod serving;

pub(crate) use answers::{Answers, SampleCounts};
pub use exact_match::ExactMatch;
pub use generator::Generator;
pub use live::{LiveAdapters, LiveAsks, find_weights};
pub use options::GenerateOptions;
pub use serving::{adapter_reader, inference_pipeline};

//! Decoding with adapters, several side by side.

mod answers;
mod decode;
mod generator;
mod sampling;

pub(crate) use answers::{Answers, Asked};
pub use generator::Generator;
pub use sampling::GenerateOptions;

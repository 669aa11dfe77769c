//! Hugging Face `config.json`, resolved: both dialects in, no options left open.

mod architecture;
mod llama;
mod raw;
mod resolve;
mod rope;
mod shapes;
mod sliding_window;

pub use architecture::Architecture;
pub use llama::{LinearShape, LlamaConfig};
pub use rope::{RopeConfig, RopeScaling};

//! Hugging Face `config.json`, resolved: accepts the keys of transformers 4 and 5, and fills in all options.

mod architecture;
mod family;
mod llama;
mod quantization;
mod raw;
mod resolve;
mod rope;
mod shapes;
mod sliding_window;

pub use architecture::Architecture;
pub use llama::{LayerRotation, LinearShape, LlamaConfig, Multipliers, NormPlacement, QkNorm};
pub use quantization::{Quantization, StoredFormat};
pub use rope::{RopeConfig, RopeScaling};

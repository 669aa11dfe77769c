//! PEFT adapter directories: `adapter_config.json` and `adapter_model.safetensors`, in and out.

mod adapter;
mod config;
mod load;
mod modules;
mod notes;
mod raw;
mod save;
mod weights;
mod written;

pub use adapter::PeftAdapter;
pub use config::{PeftLoraConfig, TargetModules};
pub(crate) use notes::METADATA_KEY;
pub use notes::{ModuleNote, PeftNotes};
pub use save::copy_adapter;
pub use weights::LoraWeights;

const CONFIG_FILE: &str = "adapter_config.json";
const WEIGHTS_FILE: &str = "adapter_model.safetensors";
/// PEFT's prefix of a module's path: its own two wrappers.
const KEY_PREFIX: &str = "base_model.model.";

/// The name of a module's magnitude after its path.
const MAGNITUDE: &str = "lora_magnitude_vector";

/// The names of a module's A and B after its path.
fn factor_names(module: &str) -> [&'static str; 2] {
    if module == crate::Projection::EmbedTokens.path() {
        ["lora_embedding_A", "lora_embedding_B"]
    } else {
        ["lora_A.weight", "lora_B.weight"]
    }
}

use super::{open::Checkpoint, parameters::parameter_shapes};
use crate::{config::LlamaConfig, error::ModelError, files::reading};

/// Bytes of each parameter that are hashed.
const LOOKED_AT: usize = 4096;

impl Checkpoint {
    /// BLAKE3 over `config.json` and over name, type, shape and the first 4 KiB of every parameter of `config`:
    /// enough to tell two models of one shape apart, and fast to read.
    ///
    /// # Errors
    /// If a file or a parameter is missing.
    pub fn digest(&self, config: &LlamaConfig) -> Result<String, ModelError> {
        let path = self.directory().join("config.json");
        let text = reading(&path, std::fs::read(&path))?;
        let mut hasher = blake3::Hasher::new();
        hasher.update(blake3::hash(&text).as_bytes());
        for (name, shape) in parameter_shapes(config) {
            for (header, bytes) in self.stored_parts(&name, &shape)? {
                hasher.update(header.as_bytes());
                hasher.update(&bytes[..bytes.len().min(LOOKED_AT)]);
            }
        }
        Ok(hasher.finalize().to_hex().to_string())
    }
}

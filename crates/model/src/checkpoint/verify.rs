use std::collections::BTreeSet;

use super::{
    open::Checkpoint,
    parameters::{is_ignored, parameter_shapes},
};
use crate::{config::LlamaConfig, error::ModelError};

impl Checkpoint {
    /// Checks from the headers alone that every parameter of `config` is there with its shape and a
    /// readable type, and that nothing else is except what is known to be redundant.
    ///
    /// # Errors
    /// Names the tensors that are missing, unexpected or of another shape or type.
    pub fn verify(&self, config: &LlamaConfig) -> Result<(), ModelError> {
        let parameters = parameter_shapes(config);
        let names = parameters.iter().map(|(name, _)| name);
        let missing = names.filter(|name| self.find(name).is_none());
        let missing: Vec<String> = missing.cloned().collect();
        if !missing.is_empty() {
            return Err(self.missing(missing));
        }
        for (name, shape) in &parameters {
            self.expect(name, shape)?;
        }
        let unexpected = self.unexpected(config);
        if unexpected.is_empty() {
            return Ok(());
        }
        Err(ModelError::UnexpectedTensors {
            directory: self.directory().to_owned(),
            names: unexpected.into_iter().map(str::to_owned).collect(),
        })
    }

    /// Tensors that a model of `config` does not use, sorted; a biased projection read as an unbiased one
    /// would show here. Known redundant tensors are left out: rotary tables of old checkpoints, and
    /// `lm_head.weight` where it is tied to the embedding.
    pub fn unexpected(&self, config: &LlamaConfig) -> Vec<&str> {
        let parameters = parameter_shapes(config);
        let expected: BTreeSet<&str> = parameters.iter().map(|(name, _)| name.as_str()).collect();
        self.names()
            .filter(|name| !expected.contains(name) && !is_ignored(config, name))
            .collect()
    }
}

use std::collections::BTreeMap;

use super::{config::PeftLoraConfig, modules::ModuleRules, weights::LoraWeights};
use crate::{config::LlamaConfig, error::ModelError, projection::Projection};

/// An adapter as PEFT stores it.
#[derive(Debug, Clone, PartialEq)]
pub struct PeftAdapter {
    /// Contents of `adapter_config.json`.
    pub config: PeftLoraConfig,
    /// Weights by module path, such as `model.layers.0.self_attn.q_proj`.
    pub modules: BTreeMap<String, LoraWeights>,
    /// [`Checkpoint::digest`](crate::Checkpoint::digest) of the model that it was trained over; `None` if another
    /// program wrote it.
    pub base: Option<String>,
}

impl PeftAdapter {
    /// Number of trained values: A, B and, with DoRA, magnitudes.
    pub fn num_params(&self) -> usize {
        let of = |weights: &LoraWeights| {
            let magnitude = weights.magnitude.as_ref().map_or(0, Vec::len);
            weights.a.len() + weights.b.len() + magnitude
        };
        self.modules.values().map(of).sum()
    }

    /// Refuses an adapter of embedding or output projection over a base whose two are one weight.
    ///
    /// # Errors
    /// [`ModelError::TiedModule`].
    pub(crate) fn refuse_tied(&self, base: &LlamaConfig) -> Result<(), ModelError> {
        let mut ends = Projection::ENDS.into_iter().map(Projection::path);
        match ends.find(|end| base.tie_word_embeddings && self.modules.contains_key(*end)) {
            Some(end) => Err(ModelError::TiedModule(end)),
            None => Ok(()),
        }
    }

    /// Checks that this adapter fits a base model: every module with weights is one of its
    /// modules and of its size, and every targeted module has weights.
    ///
    /// # Errors
    /// Names the first module that does not fit, or those without weights.
    pub fn verify(&self, base: &LlamaConfig) -> Result<(), ModelError> {
        let rules = ModuleRules::new(&self.config)?;
        let mut sizes = BTreeMap::new();
        let mut missing = Vec::new();
        for layer in 0..base.num_hidden_layers {
            for linear in base.modules(layer) {
                let module = linear.projection.module(layer);
                if rules.targets(&module) && !self.modules.contains_key(&module) {
                    missing.push(module.clone());
                }
                sizes.insert(module, [linear.d_out, linear.d_in]);
            }
        }
        for (module, weights) in &self.modules {
            let (module, found) = (module.clone(), [weights.d_out, weights.d_in]);
            let Some(&expected) = sizes.get(&module) else {
                return Err(ModelError::NoSuchModule(module));
            };
            if expected != found {
                return Err(ModelError::AdapterSize {
                    module,
                    expected,
                    found,
                });
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        Err(ModelError::MissingAdapterModules { modules: missing })
    }
}

use std::{collections::BTreeMap, path::Path};

use super::{config::PeftLoraConfig, load, modules::ModuleRules, save, weights::LoraWeights};
use crate::{config::LlamaConfig, error::ModelError};

/// An adapter as PEFT stores it.
#[derive(Debug, Clone, PartialEq)]
pub struct PeftAdapter {
    /// Contents of `adapter_config.json`.
    pub config: PeftLoraConfig,
    /// Weights by module path, such as `model.layers.0.self_attn.q_proj`.
    pub modules: BTreeMap<String, LoraWeights>,
}

impl PeftAdapter {
    /// Reads `adapter_config.json` and `adapter_model.safetensors` in `directory`.
    ///
    /// # Errors
    /// If the files are missing, damaged or disagree, the adapter is more than plain `LoRA`, or a
    /// weight is not finite.
    pub fn load(directory: &Path) -> Result<Self, ModelError> {
        load::load(directory)
    }

    /// Checks that `directory` has both files of an adapter with their full lengths; reads no weight.
    ///
    /// # Errors
    /// If a file is missing or cut off.
    pub fn check(directory: &Path) -> Result<(), ModelError> {
        load::open(directory).map(drop)
    }

    /// Writes `directory` so that PEFT's `PeftModel.from_pretrained` loads it. The bytes depend on
    /// the adapter alone.
    ///
    /// Modules whose rank or `lora_alpha` the configuration's own patterns do not give are written
    /// with `rank_pattern` and `alpha_pattern` that name them by their full path.
    ///
    /// The files are written and synced in `<directory>.tmp-<pid>` beside it, which then takes its
    /// place: a reader never finds half an adapter. Other files that were in an existing directory are
    /// kept. After a crash a directory of that name, or `<directory>.old-<pid>` with the previous
    /// adapter, may be left.
    ///
    /// # Errors
    /// If the adapter contradicts itself or the directory cannot be written.
    pub fn save(&self, directory: &Path) -> Result<(), ModelError> {
        save::save(self, directory)
    }

    /// Checks that this adapter fits a base model: every module with weights is one of its linear
    /// layers and of its size, and every targeted layer has weights.
    ///
    /// # Errors
    /// Names the first module that does not fit, or those without weights.
    pub fn verify(&self, base: &LlamaConfig) -> Result<(), ModelError> {
        let rules = ModuleRules::new(&self.config)?;
        let mut sizes = BTreeMap::new();
        let mut missing = Vec::new();
        for layer in 0..base.num_hidden_layers {
            for linear in base.linears() {
                let module = format!("model.layers.{layer}.{}", linear.path);
                if rules.targets(&module) && !self.modules.contains_key(&module) {
                    missing.push(module.clone());
                }
                sizes.insert(module, [linear.d_out, linear.d_in]);
            }
        }
        for (module, weights) in &self.modules {
            let found = [weights.d_out, weights.d_in];
            match sizes.get(module) {
                None => {
                    return Err(ModelError::NoSuchModule {
                        module: module.clone(),
                    });
                }
                Some(&expected) if expected != found => {
                    return Err(ModelError::AdapterSize {
                        module: module.clone(),
                        expected,
                        found,
                    });
                }
                Some(_) => {}
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        Err(ModelError::MissingAdapterModules { modules: missing })
    }
}

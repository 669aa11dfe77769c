use std::{borrow::Cow, collections::HashMap, path::Path};

use super::{
    CONFIG_FILE, KEY_PREFIX, WEIGHTS_FILE, adapter::PeftAdapter, config::PeftLoraConfig,
    modules::ModuleRules, replace, weights::LoraWeights, written,
};
use crate::{error::ModelError, matrix_view::MatrixView};

impl PeftAdapter {
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
        let config = written::config_json(&consistent_config(self, directory)?)?;
        let weights = weights_bytes(self, directory)?;
        let files = [(CONFIG_FILE, &*config), (WEIGHTS_FILE, &*weights)];
        replace::replace_directory(directory, &files)
    }
}

/// The configuration to write: unchanged if it gives every module's rank and `lora_alpha`, else with
/// patterns that name the modules.
fn consistent_config(
    adapter: &PeftAdapter,
    directory: &Path,
) -> Result<PeftLoraConfig, ModelError> {
    if adapter.modules.is_empty() {
        return Err(ModelError::EmptyAdapter(directory.join(WEIGHTS_FILE)));
    }
    let mut config = adapter.config.clone();
    config.check()?;
    let rules = ModuleRules::new(&adapter.config)?;
    for (module, weights) in &adapter.modules {
        weights.check(module)?;
        if !rules.targets(module) {
            return Err(ModelError::NotTargeted(module.clone()));
        }
        let expected = config.scale(weights.r, weights.lora_alpha);
        if (expected - weights.scale).abs() > 1e-6 * expected.abs() {
            let (module, found) = (module.clone(), weights.scale);
            return Err(ModelError::AdapterScale {
                module,
                expected,
                found,
            });
        }
    }
    let agrees = |(module, weights): (&String, &LoraWeights)| {
        rules.rank(module) == weights.r && same(rules.alpha(module), weights.lora_alpha)
    };
    if !adapter.modules.iter().all(agrees) {
        let modules = &adapter.modules;
        config.rank_pattern = (modules.iter().filter(|(_, w)| w.r != config.r))
            .map(|(module, weights)| (module.clone(), weights.r))
            .collect();
        config.alpha_pattern = (modules.iter())
            .filter(|(_, weights)| !same(weights.lora_alpha, config.lora_alpha))
            .map(|(module, weights)| (module.clone(), weights.lora_alpha))
            .collect();
        config.check()?;
    }
    Ok(config)
}

fn same(a: f64, b: f64) -> bool {
    (a - b).abs() <= 0.0
}

/// `adapter_model.safetensors`: sorted by name, 32-bit floats.
fn weights_bytes(adapter: &PeftAdapter, directory: &Path) -> Result<Vec<u8>, ModelError> {
    let views = adapter.modules.iter().flat_map(|(module, weights)| {
        let matrix = |factor: &str, shape| (format!("{KEY_PREFIX}{module}.{factor}.weight"), shape);
        let a = matrix("lora_A", [weights.r, weights.d_in]);
        let b = matrix("lora_B", [weights.d_out, weights.r]);
        [(a, &weights.a), (b, &weights.b)]
    });
    let views = views.map(|((key, shape), values)| {
        let values = Cow::Borrowed(values.as_slice());
        (key, MatrixView { shape, values })
    });
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    safetensors::serialize(views, Some(metadata)).map_err(|error| ModelError::Safetensors {
        path: directory.join(WEIGHTS_FILE),
        error,
    })
}

use std::{borrow::Cow, collections::BTreeMap, path::Path};

use safetensors::{Dtype, View};

use super::{
    CONFIG_FILE, KEY_PREFIX, MAGNITUDE, WEIGHTS_FILE,
    adapter::PeftAdapter,
    config::PeftLoraConfig,
    factor_names,
    modules::ModuleRules,
    notes::{METADATA_KEY, PeftNotes},
    weights::LoraWeights,
    written,
};
use crate::{
    checkpoint::{NewTensor, write_safetensors},
    durable::write_synced,
    error::{ModelError, on},
    matrix_view::MatrixView,
    replace::{copy_file, new_directory, replace_directory},
};

impl PeftAdapter {
    /// Writes `directory` so that PEFT's `PeftModel.from_pretrained` loads it. The bytes depend on
    /// the adapter alone; [`PeftNotes`] of it are in the header of its weights.
    ///
    /// Modules whose rank or `lora_alpha` do not follow from the configuration's own patterns get entries in
    /// `rank_pattern` and `alpha_pattern` under their full path.
    ///
    /// The files are written and synced in `<directory>.tmp-<pid>` beside it, which then replaces it: a reader never
    /// finds half an adapter. Other files of an existing directory are kept. After a crash a directory of that name,
    /// or `<directory>.old-<pid>` with the previous adapter, may remain.
    ///
    /// # Errors
    /// If the adapter contradicts itself or the directory cannot be written.
    pub fn save(&self, directory: &Path) -> Result<(), ModelError> {
        let config = written::config_json(&consistent_config(self, directory)?)?;
        replace_directory(directory, |staged| {
            let path = staged.join(CONFIG_FILE);
            on(&path, write_synced(&path, &config))?;
            write_weights(self, &staged.join(WEIGHTS_FILE))
        })
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
        if weights.magnitude.is_some() != config.use_dora {
            return Err(ModelError::Magnitude {
                module: module.clone(),
                use_dora: config.use_dora,
            });
        }
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
fn write_weights(adapter: &PeftAdapter, path: &Path) -> Result<(), ModelError> {
    let matrices = adapter.modules.iter().flat_map(|(module, weights)| {
        let [a, b] = factor_names(module);
        let a = (a, [weights.r, weights.d_in], &weights.a);
        let b = (b, [weights.d_out, weights.r], &weights.b);
        let magnitude = weights.magnitude.iter();
        let magnitude = magnitude.map(|norms| (MAGNITUDE, [1, weights.d_out], norms));
        let parts = [a, b].into_iter().chain(magnitude);
        parts.map(move |(factor, shape, values)| NewTensor {
            name: format!("{KEY_PREFIX}{module}.{factor}"),
            dtype: Dtype::F32,
            // PEFT stores a magnitude as a vector.
            shape: shape[usize::from(factor == MAGNITUDE)..].to_vec(),
            source: MatrixView {
                shape,
                values: Cow::Borrowed(values),
            },
        })
    });
    let notes = serde_json::to_string(&PeftNotes::of(adapter)).map_err(ModelError::Json)?;
    let metadata = BTreeMap::from([
        ("format".to_owned(), "pt".to_owned()),
        (METADATA_KEY.to_owned(), notes),
    ]);
    write_safetensors(path, matrices.collect(), &metadata, |tensor| {
        Ok(tensor.source.data())
    })
}

/// Copies the two files of the adapter in `from` to a new directory, byte for byte.
///
/// # Errors
/// If `to` exists and is not an empty directory, or a file cannot be copied.
pub fn copy_adapter(from: &Path, to: &Path) -> Result<(), ModelError> {
    new_directory(to, |staged| {
        for name in [CONFIG_FILE, WEIGHTS_FILE] {
            copy_file(&from.join(name), &staged.join(name))?;
        }
        Ok(())
    })
}

use std::{collections::HashMap, path::Path};

use safetensors::{Dtype, tensor::TensorView};

use super::{
    CONFIG_FILE, KEY_PREFIX, WEIGHTS_FILE, adapter::PeftAdapter, config::PeftLoraConfig,
    modules::ModuleRules, replace, weights::LoraWeights, written,
};
use crate::error::ModelError;

pub(super) fn save(adapter: &PeftAdapter, directory: &Path) -> Result<(), ModelError> {
    let config = written::config_json(&consistent_config(adapter, directory)?)?;
    let weights = weights_bytes(adapter, directory)?;
    replace::replace_directory(
        directory,
        &[(CONFIG_FILE, &config), (WEIGHTS_FILE, &weights)],
    )
}

/// The configuration to write: as it is if it gives every module's rank and `lora_alpha`, with
/// patterns that name the modules where it does not.
fn consistent_config(
    adapter: &PeftAdapter,
    directory: &Path,
) -> Result<PeftLoraConfig, ModelError> {
    if adapter.modules.is_empty() {
        return Err(ModelError::EmptyAdapter {
            path: directory.join(WEIGHTS_FILE),
        });
    }
    let mut config = adapter.config.clone();
    config.check()?;
    let rules = ModuleRules::new(&adapter.config)?;
    for (module, weights) in &adapter.modules {
        weights.check(module)?;
        if !rules.targets(module) {
            return Err(ModelError::NotTargeted {
                module: module.clone(),
            });
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
    let mut tensors = Vec::with_capacity(2 * adapter.modules.len());
    for (module, weights) in &adapter.modules {
        let LoraWeights {
            r,
            d_in,
            d_out,
            a,
            b,
            ..
        } = weights;
        let key = |factor: &str| format!("{KEY_PREFIX}{module}.{factor}.weight");
        tensors.push((key("lora_A"), vec![*r, *d_in], little_endian(a)));
        tensors.push((key("lora_B"), vec![*d_out, *r], little_endian(b)));
    }
    let views = tensors
        .iter()
        .map(|(key, shape, bytes)| Ok((key, TensorView::new(Dtype::F32, shape.clone(), bytes)?)))
        .collect::<Result<Vec<_>, _>>();
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    views
        .and_then(|views| safetensors::serialize(views, Some(metadata)))
        .map_err(|error| ModelError::Safetensors {
            path: directory.join(WEIGHTS_FILE),
            error,
        })
}

fn little_endian(values: &[f32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

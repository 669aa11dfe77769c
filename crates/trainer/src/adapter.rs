//! Conversions of adapters: fresh, PEFT, host memory.

use std::collections::BTreeMap;

use batchlora::{AdapterState, LoraPair, LoraSpec};
use burn::tensor::{Device, Tensor, TensorData};
use loraloom_config::{AdapterConfig, LoraSettings, RunConfig, TargetModule};
use loraloom_model::{
    LayerAdapter, LlamaConfig, LoraWeights, ModelError, PeftAdapter, PeftLoraConfig, Projection,
    cost::{AdapterRanks, STORED_BYTES, TRAINED_BYTES, adapter_parameters},
    to_host,
};

use crate::error::{Result, TrainerError};

/// An adapter's state at every decoder layer.
pub(crate) type ModelAdapter = Vec<LayerAdapter>;

/// An adapter with these states, by layer and projection.
pub(crate) fn by_projection<E>(
    layers: usize,
    mut state: impl FnMut(usize, Projection) -> Result<Option<AdapterState>, E>,
) -> Result<ModelAdapter, E> {
    let layer = |layer| {
        let mut adapter = LayerAdapter::default();
        for projection in Projection::ALL {
            if projection.is_at(layer, layers) {
                adapter[projection as usize] = state(layer, projection)?;
            }
        }
        Ok(adapter)
    };
    (0..layers).map(layer).collect()
}

/// A fresh adapter, a function of the adapter's configuration alone.
pub(crate) fn fresh(
    config: &AdapterConfig,
    model: &LlamaConfig,
    device: &Device,
) -> Result<ModelAdapter> {
    let lora = &config.lora;
    let spec = LoraSpec::new(lora.r, lora.lora_alpha)
        .with_use_rslora(lora.use_rslora)
        .with_lora_dropout(lora.lora_dropout);
    let targets = targets(lora, model.fused);
    by_projection(model.num_hidden_layers, |layer, projection| {
        let Some(shape) = model
            .linear(projection)
            .filter(|_| targets.contains(&projection))
        else {
            return Ok(None);
        };
        let (shape, module) = ([shape.d_in, shape.d_out], projection.number(layer));
        let init = match projection {
            Projection::EmbedTokens => AdapterState::init_embedding,
            _ => AdapterState::init,
        };
        Ok(Some(init(spec, shape, config.seed, module, device)?))
    })
}

/// An adapter from a PEFT directory, in the directory's shape.
pub(crate) fn from_peft(
    adapter: &PeftAdapter,
    lora_dropout: f64,
    model: &LlamaConfig,
    device: &Device,
) -> Result<ModelAdapter> {
    adapter.verify(model)?;
    let rslora = adapter.config.use_rslora;
    by_projection(model.num_hidden_layers, |layer, projection| {
        let weights = adapter.modules.get(&projection.module(layer));
        let state = weights.map(|weights| weights.to_state(rslora, lora_dropout, device));
        Ok(state.transpose()?)
    })
}

/// Moves an adapter with its moments to host memory, bit for bit.
pub(crate) fn on_host(adapter: ModelAdapter) -> Result<ModelAdapter, ModelError> {
    copied(adapter, false)
}

/// As [`on_host`], for a whole adapter that does not change: tensors already in host memory are not copied.
pub(crate) fn kept_on_host(adapter: ModelAdapter) -> Result<ModelAdapter, ModelError> {
    copied(adapter, true)
}

fn copied(mut adapter: ModelAdapter, shares: bool) -> Result<ModelAdapter, ModelError> {
    let host = Device::flex().without_autodiff();
    let tensor = |tensor: Tensor<2>| {
        let tensor = tensor.without_autodiff();
        if shares && tensor.device() == host {
            return Ok(tensor);
        }
        let shape = tensor.dims();
        let data = TensorData::new(to_host(tensor)?, shape);
        Ok::<_, ModelError>(Tensor::<2>::from_data(data, &host))
    };
    let pair = |pair: LoraPair| {
        Ok::<_, ModelError>(LoraPair {
            a: tensor(pair.a)?,
            b: tensor(pair.b)?,
        })
    };
    let part = |state: AdapterState| {
        Ok::<_, ModelError>(AdapterState {
            spec: state.spec,
            weights: pair(state.weights)?,
            first_moment: pair(state.first_moment)?,
            second_moment: pair(state.second_moment)?,
        })
    };
    for state in adapter.iter_mut().flatten() {
        *state = state.take().map(part).transpose()?;
    }
    Ok(adapter)
}

/// Bytes of an adapter with its moments.
pub(crate) fn bytes_of(adapter: &[LayerAdapter]) -> u64 {
    (adapter_parameters(adapter) * STORED_BYTES) as u64
}

/// Bytes of an adapter while it trains, at all layers.
pub(crate) fn adapter_bytes(adapter: &[LayerAdapter]) -> u64 {
    (adapter_parameters(adapter) * TRAINED_BYTES) as u64
}

/// As [`adapter_bytes`], for an adapter that does not exist yet.
pub(crate) fn fresh_bytes(lora: &LoraSettings, model: &LlamaConfig) -> u64 {
    let ranks = AdapterRanks::uniform(lora.r, &targets(lora, model.fused), model);
    (ranks.parameters(model, 0..model.num_hidden_layers) * TRAINED_BYTES) as u64
}

/// The projections that an adapter targets in a model with or without fused ones.
pub fn targets(lora: &LoraSettings, fused: bool) -> Vec<Projection> {
    let applied = Projection::applied(fused);
    if lora.target_modules[..] == TargetModule::ALL {
        return applied.to_vec();
    }
    let projections = lora.target_modules.iter().map(|module| projection(*module));
    projections.filter(|one| is_in_model(*one, fused)).collect()
}

/// Refuses modules that the model does not have.
///
/// # Errors
/// [`TrainerError::NoTarget`] for the first.
pub fn check_targets(config: &AdapterConfig, model: &LlamaConfig) -> Result<()> {
    let modules = &config.lora.target_modules;
    let has = Projection::applied(model.fused);
    let missing = modules
        .iter()
        .find(|module| !is_in_model(projection(**module), model.fused));
    match missing {
        Some(module) if modules[..] != TargetModule::ALL => Err(TrainerError::NoTarget {
            adapter: config.name.clone(),
            module: module.name(),
            has: has.iter().map(|projection| projection.name()).collect(),
        }),
        _ => Ok(()),
    }
}

fn is_in_model(projection: Projection, fused: bool) -> bool {
    let outside = [Projection::EmbedTokens, Projection::LmHead];
    Projection::applied(fused).contains(&projection) || outside.contains(&projection)
}

fn projection(module: TargetModule) -> Projection {
    match module {
        TargetModule::QProj => Projection::Q,
        TargetModule::KProj => Projection::K,
        TargetModule::VProj => Projection::V,
        TargetModule::OProj => Projection::O,
        TargetModule::GateProj => Projection::Gate,
        TargetModule::UpProj => Projection::Up,
        TargetModule::DownProj => Projection::Down,
        TargetModule::QkvProj => Projection::Qkv,
        TargetModule::GateUpProj => Projection::GateUp,
        TargetModule::EmbedTokens => Projection::EmbedTokens,
        TargetModule::LmHead => Projection::LmHead,
    }
}

/// True if an adapter adapts fused projections.
pub(crate) fn is_fused(states: &[LayerAdapter]) -> bool {
    let fused = [Projection::Qkv, Projection::GateUp];
    let mut layers = states.iter();
    layers.any(|layer| {
        fused
            .iter()
            .any(|projection| layer[*projection as usize].is_some())
    })
}

/// An adapter's configuration as PEFT stores it. It keeps the shape of `like`, the directory that the adapter began
/// from.
pub(crate) fn peft_config(
    run: &RunConfig,
    config: &AdapterConfig,
    like: Option<&PeftLoraConfig>,
    fused: bool,
) -> PeftLoraConfig {
    let lora = &config.lora;
    let names = targets(lora, fused)
        .into_iter()
        .map(|projection| projection.name().to_owned());
    let mut peft = like.cloned().unwrap_or_else(|| PeftLoraConfig {
        use_rslora: lora.use_rslora,
        ..PeftLoraConfig::new(lora.r, lora.lora_alpha, names.collect())
    });
    // A relative path would change its meaning if the adapter is copied elsewhere.
    let model = loraloom_config::absolute(&run.model).unwrap_or_else(|_| run.model.clone());
    peft.lora_dropout = lora.lora_dropout;
    peft.base_model_name_or_path = Some(model.display().to_string());
    peft
}

/// An adapter as PEFT stores it; `base` is the digest of its model.
pub(crate) fn to_peft(
    config: PeftLoraConfig,
    base: String,
    states: &[LayerAdapter],
) -> Result<PeftAdapter, ModelError> {
    let mut modules = BTreeMap::new();
    for (layer, states) in states.iter().enumerate() {
        for (projection, state) in Projection::ALL.into_iter().zip(states) {
            if let Some(state) = state {
                modules.insert(projection.module(layer), LoraWeights::from_state(state)?);
            }
        }
    }
    Ok(PeftAdapter {
        config,
        modules,
        base: Some(base),
    })
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;
    use loraloom_config::{LoadOptions, RunConfig};
    use loraloom_model::{LlamaConfig, Projection};
    use std::path::Path;

    use super::{adapter_bytes, fresh, fresh_bytes};

    #[test]
    fn an_adapter_takes_what_was_said_before_it_was_made() {
        let text = "model: m\ndatasets: {d: {path: p}}\nadapters:\n  \
                    - {name: a, lora: {r: 3, target_modules: [k_proj, down_proj]}}\n  \
                    - {name: b, lora: {r: 16, target_modules: all-linear}}\n";
        let loaded = RunConfig::load_yaml(text, Path::new("x.yaml"), &LoadOptions::default());
        let adapters = loaded.expect("a configuration").config.adapters;
        for model in ["assets/tiny-llama", "tests/fixtures/phi3"] {
            let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("../..")
                .join(model);
            let model = LlamaConfig::from_directory(&directory).expect("a model");
            for adapter in &adapters {
                let made = fresh(adapter, &model, &Device::flex()).expect("an adapter");
                assert_eq!(fresh_bytes(&adapter.lora, &model), adapter_bytes(&made));
                let adapted = made[0].iter().flatten().count();
                let expected = match (adapter.name.as_str(), model.fused) {
                    ("a", fused) => {
                        if fused {
                            1
                        } else {
                            2
                        }
                    }
                    (_, fused) => Projection::applied(fused).len(),
                };
                assert_eq!(adapted, expected, "{}", adapter.name);
            }
        }
    }
}

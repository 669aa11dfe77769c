//! Adapters on their way into the stages and out of them.

use std::collections::BTreeMap;

use batchlora::{AdapterState, LoraPair, LoraSpec};
use burn::tensor::{Device, Tensor, TensorData};
use loraloom_config::{AdapterConfig, LoraSettings, RunConfig, TargetModule};
use loraloom_model::{
    LayerAdapter, LlamaConfig, LoraWeights, ModelError, PeftAdapter, PeftLoraConfig, Projection,
    cost::{AdapterRanks, STORED_BYTES, TRAINED_BYTES, adapter_parameters},
    to_host,
};

use crate::TrainerError;

/// An adapter's state at every decoder layer.
pub(crate) type ModelAdapter = Vec<LayerAdapter>;

/// A fresh adapter, a function of the adapter's configuration alone.
pub(crate) fn fresh(
    config: &AdapterConfig,
    model: &LlamaConfig,
    device: &Device,
) -> Result<ModelAdapter, TrainerError> {
    let lora = &config.lora;
    let spec = LoraSpec::new(lora.r, lora.lora_alpha)
        .with_use_rslora(lora.use_rslora)
        .with_lora_dropout(lora.lora_dropout);
    let (shapes, targets) = (model.linears(), targets(lora));
    (0..model.num_hidden_layers)
        .map(|layer| {
            let mut adapter = LayerAdapter::default();
            for &projection in &targets {
                let shape = &shapes[projection as usize];
                let (shape, module) = ([shape.d_in, shape.d_out], projection.number(layer));
                let state = AdapterState::init(spec, shape, config.seed, module, device)?;
                adapter[projection as usize] = Some(state);
            }
            Ok(adapter)
        })
        .collect()
}

/// An adapter from a PEFT directory: its shape is the directory's.
pub(crate) fn from_peft(
    adapter: &PeftAdapter,
    lora_dropout: f64,
    model: &LlamaConfig,
    device: &Device,
) -> Result<ModelAdapter, TrainerError> {
    adapter.verify(model)?;
    (0..model.num_hidden_layers)
        .map(|layer| {
            let mut states = LayerAdapter::default();
            for projection in Projection::ALL {
                if let Some(weights) = adapter.modules.get(&projection.module(layer)) {
                    let rslora = adapter.config.use_rslora;
                    let state = weights.to_state(rslora, lora_dropout, device)?;
                    states[projection as usize] = Some(state);
                }
            }
            Ok(states)
        })
        .collect()
}

/// An adapter with its moments in the host's memory, bit for bit, and nowhere else.
pub(crate) fn on_host(adapter: ModelAdapter) -> Result<ModelAdapter, ModelError> {
    let host = Device::flex().without_autodiff();
    let tensor = |tensor: Tensor<2>| {
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
    let mut parked = Vec::with_capacity(adapter.len());
    for layer in adapter {
        let mut states = LayerAdapter::default();
        for (slot, state) in states.iter_mut().zip(layer) {
            *slot = state.map(part).transpose()?;
        }
        parked.push(states);
    }
    Ok(parked)
}

/// Bytes of an adapter with its moments.
pub(crate) fn bytes_of(adapter: &[LayerAdapter]) -> u64 {
    (adapter_parameters(adapter) * STORED_BYTES) as u64
}

/// Bytes of an adapter while it trains, at all layers.
pub(crate) fn adapter_bytes(adapter: &[LayerAdapter]) -> u64 {
    (adapter_parameters(adapter) * TRAINED_BYTES) as u64
}

/// As [`adapter_bytes`], for an adapter that has yet to be made.
pub(crate) fn fresh_bytes(lora: &LoraSettings, model: &LlamaConfig) -> u64 {
    let ranks = AdapterRanks::uniform(lora.r, &targets(lora), model);
    (ranks.parameters(model, 0..model.num_hidden_layers) * TRAINED_BYTES) as u64
}

/// The projections that an adapter targets.
pub fn targets(lora: &LoraSettings) -> Vec<Projection> {
    let projection = |module: &TargetModule| match module {
        TargetModule::QProj => Projection::Q,
        TargetModule::KProj => Projection::K,
        TargetModule::VProj => Projection::V,
        TargetModule::OProj => Projection::O,
        TargetModule::GateProj => Projection::Gate,
        TargetModule::UpProj => Projection::Up,
        TargetModule::DownProj => Projection::Down,
    };
    lora.target_modules.iter().map(projection).collect()
}

/// An adapter's configuration as PEFT stores it. `like` is the directory it began from, whose shape it
/// keeps.
pub(crate) fn peft_config(
    run: &RunConfig,
    config: &AdapterConfig,
    like: Option<&PeftLoraConfig>,
) -> PeftLoraConfig {
    let lora = &config.lora;
    let names = lora.target_modules.iter().map(|module| module.name());
    let names = names.map(str::to_owned).collect();
    let mut peft = like.cloned().unwrap_or_else(|| PeftLoraConfig {
        use_rslora: lora.use_rslora,
        ..PeftLoraConfig::new(lora.r, lora.lora_alpha, names)
    });
    // A relative path would mean another directory wherever the adapter is copied to.
    let model = loraloom_config::absolute(&run.model).unwrap_or_else(|_| run.model.clone());
    peft.lora_dropout = lora.lora_dropout;
    peft.base_model_name_or_path = Some(model.display().to_string());
    peft
}

/// An adapter as PEFT stores it.
pub(crate) fn to_peft(
    config: PeftLoraConfig,
    states: &[LayerAdapter],
) -> Result<PeftAdapter, ModelError> {
    let mut modules = BTreeMap::new();
    for (layer, states) in states.iter().enumerate() {
        for (projection, state) in Projection::ALL.into_iter().zip(states) {
            if let Some(state) = state {
                let weights = LoraWeights::from_state(state)?;
                modules.insert(projection.module(layer), weights);
            }
        }
    }
    Ok(PeftAdapter { config, modules })
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;
    use loraloom_config::{LoadOptions, RunConfig};
    use loraloom_model::LlamaConfig;
    use std::path::Path;

    use super::{adapter_bytes, fresh, fresh_bytes};

    #[test]
    fn an_adapter_takes_what_was_said_before_it_was_made() {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/tiny-llama");
        let model = LlamaConfig::from_directory(&model).expect("a model");
        let text = "model: m\ndatasets: {d: {path: p}}\nadapters:\n  \
                    - {name: a, lora: {r: 3, target_modules: [k_proj, down_proj]}}\n  \
                    - {name: b, lora: {r: 16, target_modules: all-linear}}\n";
        let loaded = RunConfig::load_yaml(text, Path::new("x.yaml"), &LoadOptions::default());
        for adapter in loaded.expect("a configuration").config.adapters {
            let made = fresh(&adapter, &model, &Device::flex()).expect("an adapter");
            assert_eq!(fresh_bytes(&adapter.lora, &model), adapter_bytes(&made));
            assert!(adapter_bytes(&made) > 0);
        }
    }
}

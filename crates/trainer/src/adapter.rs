//! Conversions of adapters: fresh, PEFT, host memory.

use std::{cmp::Reverse, collections::BTreeMap, iter::repeat_n};

use batchlora::{AdapterState, LoraPair, LoraSpec};
use burn::tensor::{Device, Tensor, TensorData};
use loraloom_config::{AdapterConfig, InitLoraWeights, LoraSettings, RunConfig, TargetModule};
use loraloom_data::Samples;
use loraloom_model::{
    LayerAdapter, LlamaConfig, LoraWeights, ModelError, PeftAdapter, PeftLoraConfig, Projection,
    cost::{AdapterRanks, STORED_BYTES, TRAINED_BYTES, adapter_parameters},
    to_host,
};

use crate::{
    error::{Result, TrainerError},
    start::{components, trained},
};

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

/// A fresh adapter, a function of the adapter's configuration alone. With DoRA it has no magnitudes yet: the stages that
/// it enters have the weights.
pub(crate) fn fresh(
    config: &AdapterConfig,
    model: &LlamaConfig,
    device: &Device,
) -> Result<ModelAdapter> {
    let lora = &config.lora;
    let spec = LoraSpec::new(lora.r, lora.lora_alpha)
        .with_use_rslora(lora.use_rslora)
        .with_use_dora(lora.use_dora)
        .with_lora_dropout(config.dropout());
    let targets = targets(lora, model.fused);
    by_projection(model.num_hidden_layers, |layer, projection| {
        let Some(shape) = model
            .linear(projection)
            .filter(|_| targets.contains(&projection))
        else {
            return Ok(None);
        };
        let spec = spec.with_freeze_a(freezes_a(lora, projection));
        let (shape, module) = ([shape.d_in, shape.d_out], projection.number(layer));
        let init = match (projection, lora.init_lora_weights) {
            (Projection::EmbedTokens, _) => AdapterState::init_embedding,
            (_, InitLoraWeights::Gaussian) => AdapterState::init_gaussian,
            (_, InitLoraWeights::Orthogonal) => AdapterState::init_orthogonal,
            // Those that are computed replace them.
            _ => AdapterState::init,
        };
        Ok(Some(init(spec, shape, config.seed, module, device)?))
    })
}

/// True if A of a projection is not trained. An embedding's A is, as with PEFT's `create_lorafa_optimizer`: it begins
/// as zero, and nothing would train.
fn freezes_a(lora: &LoraSettings, projection: Projection) -> bool {
    lora.lora_fa && projection != Projection::EmbedTokens
}

/// An adapter from a PEFT directory, in the directory's shape; `lora` has what trains it.
pub(crate) fn from_peft(
    adapter: &PeftAdapter,
    trained_as: Option<&AdapterConfig>,
    model: &LlamaConfig,
    device: &Device,
) -> Result<ModelAdapter> {
    adapter.verify(model)?;
    let rslora = adapter.config.use_rslora;
    let lora_dropout = trained_as.map_or(0.0, AdapterConfig::dropout);
    by_projection(model.num_hidden_layers, |layer, projection| {
        let weights = adapter.modules.get(&projection.module(layer));
        let state = weights.map(|weights| weights.to_state(rslora, lora_dropout, device));
        let mut state = state.transpose()?;
        if let Some(state) = &mut state {
            state.spec.freeze_a =
                trained_as.is_some_and(|config| freezes_a(&config.lora, projection));
        }
        Ok(state)
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
            magnitude: pair.magnitude.map(tensor).transpose()?,
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

/// As [`adapter_bytes`], for an adapter that does not exist yet; the most that it may be, if its ranks follow from its
/// rows.
pub(crate) fn fresh_bytes(lora: &LoraSettings, model: &LlamaConfig) -> u64 {
    let ranks = ranks(lora, model);
    let mut parameters = ranks.parameters(model, 0..model.num_hidden_layers);
    if lora.init_lora_weights == InitLoraWeights::Eva {
        parameters += moved_parameters(lora, model);
    }
    (parameters * TRAINED_BYTES) as u64
}

/// The most parameters that EVA adds when it moves ranks between modules: all that it can to the widest.
fn moved_parameters(lora: &LoraSettings, model: &LlamaConfig) -> usize {
    let mut widths = widths(lora, model);
    widths.sort_unstable_by_key(|[d_in, d_out]| Reverse(d_in + d_out));
    let mut left = lora.r.saturating_mul(widths.len());
    let (mut most, mut before) = (0, 0);
    for [d_in, d_out] in widths {
        let rank = components(lora).min(left);
        left -= rank;
        most += rank * (d_in + d_out);
        before += lora.r * (d_in + d_out);
    }
    most.saturating_sub(before)
}

/// Input and output width of the modules, but for an embedding.
fn widths(lora: &LoraSettings, model: &LlamaConfig) -> Vec<[usize; 2]> {
    let targets = targets(lora, model.fused);
    let modules = (0..model.num_hidden_layers).flat_map(|layer| model.modules(layer));
    let modules = modules.filter(|module| {
        targets.contains(&module.projection) && module.projection != Projection::EmbedTokens
    });
    modules.map(|module| [module.d_in, module.d_out]).collect()
}

/// Refuses start values whose components are more than a module has.
///
/// # Errors
/// [`TrainerError::Start`].
pub fn check_start(config: &AdapterConfig, model: &LlamaConfig) -> Result<()> {
    let lora = &config.lora;
    let modules = widths(lora, model).into_iter();
    let (most, narrowest) = match lora.init_lora_weights {
        InitLoraWeights::Eva => (components(lora), modules.map(|[d_in, _]| d_in).min()),
        InitLoraWeights::Pissa(_) | InitLoraWeights::Olora => {
            (lora.r, modules.map(|[d_in, d_out]| d_in.min(d_out)).min())
        }
        InitLoraWeights::Slora => return check_density(config, modules),
        _ => return Ok(()),
    };
    let problem = match narrowest {
        None => "none of `lora.target_modules` has an input to decompose".to_owned(),
        Some(width) if width < most => {
            format!("it takes {most} components, and the narrowest module has {width}")
        }
        Some(_) => return Ok(()),
    };
    Err(TrainerError::start(config, problem))
}

/// Refuses a share of elements that is less than one of a module.
fn check_density(config: &AdapterConfig, modules: impl Iterator<Item = [usize; 2]>) -> Result<()> {
    let density = config.lora.slora_config.density;
    match modules.min_by_key(|[d_in, d_out]| d_in * d_out) {
        Some([d_in, d_out]) if trained(d_in * d_out, density) == 0 => {
            let problem = format!(
                "the density {density} leaves none of the {d_in} x {d_out} elements of the smallest module"
            );
            Err(TrainerError::start(config, problem))
        }
        _ => Ok(()),
    }
}

/// The ranks of an adapter that does not exist yet.
pub fn ranks(lora: &LoraSettings, model: &LlamaConfig) -> AdapterRanks {
    let targets = targets(lora, model.fused);
    AdapterRanks::uniform(lora.ranks(), &targets, model).with_use_dora(lora.use_dora)
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
    Projection::applied(fused).contains(&projection) || Projection::ENDS.contains(&projection)
}

/// Refuses queries and keys that no row can train, because attention sees one token.
///
/// # Errors
/// [`TrainerError::OneToken`].
pub fn check_attention(config: &AdapterConfig, model: &LlamaConfig, rows: &Samples) -> Result<()> {
    let targets = targets(&config.lora, model.fused);
    let is_of_scores = |one: &&Projection| matches!(one, Projection::Q | Projection::K);
    let Some(target) = targets.iter().find(is_of_scores) else {
        return Ok(());
    };
    let longest = rows.predicting_lengths().keys().next_back();
    let cause = if longest.is_none_or(|&longest| longest < 2) {
        match config.train.max_seq_len {
            most @ ..=2 => format!(
                "`train.max_seq_len` {most} leaves nothing to predict after the second token"
            ),
            _ => "no row has a target after its second token".to_owned(),
        }
    } else if model.sliding_window.contains(&Some(1)) {
        "the model's `sliding_window` is 1".to_owned()
    } else {
        return Ok(());
    };
    Err(TrainerError::OneToken {
        adapter: config.name.clone(),
        module: target.name(),
        cause,
    })
}

/// Refuses EVA over rows of which no batch can have enough tokens: one for each component.
///
/// # Errors
/// [`TrainerError::Start`].
pub fn check_tokens(config: &AdapterConfig, rows: &Samples) -> Result<()> {
    let lora = &config.lora;
    if lora.init_lora_weights != InitLoraWeights::Eva {
        return Ok(());
    }
    let batch = config.train.batch_size;
    let samples_of_batch = batch.saturating_mul(rows.per_row());
    let (most, kind) = if lora.eva_config().use_label_mask {
        let longest = rows.target_counts().iter().rev();
        let longest = longest.flat_map(|(&targets, &samples)| repeat_n(targets, samples));
        (longest.take(samples_of_batch).sum(), " to predict")
    } else {
        (rows.longest().saturating_mul(samples_of_batch), "")
    };
    let needed = components(lora);
    if most >= needed {
        return Ok(());
    }
    let problem = format!(
        "no batch of {batch} rows has {needed} tokens{kind}, one for each component: at most it has {most}"
    );
    Err(TrainerError::start(config, problem))
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
    let mut peft = like.cloned().unwrap_or_else(|| configured(lora, fused));
    // A relative path would change its meaning if the adapter is copied elsewhere.
    let model = loraloom_config::absolute(&run.model).unwrap_or_else(|_| run.model.clone());
    peft.lora_dropout = lora.lora_dropout;
    peft.base_model_name_or_path = Some(model.display().to_string());
    peft
}

/// PEFT's configuration of a fresh adapter. Computed start values have no name there: they are those of the file.
pub(crate) fn configured(lora: &LoraSettings, fused: bool) -> PeftLoraConfig {
    let names = targets(lora, fused).into_iter();
    let names = names.map(|projection| projection.name().to_owned());
    let init = Some(lora.init_lora_weights).filter(|init| !init.is_computed());
    // With ranks that are not trained, the scale is that of those that are.
    let more = lora.ranks() as f64 / lora.r as f64;
    let more = if lora.use_rslora { more.sqrt() } else { more };
    PeftLoraConfig {
        use_rslora: lora.use_rslora,
        use_dora: lora.use_dora,
        init_lora_weights: init.and_then(InitLoraWeights::name),
        ..PeftLoraConfig::new(lora.ranks(), lora.lora_alpha * more, names.collect())
    }
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
    use burn::tensor::{Device, Tensor};
    use loraloom_config::{LoadOptions, RunConfig};
    use loraloom_data::{Sample, Samples};
    use loraloom_model::{LlamaConfig, Projection, cost::TRAINED_BYTES, to_host};
    use std::path::Path;

    use super::{adapter_bytes, check_tokens, fresh, fresh_bytes, peft_config};

    #[test]
    fn start_values_are_named_in_the_file() {
        let text = "model: m\ndatasets: {d: {path: p}}\nadapters:\n  \
                    - {name: a, lora: {r: 4, target_modules: [q_proj, embed_tokens]}}\n  \
                    - {name: b, lora: {r: 4, target_modules: [q_proj], init_lora_weights: gaussian}}\n  \
                    - {name: c, lora: {r: 4, target_modules: [q_proj], init_lora_weights: orthogonal}}\n";
        let loaded = RunConfig::load_yaml(text, Path::new("x.yaml"), &LoadOptions::default());
        let run = loaded.expect("a configuration").config;
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/tiny-llama");
        let model = LlamaConfig::from_directory(&directory).expect("a model");
        let mut starts = Vec::new();
        for (adapter, name) in run
            .adapters
            .iter()
            .zip([None, Some("gaussian"), Some("orthogonal")])
        {
            let peft = peft_config(&run, adapter, None, false);
            assert_eq!(peft.init_lora_weights.as_deref(), name);
            let made = fresh(adapter, &model, &Device::flex()).expect("an adapter");
            let state = made[0][Projection::Q as usize].as_ref().expect("a module");
            let values = |tensor: &Tensor<2>| to_host(tensor.clone()).expect("values");
            let is_zero = values(&state.weights.b).iter().all(|&value| value == 0.0);
            assert_eq!(is_zero, name != Some("orthogonal"), "{name:?}");
            starts.push(values(&state.weights.a));
        }
        assert!(starts[0] != starts[1] && starts[1] != starts[2]);
    }

    #[test]
    fn fresh_adapters_have_the_settings_of_their_training() {
        let text = "model: m\ndatasets: {d: {path: p}}\n\
                    defaults: {lora: {target_modules: [q_proj], lora_dropout: 0.25}}\nadapters:\n  \
                    - {name: a}\n  - {name: b, lora: {lora_fa: true}}\n  - {name: c, objective: {type: dpo}}\n";
        let loaded = RunConfig::load_yaml(text, Path::new("x.yaml"), &LoadOptions::default());
        let run = loaded.expect("a configuration").config;
        let model = LlamaConfig::named("micro").expect("a shape");
        let found = run.adapters.iter().map(|adapter| {
            let made = fresh(adapter, &model, &Device::flex()).expect("an adapter");
            let spec = made[0][Projection::Q as usize]
                .as_ref()
                .expect("a module")
                .spec;
            (spec.freeze_a, spec.lora_dropout > 0.0)
        });
        let expected = [(false, true), (true, true), (false, false)];
        assert_eq!(found.collect::<Vec<_>>(), expected);
    }

    /// Of three rows, with 2, 4 and 5 tokens to predict.
    #[test]
    fn eva_needs_a_token_for_each_component() {
        let mut rows = Samples::default();
        for targets in [2, 4, 5] {
            let sample = Sample {
                ids: vec![1; 8],
                is_target: (0..8).map(|at| at >= 8 - targets).collect(),
                preferred: None,
            };
            rows.push(&sample).expect("a row");
        }
        for (batch, lora, most) in [
            (2, "r: 4", None),
            (
                2,
                "r: 5",
                Some("10 tokens to predict, one for each component: at most it has 9"),
            ),
            (
                9,
                "r: 6",
                Some("12 tokens to predict, one for each component: at most it has 11"),
            ),
            (2, "r: 8, eva_config: {use_label_mask: false}", None),
            (
                2,
                "r: 9, eva_config: {use_label_mask: false}",
                Some("18 tokens, one for each component: at most it has 16"),
            ),
        ] {
            let text = format!(
                "model: m\ndatasets: {{d: {{path: p}}}}\nadapters:\n  \
                 - {{name: a, train: {{batch_size: {batch}}}, lora: {{init_lora_weights: eva, {lora}}}}}\n"
            );
            let loaded = RunConfig::load_yaml(&text, Path::new("x.yaml"), &LoadOptions::default());
            let config = loaded.expect("a configuration").config;
            let error = check_tokens(&config.adapters[0], &rows).err();
            match most {
                Some(most) => assert!(error.expect(lora).to_string().ends_with(most), "{lora}"),
                None => assert!(error.is_none(), "{lora}: {error:?}"),
            }
        }
    }

    #[test]
    fn moved_ranks_are_within_what_was_said() {
        let text = "model: m\ndatasets: {d: {path: p}}\nadapters:\n  \
                    - {name: a, lora: {r: 4, target_modules: [q_proj, down_proj, embed_tokens]}}\n  \
                    - {name: b, lora: {r: 4, target_modules: [q_proj, down_proj, embed_tokens], \
                    init_lora_weights: eva, eva_config: {rho: 1.5}}}\n";
        let loaded = RunConfig::load_yaml(text, Path::new("x.yaml"), &LoadOptions::default());
        let adapters = loaded.expect("a configuration").config.adapters;
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/tiny-llama");
        let model = LlamaConfig::from_directory(&directory).expect("a model");
        let [plain, moved] = [0, 1].map(|at| fresh_bytes(&adapters[at].lora, &model));
        // Half of the ranks of all queries can move to the wider down-projections.
        let (hidden, ffn) = (model.d_model, model.d_ffn);
        let q = hidden + model.num_attention_heads * model.head_dim;
        let per_layer = 2 * (hidden + ffn) as u64 - 2 * q as u64;
        let layers = model.num_hidden_layers as u64;
        assert_eq!(moved - plain, layers * per_layer * TRAINED_BYTES as u64);
    }

    #[test]
    fn an_adapter_takes_what_was_said_before_it_was_made() {
        let text = "model: m\ndatasets: {d: {path: p}}\nadapters:\n  \
                    - {name: a, lora: {r: 3, target_modules: [k_proj, down_proj]}}\n  \
                    - {name: b, lora: {r: 16, target_modules: all-linear}}\n  \
                    - {name: c, lora: {r: 2, target_modules: [o_proj, embed_tokens, lm_head]}}\n";
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
                    // Of the ends the first layer has the embedding alone.
                    ("c", _) => 2,
                    (_, fused) => Projection::applied(fused).len(),
                };
                if let Some(embedding) = &made[0][Projection::EmbedTokens as usize] {
                    // PEFT's start of an embedding: A is zero, B random.
                    let values = |tensor: &Tensor<2>| to_host(tensor.clone()).expect("values");
                    let is_zero = |tensor| values(tensor).iter().all(|&value| value == 0.0);
                    let weights = &embedding.weights;
                    assert!(is_zero(&weights.a) && !is_zero(&weights.b));
                }
                assert_eq!(adapted, expected, "{}", adapter.name);
            }
        }
    }
}

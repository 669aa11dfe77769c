use std::ops::Range;

use batchlora::AdapterState;

use crate::{LayerAdapter, LlamaConfig, Projection};

/// Bytes of one adapter parameter at rest: itself and AdamW's two moments, in `float32`.
pub const STORED_BYTES: usize = 3 * size_of::<f32>();

/// Bytes of the gradient of one adapter parameter.
pub const GRADIENT_BYTES: usize = size_of::<f32>();

/// Bytes of one adapter parameter while it trains: at rest, and its gradient.
pub const TRAINED_BYTES: usize = STORED_BYTES + GRADIENT_BYTES;

/// Parameters of an adapter, with the magnitudes of DoRA also before it has them.
pub fn adapter_parameters(adapter: &[LayerAdapter]) -> usize {
    let states = adapter.iter().flatten().flatten();
    let of_state = states.map(|state| {
        let ([r, d_in], [_, d_out]) = (state.weights.a.dims(), state.weights.b.dims());
        r * (d_in + d_out) + if state.spec.use_dora { d_out } else { 0 }
    });
    of_state.sum()
}

/// The ranks of an adapter by decoder layer and projection; 0 where it adapts nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdapterRanks {
    by_layer: Vec<[usize; Projection::COUNT]>,
    use_dora: bool,
}

impl AdapterRanks {
    /// Rank `r` at these projections of every layer.
    pub fn uniform(r: usize, targets: &[Projection], model: &LlamaConfig) -> Self {
        let layers = model.num_hidden_layers;
        let ranks = |layer| {
            Projection::ALL.map(|projection| {
                let adapted = targets.contains(&projection) && projection.is_at(layer, layers);
                if adapted { r } else { 0 }
            })
        };
        Self {
            by_layer: (0..layers).map(ranks).collect(),
            use_dora: false,
        }
    }

    /// The same with a magnitude at every module, or without.
    #[must_use]
    pub fn with_use_dora(self, use_dora: bool) -> Self {
        Self { use_dora, ..self }
    }

    /// The ranks of an adapter.
    pub fn of(adapter: &[LayerAdapter]) -> Self {
        let rank = |state: &Option<AdapterState>| state.as_ref().map_or(0, |state| state.spec.r);
        let ranks = |layer: &LayerAdapter| layer.each_ref().map(rank);
        Self {
            by_layer: adapter.iter().map(ranks).collect(),
            use_dora: adapter
                .iter()
                .flatten()
                .flatten()
                .any(|state| state.spec.use_dora),
        }
    }

    /// Ranks by projection at one layer.
    pub fn at(&self, layer: usize) -> [usize; Projection::COUNT] {
        self.by_layer[layer]
    }

    /// Parameters over some layers.
    pub fn parameters(&self, model: &LlamaConfig, layers: Range<usize>) -> usize {
        let parameters = |layer: usize| {
            let ranks = &self.by_layer[layer];
            let modules = model.modules(layer).into_iter();
            let of = modules
                .map(|module| ranks[module.projection as usize] * (module.d_in + module.d_out));
            of.sum::<usize>() + self.scaled_outputs(model, layer)
        };
        layers.map(parameters).sum()
    }

    /// Outputs of a layer's modules with a magnitude. The backward pass needs them as they were before.
    pub fn scaled_outputs(&self, model: &LlamaConfig, layer: usize) -> usize {
        let modules = model.modules(layer).into_iter();
        let adapted = modules
            .filter(|module| self.use_dora && self.by_layer[layer][module.projection as usize] > 0);
        adapted.map(|module| module.d_out).sum()
    }
}

#[cfg(test)]
mod tests {
    use batchlora::{AdapterState, LoraSpec};
    use burn::{
        module::Module,
        tensor::{Device, FloatDType},
    };

    use super::{
        super::{frozen_parameters, weight_bytes},
        AdapterRanks, adapter_parameters,
    };
    use crate::{Backbone, Checkpoint, LayerAdapter, LlamaConfig, Projection, QkNorm};

    fn small() -> LlamaConfig {
        let mut model = LlamaConfig::named("micro").unwrap();
        model.num_hidden_layers = 3;
        model.sliding_window.truncate(3);
        (model.vocab_size, model.d_model, model.d_ffn) = (40, 16, 24);
        (
            model.num_attention_heads,
            model.num_key_value_heads,
            model.head_dim,
        ) = (2, 1, 8);
        model
    }

    #[test]
    fn frozen_parameters_are_those_that_a_stage_loads() {
        let device = Device::flex();
        let mut model = small();
        (model.qkv_bias, model.qk_norm) = (true, QkNorm::PerHead);
        for tied in [false, true] {
            model.tie_word_embeddings = tied;
            for layers in [0..3, 0..1, 1..2, 1..3, 2..3] {
                let part =
                    Backbone::random(&model, layers.clone(), FloatDType::F32, &device).unwrap();
                // The module counts a tensor it holds in two places twice.
                let twice = if tied && layers == (0..3) { 40 * 16 } else { 0 };
                assert_eq!(
                    frozen_parameters(&model, &layers),
                    part.num_params() - twice,
                    "{layers:?}, tied {tied}"
                );
            }
        }
    }

    #[test]
    fn norms_of_one_plus_weight_are_float32_in_half_precision() {
        let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/gemma3");
        let model = LlamaConfig::from_directory(fixture.as_ref()).unwrap();
        let checkpoint = Checkpoint::open(fixture.as_ref()).unwrap();
        let (layers, device) = (0..model.num_hidden_layers, Device::flex());
        for (dtype, element_bytes) in [(FloatDType::BF16, 2), (FloatDType::F32, 4)] {
            let part = Backbone::load(&checkpoint, &model, layers.clone(), dtype, &device).unwrap();
            let expected = weight_bytes(&model, &layers, element_bytes) as u64;
            assert_eq!(part.weight_bytes(), expected, "{dtype:?}");
        }
        let parameters = frozen_parameters(&model, &layers);
        assert!(weight_bytes(&model, &layers, 2) > 2 * parameters);
    }

    #[test]
    fn an_adapter_has_two_factors_at_each_targeted_layer() {
        let model = small();
        let targets = [Projection::K, Projection::Down];
        let ranks = AdapterRanks::uniform(4, &targets, &model);
        let mut expected = [0; Projection::COUNT];
        expected[Projection::K as usize] = 4;
        expected[Projection::Down as usize] = 4;
        assert_eq!(ranks.at(2), expected);
        let of_layer = 4 * (16 + 8) + 4 * (24 + 16);
        assert_eq!(ranks.parameters(&model, 0..1), of_layer);
        assert_eq!(ranks.parameters(&model, 1..3), 2 * of_layer);

        let layer = |layer| {
            let mut adapter = LayerAdapter::default();
            for projection in targets {
                let shape = model.linear(projection).unwrap();
                let state = AdapterState::init(
                    LoraSpec::new(4, 8.0),
                    [shape.d_in, shape.d_out],
                    0,
                    projection.number(layer),
                    &Device::flex(),
                );
                adapter[projection as usize] = Some(state.unwrap());
            }
            adapter
        };
        let made: Vec<LayerAdapter> = (0..3).map(layer).collect();
        assert_eq!(adapter_parameters(&made), ranks.parameters(&model, 0..3));
    }
}

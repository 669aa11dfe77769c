use std::ops::Range;

use loraloom_config::LoraSettings;
use loraloom_model::{LlamaConfig, PeftAdapter, Projection};

/// Bytes that a parameter of an adapter takes: itself and two moments, all in `float32`.
pub(super) const ADAPTER_BYTES: usize = 3 * 4;

/// The ranks of an adapter, by decoder layer and projection; 0 is not adapted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ranks {
    by_layer: Vec<[usize; 7]>,
}

impl Ranks {
    /// Those of a fresh adapter.
    pub(super) fn fresh(lora: &LoraSettings, model: &LlamaConfig) -> Self {
        Self::uniform(lora.r, &lora.target_modules, model)
    }

    /// One rank at all modules that are named.
    pub(super) fn uniform(r: usize, modules: &[impl AsRef<str>], model: &LlamaConfig) -> Self {
        let ranks = Projection::ALL.map(|projection| {
            let targeted = modules
                .iter()
                .any(|module| module.as_ref() == projection.name());
            if targeted { r } else { 0 }
        });
        Self {
            by_layer: vec![ranks; model.num_hidden_layers],
        }
    }

    /// Those of an adapter that begins from a PEFT directory.
    pub(super) fn of_peft(adapter: &PeftAdapter, model: &LlamaConfig) -> Self {
        let rank = |layer: usize, projection: Projection| {
            let weights = adapter.modules.get(&projection.module(layer));
            weights.map_or(0, |weights| weights.r)
        };
        let of_layer = |layer| Projection::ALL.map(|projection| rank(layer, projection));
        Self {
            by_layer: (0..model.num_hidden_layers).map(of_layer).collect(),
        }
    }

    /// By projection, at one layer.
    pub(super) fn at(&self, layer: usize) -> [usize; 7] {
        self.by_layer[layer]
    }

    /// Parameters of both factors at one layer.
    pub(super) fn parameters(&self, model: &LlamaConfig, layer: usize) -> usize {
        let shapes = model.linears();
        let ranks = self.at(layer);
        ranks
            .iter()
            .zip(shapes)
            .map(|(rank, shape)| rank * (shape.d_in + shape.d_out))
            .sum()
    }

    /// Parameters of both factors over several layers.
    pub(super) fn sum(&self, model: &LlamaConfig, layers: &Range<usize>) -> usize {
        let layers = layers.clone();
        layers.map(|layer| self.parameters(model, layer)).sum()
    }
}

#[cfg(test)]
mod tests {
    use burn::{
        module::Module,
        tensor::{Device, FloatDType},
    };
    use loraloom_model::{Backbone, LlamaConfig, frozen_parameters};

    use super::Ranks;

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
    fn parameters_are_those_that_a_stage_loads() {
        let device = Device::flex();
        let mut model = small();
        (model.qkv_bias, model.qk_norm) = (true, true);
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
    fn an_adapter_has_two_factors_at_each_targeted_layer() {
        let model = small();
        let ranks = Ranks::uniform(4, &["k_proj", "down_proj"], &model);
        assert_eq!(ranks.at(2), [0, 4, 0, 0, 0, 0, 4]);
        let of_layer = 4 * (16 + 8) + 4 * (24 + 16);
        assert_eq!(ranks.parameters(&model, 0), of_layer);
        assert_eq!(ranks.sum(&model, &(1..3)), 2 * of_layer);
    }
}

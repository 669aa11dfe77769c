use super::{
    Architecture, LayerRotation, LlamaConfig, Multipliers, NormPlacement, QkNorm, RopeConfig,
    RopeScaling,
};
use crate::{checkpoint::TensorDtype, ops::Activation};

/// The numbers by which published shapes differ.
struct Shape {
    name: &'static str,
    vocab_size: usize,
    d_model: usize,
    d_ffn: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    max_position_embeddings: usize,
    tied: bool,
    theta: f64,
    /// The `factor` of Llama 3's rope scaling.
    rope_factor: Option<f64>,
}

const MICRO: Shape = Shape {
    name: "micro",
    vocab_size: 2048,
    d_model: 512,
    d_ffn: 1376,
    layers: 8,
    heads: 8,
    kv_heads: 4,
    max_position_embeddings: 4096,
    tied: false,
    theta: 10_000.0,
    rope_factor: None,
};

const SHAPES: [Shape; 6] = [
    MICRO,
    Shape {
        name: "tinyllama-1.1b",
        vocab_size: 32_000,
        d_model: 2048,
        d_ffn: 5632,
        layers: 22,
        heads: 32,
        max_position_embeddings: 2048,
        ..MICRO
    },
    Shape {
        name: "llama-3.2-3b",
        vocab_size: 128_256,
        d_model: 3072,
        d_ffn: 8192,
        layers: 28,
        heads: 24,
        kv_heads: 8,
        max_position_embeddings: 131_072,
        tied: true,
        theta: 500_000.0,
        rope_factor: Some(32.0),
    },
    Shape {
        name: "llama-2-7b",
        vocab_size: 32_000,
        d_model: 4096,
        d_ffn: 11_008,
        layers: 32,
        heads: 32,
        kv_heads: 32,
        ..MICRO
    },
    Shape {
        name: "llama-3.1-8b",
        vocab_size: 128_256,
        d_model: 4096,
        d_ffn: 14_336,
        layers: 32,
        heads: 32,
        kv_heads: 8,
        max_position_embeddings: 131_072,
        tied: false,
        theta: 500_000.0,
        rope_factor: Some(8.0),
    },
    Shape {
        name: "llama-2-13b",
        vocab_size: 32_000,
        d_model: 5120,
        d_ffn: 13_824,
        layers: 40,
        heads: 40,
        kv_heads: 40,
        ..MICRO
    },
];

impl LlamaConfig {
    /// The names for [`named`](Self::named), smallest model first.
    pub fn names() -> impl Iterator<Item = &'static str> {
        SHAPES.iter().map(|shape| shape.name)
    }

    /// A published shape, for models with random weights: the figures of the `config.json` of
    /// `TinyLlama/TinyLlama-1.1B-Chat-v1.0`, `meta-llama/Llama-3.2-3B`, `meta-llama/Llama-2-7b-hf`,
    /// `meta-llama/Llama-3.1-8B` and `meta-llama/Llama-2-13b-hf`. `micro` has no published model: 25 M
    /// parameters, for machines without a GPU. `None` for any other name.
    pub fn named(name: &str) -> Option<Self> {
        SHAPES
            .iter()
            .find(|shape| shape.name == name)
            .map(Shape::config)
    }
}

impl Shape {
    fn config(&self) -> LlamaConfig {
        let scaling = match self.rope_factor {
            Some(factor) => RopeScaling::Llama3 {
                factor,
                low_freq_factor: 1.0,
                high_freq_factor: 4.0,
                original_max_position_embeddings: 8192,
            },
            None => RopeScaling::Default,
        };
        LlamaConfig {
            architecture: Architecture::Llama,
            vocab_size: self.vocab_size,
            d_model: self.d_model,
            d_ffn: self.d_ffn,
            num_hidden_layers: self.layers,
            num_attention_heads: self.heads,
            num_key_value_heads: self.kv_heads,
            head_dim: self.d_model / self.heads,
            rms_norm_eps: 1e-5,
            max_position_embeddings: self.max_position_embeddings,
            tie_word_embeddings: self.tied,
            fused: false,
            qkv_bias: false,
            output_bias: false,
            mlp_bias: false,
            qk_norm: QkNorm::None,
            norms: NormPlacement::Before,
            multipliers: Multipliers::default(),
            norm_plus_one: false,
            activation: Activation::Silu,
            score_scale: None,
            attention_softcap: None,
            logit_softcap: None,
            rope: RopeConfig {
                rotary_dim: self.d_model / self.heads,
                theta: self.theta,
                scaling,
            },
            local_rope: None,
            rotations: vec![LayerRotation::Global; self.layers],
            sliding_window: vec![None; self.layers],
            bos_token_id: None,
            eos_token_ids: Vec::new(),
            stored: None,
            quantization: None,
            dtype: Some(TensorDtype::Bfloat16),
            dropout: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{LlamaConfig, parameter_shapes};

    #[test]
    fn shapes_have_as_many_parameters_as_published() {
        let published = [
            ("micro", 25.3e6),
            ("tinyllama-1.1b", 1.1e9),
            ("llama-3.2-3b", 3.21e9),
            ("llama-2-7b", 6.74e9),
            ("llama-3.1-8b", 8.03e9),
            ("llama-2-13b", 13.02e9),
        ];
        assert!(LlamaConfig::names().eq(published.map(|(name, _)| name)));
        for (name, expected) in published {
            let config = LlamaConfig::named(name).unwrap();
            let shapes = parameter_shapes(&config);
            let sizes = shapes
                .iter()
                .map(|(_, shape)| shape.iter().product::<usize>());
            let found = sizes.sum::<usize>() as f64;
            assert!((found / expected - 1.0).abs() < 0.01, "{name}: {found}");
        }
        assert_eq!(LlamaConfig::named("llama-4"), None);
    }
}

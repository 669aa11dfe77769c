use super::{Architecture, NormPlacement, QkNorm};
use crate::ops::Activation;

/// How an architecture differs from Llama, and the values that transformers takes for keys that
/// `config.json` does not have.
pub(super) struct Family {
    pub(super) max_position_embeddings: usize,
    /// Where transformers has one, it has priority over that among the parameters of the rotation.
    pub(super) original_max_position_embeddings: Option<usize>,
    pub(super) rms_norm_eps: f64,
    pub(super) rope_theta: f64,
    /// `None`: as many as query heads.
    pub(super) num_key_value_heads: Option<usize>,
    /// `None`: `hidden_size / num_attention_heads`.
    pub(super) head_dim: Option<usize>,
    pub(super) tie_word_embeddings: bool,
    pub(super) bos_token_id: Option<u32>,
    pub(super) eos_token_id: Option<u32>,
    /// One linear layer for queries, keys and values, and one for gate and up-projection.
    pub(super) fused: bool,
    pub(super) attention_bias: AttentionBias,
    /// `mlp_bias` is a key.
    pub(super) mlp_bias: bool,
    pub(super) qk_norm: QkNorm,
    pub(super) norms: NormPlacement,
    pub(super) windows: Windows,
    pub(super) activation: Activation,
    /// Gemma's keys: bounds, `query_pre_attn_scalar`, norms of 1 + weight, scaled embeddings.
    pub(super) gemma: Option<Gemma>,
}

/// How Gemma's generations differ.
pub(super) struct Gemma {
    pub(super) attention_softcap: Option<f64>,
    pub(super) logit_softcap: Option<f64>,
    /// Base period of layers with a window, where they have one of their own.
    pub(super) local_theta: Option<f64>,
}

/// Which of the attention's projections have a bias.
pub(super) enum AttentionBias {
    /// All four if the key `attention_bias` says so.
    Key,
    /// None.
    Never,
    /// `q_proj`, `k_proj` and `v_proj`.
    Qkv,
}

/// Which layers have a sliding window.
pub(super) enum Windows {
    /// None, whatever the file says.
    Never,
    /// All, if the file names one; without the key, this one.
    Every(Option<usize>),
    /// With `use_sliding_window` those of `layer_types`, else those from `max_window_layers` on.
    Upper,
    /// With `use_sliding_window` those of `layer_types`, else those without rotation.
    Unrotated,
    /// Those of `layer_types`, else every other one, the first included.
    Alternating,
    /// Those of `layer_types`, else all but every sixth or `sliding_window_pattern`-th.
    Pattern,
}

const LLAMA: Family = Family {
    max_position_embeddings: 2048,
    original_max_position_embeddings: None,
    rms_norm_eps: 1e-6,
    rope_theta: 10_000.0,
    num_key_value_heads: None,
    head_dim: None,
    tie_word_embeddings: false,
    bos_token_id: Some(1),
    eos_token_id: Some(2),
    fused: false,
    attention_bias: AttentionBias::Key,
    mlp_bias: true,
    qk_norm: QkNorm::None,
    norms: NormPlacement::Before,
    windows: Windows::Never,
    activation: Activation::Silu,
    gemma: None,
};

const QWEN2: Family = Family {
    max_position_embeddings: 32_768,
    num_key_value_heads: Some(32),
    bos_token_id: None,
    eos_token_id: None,
    attention_bias: AttentionBias::Qkv,
    mlp_bias: false,
    windows: Windows::Upper,
    ..LLAMA
};

const GEMMA2: Family = Family {
    max_position_embeddings: 8192,
    num_key_value_heads: Some(4),
    head_dim: Some(256),
    tie_word_embeddings: true,
    bos_token_id: Some(2),
    eos_token_id: Some(1),
    mlp_bias: false,
    norms: NormPlacement::Both,
    windows: Windows::Alternating,
    activation: Activation::GeluTanh,
    gemma: Some(Gemma {
        attention_softcap: Some(50.0),
        logit_softcap: Some(30.0),
        local_theta: None,
    }),
    ..LLAMA
};

impl Architecture {
    pub(super) fn family(self) -> Family {
        match self {
            // Granite's factors are keys of its own.
            Self::Llama | Self::Granite => LLAMA,
            Self::Mistral => Family {
                max_position_embeddings: 131_072,
                num_key_value_heads: Some(8),
                attention_bias: AttentionBias::Never,
                mlp_bias: false,
                windows: Windows::Every(Some(4096)),
                ..LLAMA
            },
            Self::Qwen2 => QWEN2,
            Self::Qwen3 => Family {
                head_dim: Some(128),
                attention_bias: AttentionBias::Key,
                qk_norm: QkNorm::PerHead,
                ..QWEN2
            },
            Self::Olmo2 => Family {
                rms_norm_eps: 1e-5,
                bos_token_id: None,
                eos_token_id: Some(50_279),
                mlp_bias: false,
                qk_norm: QkNorm::AllHeads,
                norms: NormPlacement::After,
                ..LLAMA
            },
            Self::SmolLm3 => Family {
                max_position_embeddings: 32_768,
                rope_theta: 2_000_000.0,
                num_key_value_heads: Some(4),
                tie_word_embeddings: true,
                bos_token_id: Some(128_000),
                eos_token_id: Some(128_001),
                windows: Windows::Unrotated,
                ..LLAMA
            },
            Self::Phi3 => Family {
                max_position_embeddings: 4096,
                original_max_position_embeddings: Some(4096),
                rms_norm_eps: 1e-5,
                eos_token_id: Some(32_000),
                fused: true,
                attention_bias: AttentionBias::Never,
                mlp_bias: false,
                windows: Windows::Every(None),
                ..LLAMA
            },
            Self::Gemma2 => GEMMA2,
            Self::Gemma3 => Family {
                max_position_embeddings: 131_072,
                rope_theta: 1_000_000.0,
                qk_norm: QkNorm::PerHead,
                windows: Windows::Pattern,
                gemma: Some(Gemma {
                    attention_softcap: None,
                    logit_softcap: None,
                    local_theta: Some(10_000.0),
                }),
                ..GEMMA2
            },
        }
    }
}

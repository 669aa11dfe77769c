//! `config.json` as written: the keys of transformers 4 and 5. For some keys transformers distinguishes absent
//! (`None`) from `null` (`Some(None)`).

#![expect(
    clippy::option_option,
    reason = "a key may be absent, `null` or have a value"
)]

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{SeqAccess, Visitor},
};

/// A key that is in the file, with its value or `null`.
fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

/// A key that transformers does not accept as `null`.
fn not_null<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// The keys of `config.json` that are used; others are tolerated, as in transformers.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RawConfig {
    pub(super) architectures: Option<Vec<String>>,
    pub(super) model_type: Option<String>,
    pub(super) vocab_size: Option<usize>,
    pub(super) hidden_size: Option<usize>,
    pub(super) intermediate_size: Option<usize>,
    pub(super) num_hidden_layers: Option<usize>,
    pub(super) num_attention_heads: Option<usize>,
    #[serde(deserialize_with = "present")]
    pub(super) num_key_value_heads: Option<Option<usize>>,
    pub(super) head_dim: Option<usize>,
    pub(super) hidden_act: Option<String>,
    pub(super) hidden_activation: Option<String>,
    #[serde(deserialize_with = "not_null")]
    pub(super) max_position_embeddings: Option<usize>,
    pub(super) original_max_position_embeddings: Option<usize>,
    #[serde(deserialize_with = "not_null")]
    pub(super) rms_norm_eps: Option<f64>,
    #[serde(deserialize_with = "not_null")]
    pub(super) tie_word_embeddings: Option<bool>,
    pub(super) attention_bias: Option<bool>,
    pub(super) mlp_bias: Option<bool>,
    pub(super) rope_parameters: Option<RawRope>,
    pub(super) rope_scaling: Option<RawRope>,
    #[serde(deserialize_with = "not_null")]
    pub(super) rope_theta: Option<f64>,
    pub(super) partial_rotary_factor: Option<f64>,
    pub(super) no_rope_layers: Option<Vec<u8>>,
    #[serde(deserialize_with = "not_null")]
    pub(super) no_rope_layer_interval: Option<usize>,
    #[serde(deserialize_with = "not_null")]
    pub(super) rope_local_base_freq: Option<f64>,
    #[serde(deserialize_with = "not_null")]
    pub(super) sliding_window_pattern: Option<usize>,
    #[serde(deserialize_with = "not_null")]
    pub(super) query_pre_attn_scalar: Option<f64>,
    #[serde(deserialize_with = "present")]
    pub(super) attn_logit_softcapping: Option<Option<f64>>,
    #[serde(deserialize_with = "present")]
    pub(super) final_logit_softcapping: Option<Option<f64>>,
    pub(super) use_bidirectional_attention: Option<bool>,
    #[serde(deserialize_with = "not_null")]
    pub(super) embedding_multiplier: Option<f64>,
    #[serde(deserialize_with = "not_null")]
    pub(super) attention_multiplier: Option<f64>,
    #[serde(deserialize_with = "not_null")]
    pub(super) residual_multiplier: Option<f64>,
    #[serde(deserialize_with = "not_null")]
    pub(super) logits_scaling: Option<f64>,
    #[serde(deserialize_with = "present")]
    pub(super) sliding_window: Option<Option<usize>>,
    pub(super) use_sliding_window: Option<bool>,
    #[serde(deserialize_with = "not_null")]
    pub(super) max_window_layers: Option<usize>,
    pub(super) layer_types: Option<Vec<String>>,
    #[serde(deserialize_with = "present")]
    pub(super) bos_token_id: Option<Option<u32>>,
    #[serde(deserialize_with = "present")]
    pub(super) eos_token_id: Option<Option<TokenIds>>,
    pub(super) dtype: Option<String>,
    pub(super) torch_dtype: Option<String>,
    pub(super) attention_dropout: Option<f64>,
    pub(super) resid_pdrop: Option<f64>,
    pub(super) quantization_config: Option<serde_json::Value>,
}

/// `rope_parameters` of transformers 5, `rope_scaling` of 4.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct RawRope {
    pub(super) rope_type: Option<String>,
    /// The older spelling of `rope_type`.
    #[serde(rename = "type")]
    pub(super) legacy_type: Option<String>,
    #[serde(deserialize_with = "not_null")]
    pub(super) rope_theta: Option<f64>,
    pub(super) partial_rotary_factor: Option<f64>,
    #[serde(deserialize_with = "present")]
    pub(super) factor: Option<Option<f64>>,
    pub(super) original_max_position_embeddings: Option<usize>,
    pub(super) low_freq_factor: Option<f64>,
    pub(super) high_freq_factor: Option<f64>,
    pub(super) attention_factor: Option<f64>,
    pub(super) short_factor: Option<Vec<f64>>,
    pub(super) long_factor: Option<Vec<f64>>,
    pub(super) beta_fast: Option<f64>,
    pub(super) beta_slow: Option<f64>,
    pub(super) mscale: Option<f64>,
    pub(super) mscale_all_dim: Option<f64>,
    #[serde(deserialize_with = "not_null")]
    pub(super) truncate: Option<bool>,
    /// Present where every layer type has parameters of its own.
    pub(super) full_attention: Option<Box<RawRope>>,
    /// Likewise.
    pub(super) sliding_attention: Option<Box<RawRope>>,
}

/// One token id or several.
#[derive(Debug, Clone)]
pub(super) struct TokenIds(pub(super) Vec<u32>);

impl<'de> Deserialize<'de> for TokenIds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct IdsVisitor;

        impl<'de> Visitor<'de> for IdsVisitor {
            type Value = TokenIds;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a token id or a list of token ids")
            }

            fn visit_u64<E: serde::de::Error>(self, id: u64) -> Result<TokenIds, E> {
                let id = u32::try_from(id)
                    .map_err(|_| E::invalid_value(serde::de::Unexpected::Unsigned(id), &self))?;
                Ok(TokenIds(vec![id]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut ids: A) -> Result<TokenIds, A::Error> {
                let mut all = Vec::new();
                while let Some(id) = ids.next_element()? {
                    all.push(id);
                }
                Ok(TokenIds(all))
            }
        }

        deserializer.deserialize_any(IdsVisitor)
    }
}

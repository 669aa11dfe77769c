//! Resolves the keys of `config.json` to a [`LlamaConfig`], with transformers' defaults.

use super::{
    architecture::Architecture,
    llama::LlamaConfig,
    raw::{RawConfig, TokenIds},
    rope::RopeConfig,
    sliding_window,
};
use crate::{
    checkpoint::TensorDtype,
    error::{ModelError, invalid, unsupported},
};

/// Largest size of any one dimension; products of two stay far from overflowing.
const MAX_DIMENSION: usize = i32::MAX as usize;
/// More layers than any decoder has; prevents endless lists from a damaged file.
const MAX_LAYERS: usize = 4096;

pub(super) fn resolve(text: &str) -> Result<LlamaConfig, ModelError> {
    let raw: RawConfig = serde_json::from_str(text).map_err(ModelError::Json)?;
    let architecture = Architecture::resolve(
        raw.architectures.as_deref().unwrap_or_default(),
        raw.model_type.as_deref(),
    )?;
    refuse_unsupported(&raw)?;

    let d_model = dimension("hidden_size", raw.hidden_size)?;
    let num_attention_heads = dimension("num_attention_heads", raw.num_attention_heads)?;
    let num_hidden_layers = dimension("num_hidden_layers", raw.num_hidden_layers)?;
    if num_hidden_layers > MAX_LAYERS {
        return Err(invalid(
            "num_hidden_layers",
            format!("is {num_hidden_layers}, more than {MAX_LAYERS}"),
        ));
    }
    let head_dim = head_dim(raw.head_dim, architecture, d_model, num_attention_heads)?;
    let max_positions = match architecture {
        Architecture::Llama => 2048,
        Architecture::Mistral => 131_072,
        Architecture::Qwen2 | Architecture::Qwen3 => 32_768,
    };
    let max_positions = raw.max_position_embeddings.unwrap_or(max_positions);
    let max_position_embeddings = dimension("max_position_embeddings", Some(max_positions))?;
    let rms_norm_eps = raw.rms_norm_eps.unwrap_or(1e-6);
    if !(rms_norm_eps.is_finite() && rms_norm_eps > 0.0) {
        return Err(invalid("rms_norm_eps", format!("is {rms_norm_eps}")));
    }
    let attention_bias = raw.attention_bias.unwrap_or(false);
    let (qkv_bias, output_bias) = match architecture {
        Architecture::Llama | Architecture::Qwen3 => (attention_bias, attention_bias),
        Architecture::Mistral => (false, false),
        Architecture::Qwen2 => (true, false),
    };
    let (bos, eos) = match architecture {
        Architecture::Llama | Architecture::Mistral => (Some(1), Some(TokenIds(vec![2]))),
        Architecture::Qwen2 | Architecture::Qwen3 => (None, None),
    };
    let eos = raw.eos_token_id.clone().unwrap_or(eos);

    Ok(LlamaConfig {
        architecture,
        vocab_size: dimension("vocab_size", raw.vocab_size)?,
        d_model,
        d_ffn: dimension("intermediate_size", raw.intermediate_size)?,
        num_hidden_layers,
        num_attention_heads,
        num_key_value_heads: key_value_heads(&raw, architecture, num_attention_heads)?,
        head_dim,
        rms_norm_eps,
        max_position_embeddings,
        tie_word_embeddings: raw.tie_word_embeddings.unwrap_or(false),
        qkv_bias,
        output_bias,
        mlp_bias: architecture == Architecture::Llama && raw.mlp_bias.unwrap_or(false),
        qk_norm: architecture == Architecture::Qwen3,
        rope: RopeConfig::resolve(&raw, head_dim, max_position_embeddings)?,
        sliding_window: sliding_window::resolve(&raw, architecture, num_hidden_layers)?,
        bos_token_id: raw.bos_token_id.unwrap_or(bos),
        eos_token_ids: eos.map(|ids| ids.0).unwrap_or_default(),
        dtype: dtype(&raw)?,
    })
}

fn refuse_unsupported(raw: &RawConfig) -> Result<(), ModelError> {
    if let Some(quantization) = &raw.quantization_config {
        let method = quantization.get("quant_method").unwrap_or(quantization);
        return Err(unsupported("quantization_config", method.to_string()));
    }
    match raw.hidden_act.as_deref() {
        None | Some("silu") => Ok(()),
        Some(other) => Err(unsupported("hidden_act", format!("`{other}`"))),
    }
}

fn head_dim(
    explicit: Option<usize>,
    architecture: Architecture,
    d_model: usize,
    num_attention_heads: usize,
) -> Result<usize, ModelError> {
    let explicit = explicit.or((architecture == Architecture::Qwen3).then_some(128));
    let head_dim = if let Some(head_dim) = explicit {
        dimension("head_dim", Some(head_dim))?
    } else if d_model.is_multiple_of(num_attention_heads) {
        d_model / num_attention_heads
    } else {
        return Err(invalid(
            "hidden_size",
            format!("is {d_model}, not a multiple of num_attention_heads {num_attention_heads}"),
        ));
    };
    if !head_dim.is_multiple_of(2) {
        return Err(invalid(
            "head_dim",
            format!("is {head_dim}, rotary embedding needs it even"),
        ));
    }
    Ok(head_dim)
}

fn key_value_heads(
    raw: &RawConfig,
    architecture: Architecture,
    num_attention_heads: usize,
) -> Result<usize, ModelError> {
    let default = match architecture {
        Architecture::Llama => num_attention_heads,
        Architecture::Mistral => 8,
        Architecture::Qwen2 | Architecture::Qwen3 => 32,
    };
    let heads = raw.num_key_value_heads.unwrap_or(Some(default));
    let heads = heads.unwrap_or(num_attention_heads);
    let heads = dimension("num_key_value_heads", Some(heads))?;
    if !num_attention_heads.is_multiple_of(heads) {
        return Err(invalid(
            "num_attention_heads",
            format!("is {num_attention_heads}, not a multiple of num_key_value_heads {heads}"),
        ));
    }
    Ok(heads)
}

fn dtype(raw: &RawConfig) -> Result<Option<TensorDtype>, ModelError> {
    let Some(name) = raw.dtype.as_deref().or(raw.torch_dtype.as_deref()) else {
        return Ok(None);
    };
    let dtype = TensorDtype::from_torch_name(name);
    dtype
        .map(Some)
        .ok_or_else(|| unsupported("dtype", format!("`{name}`")))
}

fn dimension(key: &'static str, value: Option<usize>) -> Result<usize, ModelError> {
    match value {
        None => Err(ModelError::MissingKey(key)),
        Some(value @ 1..=MAX_DIMENSION) => Ok(value),
        Some(value) => Err(invalid(
            key,
            format!("is {value}, expected a number from 1 to {MAX_DIMENSION}"),
        )),
    }
}

//! Resolves the keys of `config.json` to a [`LlamaConfig`], with transformers' defaults.

use super::{
    architecture::Architecture,
    family::{AttentionBias, Family},
    llama::{LayerRotation, LlamaConfig, Multipliers},
    quantization::{self, Quantization, StoredFormat},
    raw::{RawConfig, TokenIds},
    rope::RopeConfig,
    sliding_window,
};
use crate::{
    checkpoint::TensorDtype,
    error::{ModelError, invalid, unsupported},
    json,
    ops::Activation,
};

/// Largest size of any one dimension; products of two stay far from overflowing.
const MAX_DIMENSION: usize = i32::MAX as usize;
/// More layers than any decoder has; prevents endless lists from a damaged file.
const MAX_LAYERS: usize = 4096;

pub(super) fn resolve(text: &str) -> Result<LlamaConfig, ModelError> {
    let raw: RawConfig = json::read(text)?;
    let architecture = Architecture::resolve(
        raw.architectures.as_deref().unwrap_or_default(),
        raw.model_type.as_deref(),
    )?;
    let family = architecture.family();
    refuse_unsupported(&raw, &family)?;

    let d_model = dimension("hidden_size", raw.hidden_size)?;
    let num_attention_heads = dimension("num_attention_heads", raw.num_attention_heads)?;
    let num_hidden_layers = dimension("num_hidden_layers", raw.num_hidden_layers)?;
    if num_hidden_layers > MAX_LAYERS {
        return Err(invalid(
            "num_hidden_layers",
            format!("is {num_hidden_layers}, more than {MAX_LAYERS}"),
        ));
    }
    let head_dim = head_dim(
        raw.head_dim.or(family.head_dim),
        d_model,
        num_attention_heads,
    )?;
    let max_positions = (raw.max_position_embeddings).unwrap_or(family.max_position_embeddings);
    let max_position_embeddings = dimension("max_position_embeddings", Some(max_positions))?;
    let attention_bias = raw.attention_bias.unwrap_or(false);
    let (qkv_bias, output_bias) = match family.attention_bias {
        AttentionBias::Key => (attention_bias, attention_bias),
        AttentionBias::Never => (false, false),
        AttentionBias::Qkv => (true, false),
    };
    let eos = family.eos_token_id.map(|id| TokenIds(vec![id]));
    let eos = raw.eos_token_id.clone().unwrap_or(eos);
    let mut rotations = match architecture {
        Architecture::SmolLm3 => rotations(&raw, num_hidden_layers)?,
        _ => vec![LayerRotation::Global; num_hidden_layers],
    };
    let sliding_window = sliding_window::resolve(&raw, &family.windows, &rotations)?;
    let (rope, local_rope) =
        RopeConfig::resolve_both(&raw, &family, head_dim, max_position_embeddings)?;
    if local_rope.is_some() {
        for (rotation, _) in rotations
            .iter_mut()
            .zip(&sliding_window)
            .filter(|(_, w)| w.is_some())
        {
            *rotation = LayerRotation::Local;
        }
    }
    let gemma = family.gemma.as_ref();
    let (stored, quantization) = stored(&raw)?;

    Ok(LlamaConfig {
        architecture,
        vocab_size: dimension("vocab_size", raw.vocab_size)?,
        d_model,
        d_ffn: dimension("intermediate_size", raw.intermediate_size)?,
        num_hidden_layers,
        num_attention_heads,
        num_key_value_heads: key_value_heads(&raw, &family, num_attention_heads)?,
        head_dim,
        rms_norm_eps: rms_norm_eps(&raw, &family)?,
        max_position_embeddings,
        tie_word_embeddings: (raw.tie_word_embeddings).unwrap_or(family.tie_word_embeddings),
        fused: family.fused,
        qkv_bias,
        output_bias,
        mlp_bias: family.mlp_bias && raw.mlp_bias.unwrap_or(false),
        qk_norm: family.qk_norm,
        norms: family.norms,
        multipliers: match architecture {
            Architecture::Granite => granite_multipliers(&raw)?,
            Architecture::Gemma2 | Architecture::Gemma3 => Multipliers {
                embedding: Some((d_model as f64).sqrt()),
                ..Multipliers::default()
            },
            _ => Multipliers::default(),
        },
        score_scale: score_scale(&raw, architecture)?,
        norm_plus_one: gemma.is_some(),
        activation: family.activation,
        attention_softcap: softcap(
            "attn_logit_softcapping",
            raw.attn_logit_softcapping,
            gemma.map(|gemma| gemma.attention_softcap),
        )?,
        logit_softcap: softcap(
            "final_logit_softcapping",
            raw.final_logit_softcapping,
            gemma.map(|gemma| gemma.logit_softcap),
        )?,
        rope,
        local_rope,
        sliding_window,
        rotations,
        bos_token_id: raw.bos_token_id.unwrap_or(family.bos_token_id),
        eos_token_ids: eos.map(|ids| ids.0).unwrap_or_default(),
        dtype: dtype(&raw)?,
        stored,
        quantization,
        dropout: dropout(&raw, &family),
    })
}

fn rms_norm_eps(raw: &RawConfig, family: &Family) -> Result<f64, ModelError> {
    let epsilon = raw.rms_norm_eps.unwrap_or(family.rms_norm_eps);
    if epsilon.is_finite() && epsilon > 0.0 {
        return Ok(epsilon);
    }
    Err(invalid("rms_norm_eps", format!("is {epsilon}")))
}

/// How the checkpoint is stored, if it is quantised, and its layers in NF4.
fn stored(raw: &RawConfig) -> Result<(Option<StoredFormat>, Option<Quantization>), ModelError> {
    let Some(json) = &raw.quantization_config else {
        return Ok((None, None));
    };
    let (stored, quantization) = quantization::stored(json)?;
    Ok((Some(stored), quantization))
}

fn refuse_unsupported(raw: &RawConfig, family: &Family) -> Result<(), ModelError> {
    if family.gemma.is_some() && raw.use_bidirectional_attention == Some(true) {
        return Err(unsupported("use_bidirectional_attention", "true"));
    }
    // Gemma's older files have both keys, and it goes by the second.
    let (key, expected, written) = match family.activation {
        Activation::Silu => ("hidden_act", "silu", &raw.hidden_act),
        Activation::GeluTanh => (
            "hidden_activation",
            "gelu_pytorch_tanh",
            &raw.hidden_activation,
        ),
    };
    match written {
        Some(other) if other != expected => Err(unsupported(key, format!("`{other}`"))),
        _ => Ok(()),
    }
}

fn head_dim(
    explicit: Option<usize>,
    d_model: usize,
    num_attention_heads: usize,
) -> Result<usize, ModelError> {
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
    family: &Family,
    num_attention_heads: usize,
) -> Result<usize, ModelError> {
    let heads = (raw.num_key_value_heads).unwrap_or(family.num_key_value_heads);
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

/// A bound of scores or logits; `default` is `None` for models that have no such key.
#[expect(
    clippy::option_option,
    reason = "a key may be absent, `null` or have a value"
)]
fn softcap(
    key: &'static str,
    written: Option<Option<f64>>,
    default: Option<Option<f64>>,
) -> Result<Option<f32>, ModelError> {
    let cap = default.and_then(|default| written.unwrap_or(default));
    let cap = cap.map(|cap| positive(key, cap)).transpose()?;
    Ok(cap.map(|cap| cap as f32))
}

fn positive(key: &'static str, value: f64) -> Result<f64, ModelError> {
    if !(value.is_finite() && value > 0.0) {
        return Err(invalid(
            key,
            format!("is {value}, expected a positive number"),
        ));
    }
    Ok(value)
}

/// Granite and Gemma have keys for it.
fn score_scale(raw: &RawConfig, architecture: Architecture) -> Result<Option<f64>, ModelError> {
    Ok(match architecture {
        Architecture::Granite => {
            let scale = raw.attention_multiplier.unwrap_or(1.0);
            Some(positive("attention_multiplier", scale)?)
        }
        Architecture::Gemma2 | Architecture::Gemma3 => {
            let width = raw.query_pre_attn_scalar.unwrap_or(256.0);
            Some(positive("query_pre_attn_scalar", width)?.sqrt().recip())
        }
        _ => None,
    })
}

fn granite_multipliers(raw: &RawConfig) -> Result<Multipliers, ModelError> {
    let factor = |key, written: Option<f64>| {
        let factor = positive(key, written.unwrap_or(1.0))?;
        Ok::<_, ModelError>(Some(factor).filter(|factor| (factor - 1.0).abs() > 1e-12))
    };
    let logits = factor("logits_scaling", raw.logits_scaling)?;
    Ok(Multipliers {
        embedding: factor("embedding_multiplier", raw.embedding_multiplier)?,
        residual: factor("residual_multiplier", raw.residual_multiplier)?,
        logits: logits.map(f64::recip),
    })
}

/// `SmolLM3`'s layers: 1 in `no_rope_layers` is a layer that rotates.
fn rotations(raw: &RawConfig, num_hidden_layers: usize) -> Result<Vec<LayerRotation>, ModelError> {
    let rotation = |rotates: bool| {
        if rotates {
            LayerRotation::Global
        } else {
            LayerRotation::None
        }
    };
    let Some(written) = &raw.no_rope_layers else {
        let interval = raw.no_rope_layer_interval.unwrap_or(4);
        let interval = dimension("no_rope_layer_interval", Some(interval))?;
        let layers = 1..=num_hidden_layers;
        return Ok(layers
            .map(|layer| rotation(layer % interval != 0))
            .collect());
    };
    if written.len() < num_hidden_layers {
        return Err(invalid(
            "no_rope_layers",
            format!(
                "has {} entries for {num_hidden_layers} layers",
                written.len()
            ),
        ));
    }
    // As in transformers, the list may be longer.
    let rotates = written[..num_hidden_layers].iter();
    let rotates = rotates.map(|&rotates| match rotates {
        0 | 1 => Ok(rotation(rotates == 1)),
        other => Err(invalid(
            "no_rope_layers",
            format!("has {other}, expected 0 or 1"),
        )),
    });
    rotates.collect()
}

/// Phi-3 alone has a dropout besides that of attention.
fn dropout(raw: &RawConfig, family: &Family) -> Vec<(&'static str, f64)> {
    let written = [
        ("attention_dropout", raw.attention_dropout),
        ("resid_pdrop", raw.resid_pdrop.filter(|_| family.fused)),
    ];
    let written = written.into_iter();
    let written = written.filter_map(|(key, share)| Some((key, share?)));
    written.filter(|(_, share)| share.abs() > 0.0).collect()
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

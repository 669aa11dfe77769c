use super::{
    family::Family,
    raw::{RawConfig, RawRope},
};
use crate::error::{ModelError, invalid, unsupported};

/// Rotary position embedding: base period and scaling.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeConfig {
    /// Features of a head that are rotated, the first ones; even. All of them but for Phi-4.
    pub rotary_dim: usize,
    /// Base period.
    pub theta: f64,
    /// Scaling of the frequencies for contexts longer than those of pretraining.
    pub scaling: RopeScaling,
}

/// Scaling of rotary frequencies for long contexts, in transformers' words.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// Unchanged.
    Default,
    /// Every frequency divided by `factor`.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// NTK-aware: the base grows with the sequence once that is longer than in pretraining.
    Dynamic {
        /// Growth of the base.
        factor: f64,
        /// Longest sequence of pretraining, in tokens (`max_position_embeddings`).
        original_max_position_embeddings: usize,
    },
    /// Llama 3.1: low frequencies divided by `factor`, high ones kept, a ramp between.
    Llama3 {
        /// The divisor.
        factor: f64,
        /// Wavelengths above `original_max_position_embeddings / low_freq_factor` are divided.
        low_freq_factor: f64,
        /// Wavelengths below `original_max_position_embeddings / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Longest sequence of pretraining, in tokens.
        original_max_position_embeddings: usize,
    },
    /// `YaRN`: as `Llama3` with the ramp over dimensions, and cosine and sine scaled.
    Yarn {
        /// The divisor.
        factor: f64,
        /// Rotations within pretraining above which a frequency is kept.
        beta_fast: f64,
        /// Rotations within pretraining below which a frequency is divided.
        beta_slow: f64,
        /// Multiplies cosine and sine; resolved from `attention_factor`, `mscale` and `factor`.
        attention_factor: f64,
        /// Round the ends of the ramp outwards to whole dimensions.
        truncate: bool,
        /// Longest sequence of pretraining, in tokens.
        original_max_position_embeddings: usize,
    },
    /// `LongRoPE`: every frequency is divided by a factor of its own, others beyond the length of
    /// pretraining; cosine and sine are scaled.
    LongRope {
        /// Divisors up to `original_max_position_embeddings` tokens, `[rotary_dim / 2]`.
        short_factor: Vec<f64>,
        /// Divisors of longer sequences, `[rotary_dim / 2]`.
        long_factor: Vec<f64>,
        /// Multiplies cosine and sine.
        attention_factor: f64,
        /// Longest sequence of pretraining, in tokens.
        original_max_position_embeddings: usize,
    },
}

impl RopeConfig {
    /// True if the rotation of a position depends on the length of its sequence.
    pub fn follows_length(&self) -> bool {
        matches!(
            self.scaling,
            RopeScaling::Dynamic { .. } | RopeScaling::LongRope { .. }
        )
    }

    /// The length beyond which every position is rotated otherwise, so that keys in a cache no longer fit.
    /// Dynamic scaling keeps them, as transformers does.
    pub fn changes_after(&self) -> Option<usize> {
        match self.scaling {
            RopeScaling::LongRope {
                original_max_position_embeddings: original,
                ..
            } => Some(original),
            _ => None,
        }
    }

    /// From either dialect; `rope_scaling` wins over `rope_parameters`, as in transformers. The second is
    /// that of layers with a window, where they have one of their own.
    pub(super) fn resolve_both(
        raw: &RawConfig,
        family: &Family,
        head_dim: usize,
        max_position_embeddings: usize,
    ) -> Result<(Self, Option<Self>), ModelError> {
        let empty = RawRope::default();
        let written = |rope: &&RawRope| **rope != empty;
        let rope = (raw.rope_scaling.as_ref().filter(written))
            .or(raw.rope_parameters.as_ref())
            .unwrap_or(&empty);
        let resolve = |rope: &RawRope, theta: (&str, f64)| {
            Self::resolve(raw, family, rope, theta, head_dim, max_position_embeddings)
        };
        let local_theta = family.gemma.as_ref().and_then(|gemma| gemma.local_theta);
        let Some(local_theta) = local_theta else {
            if rope.full_attention.is_some() || rope.sliding_attention.is_some() {
                return Err(unsupported(
                    "rope_parameters",
                    "one set for each layer type",
                ));
            }
            let theta = raw.rope_theta.unwrap_or(family.rope_theta);
            return Ok((resolve(rope, ("rope_theta", theta))?, None));
        };
        let nested = raw.rope_parameters.as_ref().unwrap_or(&empty);
        let full = nested.full_attention.as_deref().unwrap_or(&empty);
        let local = nested.sliding_attention.as_deref().unwrap_or(&empty);
        let scaling = raw.rope_scaling.as_ref().filter(written);
        let theta = full.rope_theta.or(raw.rope_theta);
        let theta = theta.unwrap_or(family.rope_theta);
        let local_theta = raw.rope_local_base_freq.unwrap_or(local_theta);
        let global = scaling.unwrap_or(full);
        let local = resolve(local, ("rope_local_base_freq", local_theta))?;
        Ok((resolve(global, ("rope_theta", theta))?, Some(local)))
    }

    fn resolve(
        raw: &RawConfig,
        family: &Family,
        rope: &RawRope,
        default_theta: (&str, f64),
        head_dim: usize,
        max_position_embeddings: usize,
    ) -> Result<Self, ModelError> {
        let partial = rope.partial_rotary_factor.or(raw.partial_rotary_factor);
        let rotary_dim = rotary_dim(partial.unwrap_or(1.0), family, head_dim)?;
        let written = rope.rope_theta.map(|theta| ("rope_theta", theta));
        let (key, theta) = written.unwrap_or(default_theta);
        if !(theta.is_finite() && theta > 1.0) {
            return Err(invalid(
                key,
                format!("is {theta}, expected a number above 1"),
            ));
        }
        // A top-level value has priority over the one among the parameters.
        let original = raw
            .original_max_position_embeddings
            .or(family.original_max_position_embeddings)
            .or(rope.original_max_position_embeddings)
            .unwrap_or(max_position_embeddings);
        if original == 0 {
            return Err(invalid("original_max_position_embeddings", "is 0"));
        }
        let name = rope.rope_type.as_deref().or(rope.legacy_type.as_deref());
        if name.is_none() && (rope.short_factor.is_some() || rope.long_factor.is_some()) {
            return Err(ModelError::MissingKey("rope_type"));
        }
        let scaling = match name.unwrap_or("default") {
            "default" => RopeScaling::Default,
            "linear" => RopeScaling::Linear {
                factor: required("factor", rope.factor.flatten())?,
            },
            "dynamic" => dynamic(rope, head_dim, max_position_embeddings)?,
            "llama3" => llama3(rope, original)?,
            // Phi-3's older names of LongRoPE.
            "su" | "yarn" if family.fused => {
                longrope(rope, rotary_dim, original, max_position_embeddings)?
            }
            "longrope" => longrope(rope, rotary_dim, original, max_position_embeddings)?,
            "yarn" => yarn(rope, original, max_position_embeddings)?,
            other => return Err(unsupported("rope_type", format!("`{other}`"))),
        };
        Ok(Self {
            rotary_dim,
            theta,
            scaling,
        })
    }
}

/// transformers' Phi-3 reads the factor; its other models ignore it.
fn rotary_dim(factor: f64, family: &Family, head_dim: usize) -> Result<usize, ModelError> {
    let rotary_dim = (head_dim as f64 * factor) as usize;
    let is_whole = rotary_dim == head_dim;
    if !is_whole && !family.fused {
        return Err(unsupported("partial_rotary_factor", factor.to_string()));
    }
    if !(factor > 0.0 && factor <= 1.0 && rotary_dim > 0 && rotary_dim.is_multiple_of(2)) {
        return Err(invalid(
            "partial_rotary_factor",
            format!("is {factor}, which does not leave an even part of head_dim {head_dim}"),
        ));
    }
    Ok(rotary_dim)
}

fn longrope(
    rope: &RawRope,
    rotary_dim: usize,
    original: usize,
    max_position_embeddings: usize,
) -> Result<RopeScaling, ModelError> {
    let factors = |key: &'static str, factors: &Option<Vec<f64>>| {
        let factors = factors.clone().ok_or(ModelError::MissingKey(key))?;
        if factors.len() != rotary_dim / 2 {
            let (found, expected) = (factors.len(), rotary_dim / 2);
            return Err(invalid(
                key,
                format!("has {found} numbers, expected {expected}"),
            ));
        }
        match factors
            .iter()
            .find(|factor| !(factor.is_finite() && **factor > 0.0))
        {
            Some(factor) => Err(invalid(
                key,
                format!("has {factor}, expected positive numbers"),
            )),
            None => Ok(factors),
        }
    };
    let stretch = rope
        .factor
        .flatten()
        .map(|factor| required("factor", Some(factor)));
    let stretch = stretch.transpose()?;
    let stretch = stretch.unwrap_or(max_position_embeddings as f64 / original as f64);
    let attention_factor = match rope.attention_factor {
        Some(attention_factor) => required("attention_factor", Some(attention_factor))?,
        None if stretch <= 1.0 => 1.0,
        None => (1.0 + stretch.ln() / (original as f64).ln()).sqrt(),
    };
    Ok(RopeScaling::LongRope {
        short_factor: factors("short_factor", &rope.short_factor)?,
        long_factor: factors("long_factor", &rope.long_factor)?,
        attention_factor,
        original_max_position_embeddings: original,
    })
}

fn dynamic(
    rope: &RawRope,
    head_dim: usize,
    max_position_embeddings: usize,
) -> Result<RopeScaling, ModelError> {
    if head_dim <= 2 {
        // The exponent is head_dim / (head_dim - 2).
        return Err(invalid(
            "head_dim",
            format!("is {head_dim}, too small for dynamic RoPE"),
        ));
    }
    Ok(RopeScaling::Dynamic {
        factor: required("factor", rope.factor.flatten())?,
        original_max_position_embeddings: max_position_embeddings,
    })
}

fn llama3(rope: &RawRope, original: usize) -> Result<RopeScaling, ModelError> {
    let low_freq_factor = required("low_freq_factor", rope.low_freq_factor)?;
    let high_freq_factor = required("high_freq_factor", rope.high_freq_factor)?;
    if high_freq_factor <= low_freq_factor {
        return Err(invalid(
            "high_freq_factor",
            format!("is {high_freq_factor}, not above low_freq_factor {low_freq_factor}"),
        ));
    }
    Ok(RopeScaling::Llama3 {
        factor: required("factor", rope.factor.flatten())?,
        low_freq_factor,
        high_freq_factor,
        original_max_position_embeddings: original,
    })
}

fn yarn(
    rope: &RawRope,
    original: usize,
    max_position_embeddings: usize,
) -> Result<RopeScaling, ModelError> {
    // transformers reads `null` as this ratio, and a missing key as an error.
    let factor = match rope.factor {
        Some(None) => max_position_embeddings as f64 / original as f64,
        factor => required("factor", factor.flatten())?,
    };
    // Zero counts as unset in all of these.
    let set = |value: Option<f64>| value.filter(|value| value.abs() > 0.0);
    let attention_factor = match (
        rope.attention_factor,
        set(rope.mscale),
        set(rope.mscale_all_dim),
    ) {
        (Some(attention_factor), _, _) => attention_factor,
        (None, Some(mscale), Some(all_dim)) => {
            yarn_magnitude(factor, mscale) / yarn_magnitude(factor, all_dim)
        }
        _ => yarn_magnitude(factor, 1.0),
    };
    if !attention_factor.is_finite() {
        return Err(invalid(
            "attention_factor",
            format!("is {attention_factor}"),
        ));
    }
    Ok(RopeScaling::Yarn {
        factor,
        beta_fast: required("beta_fast", set(rope.beta_fast).or(Some(32.0)))?,
        beta_slow: required("beta_slow", set(rope.beta_slow).or(Some(1.0)))?,
        attention_factor,
        truncate: rope.truncate.unwrap_or(true),
        original_max_position_embeddings: original,
    })
}

/// The paper's correction of the attention temperature for a context `factor` times longer.
fn yarn_magnitude(factor: f64, mscale: f64) -> f64 {
    if factor <= 1.0 {
        1.0
    } else {
        0.1 * mscale * factor.ln() + 1.0
    }
}

fn required(key: &'static str, value: Option<f64>) -> Result<f64, ModelError> {
    let value = value.ok_or(ModelError::MissingKey(key))?;
    if !(value.is_finite() && value > 0.0) {
        return Err(invalid(
            key,
            format!("is {value}, expected a positive number"),
        ));
    }
    Ok(value)
}

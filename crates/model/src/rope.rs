//! Tables of the rotary position embedding, equal to those of transformers.

use std::f64::consts::PI;

use crate::config::{RopeConfig, RopeScaling};

/// Cosines and sines of every position, row-major `[length, rotary_dim / 2]`.
///
/// Column `i` rotates features `i` and `i + rotary_dim / 2` of a head together.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeTable {
    /// Positions.
    pub length: usize,
    /// Columns, `rotary_dim / 2`.
    pub half_dim: usize,
    /// Cosines.
    pub cos: Vec<f32>,
    /// Sines.
    pub sin: Vec<f32>,
}

impl RopeTable {
    /// The table for positions `0..length`.
    ///
    /// With [`RopeScaling::Dynamic`] and [`RopeScaling::LongRope`] the frequencies depend on `length`, which
    /// is then that of the longest sequence in the batch: tables of two lengths may not share a prefix.
    pub fn new(rope: &RopeConfig, length: usize) -> Self {
        let frequencies = inverse_frequencies(rope, length);
        let scale = match rope.scaling {
            RopeScaling::Yarn {
                attention_factor, ..
            }
            | RopeScaling::LongRope {
                attention_factor, ..
            } => attention_factor as f32,
            _ => 1.0,
        };
        let half_dim = frequencies.len();
        let mut cos = Vec::with_capacity(length * half_dim);
        let mut sin = Vec::with_capacity(length * half_dim);
        for position in 0..length {
            for frequency in &frequencies {
                // The angle is rounded to f32, as in transformers; its sine is not rounded further.
                let (s, c) = f64::from(position as f32 * frequency).sin_cos();
                cos.push(c as f32 * scale);
                sin.push(s as f32 * scale);
            }
        }
        Self {
            length,
            half_dim,
            cos,
            sin,
        }
    }
}

/// Radians per position of each pair of features, `[rotary_dim / 2]`.
fn inverse_frequencies(rope: &RopeConfig, length: usize) -> Vec<f32> {
    let (base, head_dim) = (rope.theta as f32, rope.rotary_dim);
    match rope.scaling {
        RopeScaling::Dynamic {
            factor,
            original_max_position_embeddings: original,
        } if length > original => {
            let base = stretched_base(base, head_dim, factor, length, original);
            plain(base, head_dim)
        }
        RopeScaling::Default | RopeScaling::Dynamic { .. } => plain(base, head_dim),
        RopeScaling::Linear { factor } => {
            let frequencies = plain(base, head_dim).into_iter();
            frequencies.map(|f| f / factor as f32).collect()
        }
        RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_max_position_embeddings: original,
        } => {
            let (low, high) = (low_freq_factor, high_freq_factor);
            let turned = |frequency| llama3(frequency, factor, low, high, original as f64);
            plain(base, head_dim).into_iter().map(turned).collect()
        }
        RopeScaling::Yarn {
            factor,
            beta_fast,
            beta_slow,
            truncate,
            original_max_position_embeddings: original,
            ..
        } => {
            let (theta, beta, original) = (rope.theta, (beta_fast, beta_slow), original as f64);
            yarn(theta, head_dim, factor, beta, truncate, original)
        }
        RopeScaling::LongRope {
            ref short_factor,
            ref long_factor,
            original_max_position_embeddings: original,
            ..
        } => {
            let factors = if length > original {
                long_factor
            } else {
                short_factor
            };
            let periods = periods(base, head_dim).zip(factors);
            periods
                .map(|(period, &factor)| 1.0 / (factor as f32 * period))
                .collect()
        }
    }
}

/// `base^(2i / head_dim)` for each pair.
fn periods(base: f32, head_dim: usize) -> impl Iterator<Item = f32> {
    (0..head_dim).step_by(2).map(move |i| {
        let exponent = i as f32 / head_dim as f32;
        f64::from(base).powf(f64::from(exponent)) as f32
    })
}

fn plain(base: f32, head_dim: usize) -> Vec<f32> {
    periods(base, head_dim).map(|period| 1.0 / period).collect()
}

/// The base for a sequence longer than those of pretraining, in f32 as transformers computes it.
fn stretched_base(base: f32, head_dim: usize, factor: f64, length: usize, original: usize) -> f32 {
    let exponent = head_dim as f64 / (head_dim as f64 - 2.0);
    let stretch = factor as f32 * length as f32 / original as f32 - (factor - 1.0) as f32;
    base * f64::from(stretch).powf(f64::from(exponent as f32)) as f32
}

fn llama3(frequency: f32, factor: f64, low: f64, high: f64, original: f64) -> f32 {
    let wavelength = (2.0 * PI) as f32 / frequency;
    if wavelength > (original / low) as f32 {
        frequency / factor as f32
    } else if wavelength < (original / high) as f32 {
        frequency
    } else {
        let smooth = (original as f32 / wavelength - low as f32) / (high - low) as f32;
        (1.0 - smooth) * frequency / factor as f32 + smooth * frequency
    }
}

fn yarn(
    theta: f64,
    head_dim: usize,
    factor: f64,
    (beta_fast, beta_slow): (f64, f64),
    truncate: bool,
    original: f64,
) -> Vec<f32> {
    let dimension_of = |rotations: f64| {
        head_dim as f64 * (original / (rotations * 2.0 * PI)).ln() / (2.0 * theta.ln())
    };
    let (mut low, mut high) = (dimension_of(beta_fast), dimension_of(beta_slow));
    if truncate {
        (low, high) = (low.floor(), high.ceil());
    }
    (low, high) = (low.max(0.0), high.min(head_dim as f64 - 1.0));
    let width = if (high - low).abs() > 0.0 {
        high - low
    } else {
        0.001
    };
    periods(theta as f32, head_dim)
        .enumerate()
        .map(|(i, period)| {
            let ramp = ((i as f32 - low as f32) / width as f32).clamp(0.0, 1.0);
            let kept = 1.0 - ramp;
            1.0 / (factor as f32 * period) * (1.0 - kept) + 1.0 / period * kept
        })
        .collect()
}

use multiversion::multiversion;
use rayon::prelude::*;

use super::numerics::{exp, largest, sum};

/// Losses and the gradient of `Σ weight · loss` for logits `[rows, vocabulary]`.
pub(super) fn cross_entropy(
    logits: &[f32],
    targets: &[usize],
    weights: &[f32],
) -> (Vec<f32>, Vec<f32>) {
    let mut gradient = vec![0f32; logits.len()];
    let vocabulary = logits.len() / targets.len().max(1);
    let losses = gradient
        .par_chunks_exact_mut(vocabulary.max(1))
        .zip(logits.par_chunks_exact(vocabulary.max(1)))
        .zip(targets.par_iter().zip(weights))
        .map(|((gradient, logits), (&target, &weight))| row(logits, target, weight, gradient))
        .collect();
    (losses, gradient)
}

/// Log-probabilities of a row of logits, with the bits of the losses of [`cross_entropy`](crate::cross_entropy) on the
/// CPU.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowLogProbs {
    largest: f32,
    log_total: f32,
}

impl RowLogProbs {
    /// Of logits `[vocabulary]`.
    pub(crate) fn new(logits: &[f32]) -> Self {
        let (largest, total) = total(logits);
        Self {
            largest,
            log_total: total.ln(),
        }
    }

    /// The log-probability in nats of the token with this logit.
    pub(crate) fn of(self, logit: f32) -> f32 {
        -(self.log_total - (logit - self.largest))
    }
}

/// The largest logit, and the sum of the exponentials relative to it.
#[multiversion(targets("x86_64+avx512f+avx512dq", "x86_64+avx2"))]
fn total(logits: &[f32]) -> (f32, f32) {
    let largest = largest(logits);
    (largest, sum(logits.len(), |i| exp(logits[i] - largest)))
}

#[multiversion(targets("x86_64+avx512f+avx512dq", "x86_64+avx2"))]
fn row(logits: &[f32], target: usize, weight: f32, gradient: &mut [f32]) -> f32 {
    let largest = largest(logits);
    for (gradient, &logit) in gradient.iter_mut().zip(logits) {
        *gradient = exp(logit - largest);
    }
    let total = sum(logits.len(), |i| gradient[i]);
    let factor = weight / total;
    for gradient in gradient.iter_mut() {
        *gradient *= factor;
    }
    gradient[target] -= weight;
    total.ln() - (logits[target] - largest)
}

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

//! The contrastive part of Contrastive Instruction Tuning (arXiv 2402.11138).
//!
//! It is no function of log-probabilities, so that no factor for a token gives its gradient. It is one of few hidden
//! states, and its gradient is added to theirs.

use burn::tensor::{DType, Int, Tensor, TensorData, activation::log_softmax};
use loraloom_config::Contrast;
use serde::{Deserialize, Serialize};

/// Norms are at least this, as in torch's `cosine_similarity`.
const LEAST_NORM: f64 = 1e-8;

/// Texts of a task in a micro-batch and their paraphrases, whose hidden states are compared.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Paraphrases {
    /// The loss.
    pub contrast: Contrast,
    /// The task's first target; its others follow.
    pub first: usize,
    /// Targets of each sequence, which are one or more: of a text, then of its paraphrase.
    pub targets: Vec<usize>,
    /// Factor of the gradient: the share of these texts in the step, times the task's loss scale.
    pub weight: f64,
}

impl Paraphrases {
    /// The last target of each sequence, `[sequences]`.
    pub fn ends(&self) -> Vec<usize> {
        let mut next = self.first;
        let ends = self.targets.iter().map(|count| {
            next += count;
            next - 1
        });
        ends.collect()
    }

    /// The loss, `[1]`, and its gradient for the hidden states that predict the [ends](Self::ends), `[sequences,
    /// d_model]`; both in `float32`. The losses are the cross-entropies of all targets of the batch.
    ///
    /// The weight is at most the ratio of the cross-entropy to the contrastive loss. It is a constant to the gradient.
    pub fn loss(&self, states: Tensor<2>, losses: &Tensor<1>) -> (Tensor<1>, Tensor<2>) {
        let count = self.targets.iter().sum();
        let generation = losses.clone().narrow(0, self.first, count).mean();
        let states = states.without_autodiff().cast(DType::F32);
        let states = states.autodiff().require_grad();
        let loss = contrastive(&states, self.contrast.temperature);
        let value = loss.clone().without_autodiff();
        let ratio = generation / value.clone().clamp_min(f64::from(f32::MIN_POSITIVE));
        let ratio = ratio.clamp_max(self.contrast.lambda);
        let mut gradients = loss.backward();
        let gradient = match states.grad_remove(&mut gradients) {
            Some(gradient) => gradient,
            None => states.without_autodiff().zeros_like(),
        };
        let factor = ratio.clone().mul_scalar(self.weight).unsqueeze_dim(0);
        (value * ratio, gradient * factor)
    }
}

/// How well each text is told from the others by its paraphrase, and each paraphrase by its text: the mean of both
/// cross-entropies over cosine similarities, `[1]`. States are `[2 * texts, d_model]`, each text before its paraphrase.
fn contrastive(states: &Tensor<2>, temperature: f64) -> Tensor<1> {
    let [sequences, d_model] = states.dims();
    let texts = sequences / 2;
    let norms = states.clone().powi_scalar(2).sum_dim(1).sqrt();
    let directions = states.clone() / norms.clamp_min(LEAST_NORM);
    let sides = directions.reshape([texts, 2, d_model]);
    let [originals, paraphrases] = [0, 1].map(|side| {
        let side = sides.clone().slice([0..texts, side..side + 1, 0..d_model]);
        side.reshape([texts, d_model])
    });
    // Burn's products of `float32` may round their factors on a GPU.
    let products = originals.unsqueeze_dim::<3>(1) * paraphrases.unsqueeze_dim::<3>(0);
    let similarities = products.sum_dim(2).squeeze_dim::<2>(2) / temperature;
    let own: Vec<i32> = (0..texts)
        .map(|text| i32::try_from(text).unwrap_or(i32::MAX))
        .collect();
    let device = states.device().without_autodiff();
    let own = Tensor::<2, Int>::from_data(TensorData::new(own, [texts, 1]), &device);
    let of_rows = |rows: Tensor<2>| log_softmax(rows, 1).gather(1, own.clone()).mean();
    let losses = of_rows(similarities.clone()) + of_rows(similarities.transpose());
    losses.div_scalar(-2.0)
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, Tensor, TensorData};
    use loraloom_config::Contrast;

    use super::Paraphrases;

    const TEXTS: usize = 3;
    const WIDTH: usize = 4;
    const TEMPERATURE: f64 = 0.7;

    /// The formula, number by number.
    fn slow(states: &[f64]) -> f64 {
        let row = |index: usize| &states[index * WIDTH..][..WIDTH];
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let similarity = |text: usize, paraphrase: usize| {
            let (a, b) = (row(2 * text), row(2 * paraphrase + 1));
            dot(a, b) / (dot(a, a) * dot(b, b)).sqrt() / TEMPERATURE
        };
        let mut sum = 0.0;
        for own in 0..TEXTS {
            let all = |of: &dyn Fn(usize) -> f64| (0..TEXTS).map(|i| of(i).exp()).sum::<f64>().ln();
            sum += all(&|other| similarity(own, other)) - similarity(own, own);
            sum += all(&|other| similarity(other, own)) - similarity(own, own);
        }
        sum / (2 * TEXTS) as f64
    }

    fn states() -> Vec<f64> {
        let value = |i: usize| f64::from((((i * 37 + 11) % 23) as f32 - 11.0) / 8.0);
        (0..2 * TEXTS * WIDTH).map(value).collect()
    }

    fn found(states: &[f64], lambda: f64, weight: f64) -> (f64, Vec<f64>) {
        let paraphrases = Paraphrases {
            contrast: Contrast {
                lambda,
                temperature: TEMPERATURE,
            },
            first: 1,
            targets: vec![1, 2, 1, 1, 1, 2],
            weight,
        };
        assert_eq!(paraphrases.ends(), [1, 3, 4, 5, 6, 8]);
        let states: Vec<f32> = states.iter().map(|&value| value as f32).collect();
        let states = TensorData::new(states, [2 * TEXTS, WIDTH]);
        let device = Device::flex();
        // The first is another task's.
        let losses = [9.0_f32, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1];
        let losses = Tensor::<1>::from_floats(losses, &device);
        let (loss, gradient) = paraphrases.loss(Tensor::from_data(states, &device), &losses);
        let gradient = gradient.into_data().iter::<f64>().collect();
        (loss.into_data().iter::<f64>().sum(), gradient)
    }

    #[test]
    fn its_gradient_is_that_of_finite_differences() {
        let (states, lambda, weight) = (states(), 0.01, 3.0);
        let (loss, gradient) = found(&states, lambda, weight);
        assert!((loss - lambda * slow(&states)).abs() < 1e-7, "{loss}");
        for (index, &gradient) in gradient.iter().enumerate() {
            let at = |step: f64| {
                let mut moved = states.clone();
                moved[index] += step;
                slow(&moved)
            };
            let expected = (at(1e-5) - at(-1e-5)) / 2e-5 * lambda * weight;
            assert!(
                (gradient - expected).abs() < 1e-7,
                "{index}: {gradient}, {expected}"
            );
        }
    }

    #[test]
    fn its_weight_is_bounded_by_the_cross_entropy() {
        let states = states();
        // The cross-entropies of the task are all 0.1, and so is the loss, whatever the states.
        let (loss, gradient) = found(&states, 100.0, 1.0);
        assert!((loss - 0.1).abs() < 1e-7, "{loss}");
        let (small, of_small) = found(&states, 0.01, 1.0);
        let ratio = 0.1 / (small / 0.01) / 0.01;
        for (gradient, of_small) in gradient.iter().zip(of_small) {
            assert!((gradient - of_small * ratio).abs() < 1e-6);
        }
    }
}

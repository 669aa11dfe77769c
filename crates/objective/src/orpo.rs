//! Odds Ratio Preference Optimization, as TRL's `ORPOTrainer` computes it.

use burn::tensor::Tensor;
use loraloom_config::Orpo;

use crate::{LogProbs, Loss, log_probs::logistic};

impl Loss for Orpo {
    /// Cross-entropy of prompts and chosen completions, and the logarithm of the odds ratio of mean
    /// log-probabilities (arXiv 2403.07691, equations 6 and 7).
    fn losses(&self, completions: &LogProbs) -> Tensor<1> {
        let means = completions.means();
        let odds = means.clone() - log_one_minus_exp(means);
        let [chosen, rejected] = completions.pairs(&odds);
        let ratio = logistic(chosen - rejected, 0.0).mul_scalar(self.beta);
        completions.cross_entropy() + ratio
    }

    fn rewards_means(&self) -> bool {
        true
    }
}

/// `log(1 - eˣ)` for negative numbers. `1 - eˣ` is `tanh(-x/2) (1 + eˣ)`, which is exact near 0.
fn log_one_minus_exp(x: Tensor<1>) -> Tensor<1> {
    x.clone().div_scalar(-2.0).tanh().log() + x.exp().log1p()
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, Tensor};

    use super::log_one_minus_exp;

    #[test]
    fn logarithms_of_small_and_large_odds_are_exact() {
        let values = [-1e-5_f32, -1e-3, -0.1, -0.69, -0.7, -2.0, -15.0];
        let found = log_one_minus_exp(Tensor::from_floats(values, &Device::flex()));
        for (x, found) in values.iter().zip(found.into_data().iter::<f32>()) {
            let exact = (-f64::from(*x).exp_m1()).ln();
            let error = (f64::from(found) - exact).abs();
            assert!(
                error < 1e-6 * exact.abs().max(0.1),
                "{x}: {found}, exact {exact}"
            );
        }
    }
}

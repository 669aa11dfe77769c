//! Direct Preference Optimization and its variants, as TRL's `DPOTrainer` computes them.

use burn::tensor::{
    Tensor,
    activation::{relu, sigmoid},
};
use loraloom_config::{Dpo, LossType};

use crate::{
    LogProbs, Loss,
    log_probs::{logistic, squared_margin},
};

impl Loss for Dpo {
    fn losses(&self, completions: &LogProbs) -> Tensor<1> {
        let each = self.losses.iter().map(|&(kind, weight)| {
            let losses = variant(kind, self.beta, self.label_smoothing, completions);
            losses.mul_scalar(weight)
        });
        let sum = each.reduce(|sum, losses| sum + losses);
        sum.unwrap_or_else(|| completions.cross_entropy().zeros_like())
    }
}

fn variant(kind: LossType, beta: f64, smoothing: f64, completions: &LogProbs) -> Tensor<1> {
    let ratios = completions.ratios();
    let [chosen, rejected] = completions.pairs(&ratios);
    let margin = (chosen.clone() - rejected.clone()).mul_scalar(beta);
    match kind {
        LossType::Robust => {
            // Label smoothing with a negative weight of the wrong label, without bias.
            let right = logistic(margin.clone(), 0.0).mul_scalar(1.0 - smoothing);
            let wrong = logistic(margin.neg(), 0.0).mul_scalar(smoothing);
            (right - wrong).div_scalar(1.0 - 2.0 * smoothing)
        }
        LossType::Hinge => relu(margin.neg().add_scalar(1.0)),
        LossType::Ipo => {
            let [chosen, rejected] = completions.pairs(&completions.mean_of(ratios));
            squared_margin(chosen - rejected, beta)
        }
        LossType::ApoZero => {
            let chosen = sigmoid(chosen.mul_scalar(-beta));
            chosen + sigmoid(rejected.mul_scalar(beta))
        }
        LossType::ApoDown => sigmoid(chosen.mul_scalar(beta)) + sigmoid(margin.neg()),
        LossType::Sft => completions.cross_entropy(),
        LossType::Sigmoid | LossType::Kto | LossType::ApoZeroUnpaired => logistic(margin, 0.0),
    }
}

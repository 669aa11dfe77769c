//! Kahneman-Tversky Optimization, as TRL's `KTOTrainer` computes it.

use burn::tensor::{Tensor, TensorData, activation::sigmoid};
use loraloom_config::{Kto, LossType};

use crate::{CompletionRole, LogProbs, Loss};

impl Loss for Kto {
    /// `w (1 - σ(±β (ratio - KL)))` (arXiv 2402.01306, equation 8), with the estimate of KL from completions of other
    /// prompts as a constant. `apo_zero_unpaired` is without KL.
    fn losses(&self, completions: &LogProbs) -> Tensor<1> {
        let ratios = completions.ratios();
        let roles = completions.roles();
        let rows = rated(roles);
        let per_row = |chosen: f64, rejected: f64| {
            let of = |role: &CompletionRole| match role {
                CompletionRole::Chosen => chosen as f32,
                _ => rejected as f32,
            };
            let values: Vec<f32> = roles[..rows].iter().map(of).collect();
            let device = completions.device().without_autodiff();
            Tensor::<1>::from_data(TensorData::new(values, [rows]), &device)
        };
        let mut above = ratios.narrow(0, 0, rows);
        if self.loss == LossType::Kto {
            above = above - divergence(completions);
        }
        let losses = sigmoid(above * per_row(-self.beta, self.beta));
        losses * per_row(self.desirable_weight, self.undesirable_weight)
    }
}

/// The mean ratio of completions of other prompts, at least 0, `[1]`; a constant to the gradient.
pub(crate) fn divergence(completions: &LogProbs) -> Tensor<1> {
    let ratios = completions.ratios().without_autodiff();
    let roles = completions.roles();
    let rows = rated(roles);
    if rows == roles.len() {
        return Tensor::zeros([1], &ratios.device());
    }
    let unrelated = ratios.narrow(0, rows, roles.len() - rows);
    unrelated.mean().clamp_min(0.0)
}

/// Number of completions with a label, which come first.
fn rated(roles: &[CompletionRole]) -> usize {
    let rated = roles
        .iter()
        .filter(|&&role| role != CompletionRole::Unrelated);
    rated.count()
}

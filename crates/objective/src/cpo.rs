//! Contrastive Preference Optimization and SimPO, as TRL's `CPOTrainer` computes them.

use burn::tensor::{Tensor, activation::relu};
use loraloom_config::{Cpo, LossType};

use crate::{
    LogProbs, Loss,
    log_probs::{logistic, squared_margin},
};

impl Loss for Cpo {
    fn losses(&self, completions: &LogProbs) -> Tensor<1> {
        let values = if self.rewards_means() {
            completions.means()
        } else {
            completions.sums()
        };
        let [chosen, rejected] = completions.pairs(&values);
        let difference = chosen - rejected;
        let losses = match self.loss {
            Some(LossType::Hinge) => relu(difference.mul_scalar(-self.beta).add_scalar(1.0)),
            Some(LossType::Ipo) => squared_margin(difference, self.beta),
            Some(_) => logistic(difference.mul_scalar(self.beta), self.label_smoothing),
            None => {
                let margin = difference.sub_scalar(self.simpo_gamma / self.beta);
                logistic(margin.mul_scalar(self.beta), self.label_smoothing)
            }
        };
        if self.cpo_alpha == 0.0 {
            return losses;
        }
        losses + completions.cross_entropy().mul_scalar(self.cpo_alpha)
    }

    fn rewards_means(&self) -> bool {
        matches!(self.loss, None | Some(LossType::Ipo))
    }
}

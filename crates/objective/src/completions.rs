use burn::tensor::{Device, Tensor};
use loraloom_config::PreferenceLoss;
use serde::{Deserialize, Serialize};

use crate::{LogProbs, Loss, Sums};

/// Role of a completion in its loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CompletionRole {
    /// Preferred, or desirable.
    Chosen,
    /// Its counterpart.
    Rejected,
    /// A completion of another prompt, with which KTO estimates the distance from the reference.
    Unrelated,
}

/// A sequence of a task, by its targets.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Completion {
    /// Its role in the loss.
    pub role: CompletionRole,
    /// Targets of the prompt, which come first.
    pub prompt_targets: usize,
    /// Targets of the completion.
    pub targets: usize,
    /// Its log-probability under the reference model; 0 for losses without one.
    pub reference: f32,
}

/// The completions of a task in a micro-batch, and the loss over them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskCompletions {
    /// The loss.
    pub preference: PreferenceLoss,
    /// The sequences in the order of their targets. Of a pair the chosen one is first, and the rejected one follows;
    /// unrelated ones come last.
    pub completions: Vec<Completion>,
    /// Rows of the task's whole step: its loss is their mean.
    pub step_rows: usize,
    /// Targets of chosen sequences in the whole step, of which cross-entropies are the mean.
    pub step_chosen_targets: usize,
}

impl TaskCompletions {
    /// Number of targets.
    pub fn num_targets(&self) -> usize {
        let targets = |one: &Completion| one.prompt_targets + one.targets;
        self.completions.iter().map(targets).sum()
    }

    /// Number of rows: pairs, or completions with a label.
    pub fn rows(&self) -> usize {
        let related = self.completions.iter();
        let related = related
            .filter(|one| one.role != CompletionRole::Unrelated)
            .count();
        related / self.per_row()
    }

    /// Completions of a row.
    fn per_row(&self) -> usize {
        match self.preference {
            PreferenceLoss::Kto(_) => 1,
            _ => 2,
        }
    }

    /// The factor of every target's gradient in that of the step's loss, `-∂L/∂log p`, from the targets'
    /// cross-entropies; both `[targets]`.
    pub fn factors(&self, losses: Tensor<1>) -> Tensor<1> {
        let tokens = losses.without_autodiff().neg().autodiff().require_grad();
        let loss = self.losses(&LogProbs::new(self, tokens.clone()));
        let mut gradients = loss.sum().div_scalar(self.step_rows as f64).backward();
        match tokens.grad_remove(&mut gradients) {
            Some(gradient) => gradient.neg(),
            None => tokens.without_autodiff().zeros_like(),
        }
    }

    /// Loss and rewards of the micro-batch, from the targets' cross-entropies.
    pub fn sums(&self, losses: &[f32]) -> Sums {
        let tokens = losses.iter().map(|loss| -loss).collect::<Vec<_>>();
        let tokens = Tensor::from_floats(&tokens[..], &Device::flex());
        Sums::new(self, &LogProbs::new(self, tokens))
    }

    /// The loss of every row.
    pub(crate) fn losses(&self, completions: &LogProbs) -> Tensor<1> {
        self.loss().losses(completions)
    }

    fn loss(&self) -> &dyn Loss {
        match &self.preference {
            PreferenceLoss::Dpo(loss) => loss,
            PreferenceLoss::Kto(loss) => loss,
            PreferenceLoss::Orpo(loss) => loss,
            PreferenceLoss::Cpo(loss) => loss,
        }
    }

    pub(crate) fn beta(&self) -> f64 {
        match &self.preference {
            PreferenceLoss::Dpo(loss) => loss.beta,
            PreferenceLoss::Kto(loss) => loss.beta,
            PreferenceLoss::Orpo(loss) => loss.beta,
            PreferenceLoss::Cpo(loss) => loss.beta,
        }
    }

    /// True if rewards are of mean log-probabilities.
    pub(crate) fn rewards_means(&self) -> bool {
        self.loss().rewards_means()
    }
}

use burn::tensor::{DType, Tensor};
use loraloom_objective::{Paraphrases, TaskCompletions};
use serde::{Deserialize, Serialize};

use crate::{head::joined, smoothing::SmoothedTargets};

/// The tokens to predict, and the rows of a batch that predict them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Targets {
    /// Row of the batch that predicts the token. A row predicts one token at most.
    pub rows: Vec<usize>,
    /// The token to be predicted.
    pub ids: Vec<u32>,
    /// Factor of the token's loss in the gradient: its task's loss scale over the target tokens of the
    /// task's whole step. 1 where a preference gives the factor.
    pub weights: Vec<f32>,
    /// Targets with label smoothing, in order.
    pub smoothed: Vec<SmoothedTargets>,
    /// Targets whose factors a preference gives, in order.
    pub preferences: Vec<PreferenceTargets>,
    /// Texts whose hidden states are compared with those of their paraphrases, by task.
    pub paraphrases: Vec<Paraphrases>,
}

/// Targets of one task whose factors its loss computes from their log-probabilities.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PreferenceTargets {
    /// The first of them; the others follow.
    pub first: usize,
    /// The task's loss scale.
    pub loss_scale: f32,
    /// The completions that they are of.
    pub completions: TaskCompletions,
}

impl Targets {
    /// Factors of the gradients of targets that are not in `weights`, `[targets]`, from their losses.
    pub(crate) fn factors(&self, losses: &Tensor<1>) -> Tensor<1> {
        let ones = |count: usize| Tensor::<1>::ones([count], (&losses.device(), DType::F32));
        let (mut parts, mut end) = (Vec::new(), 0);
        for preference in &self.preferences {
            let (first, count) = (preference.first, preference.completions.num_targets());
            let of_task = losses.clone().narrow(0, first, count);
            let factors = preference.completions.factors(of_task);
            parts.extend((first > end).then(|| ones(first - end)));
            parts.push(factors.mul_scalar(preference.loss_scale));
            end = first + count;
        }
        let all = self.rows.len();
        parts.extend((all > end).then(|| ones(all - end)));
        joined(parts, 0)
    }
}

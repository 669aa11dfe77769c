use std::ops::AddAssign;

use burn::tensor::Tensor;
use loraloom_config::PreferenceLoss;

use crate::{CompletionRole, LogProbs, TaskCompletions, kto};

/// Sums over rows: the loss, and what TRL reports of completions.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Sums {
    /// Number of rows.
    pub rows: usize,
    /// Sum of their losses.
    pub loss: f64,
    /// Number of chosen and of rejected completions.
    pub completions: [usize; 2],
    /// Sums of their log-probabilities: mean log-probabilities of tokens, if the loss is of these.
    pub log_probs: [f64; 2],
    /// Sums of their rewards: `β` times the log-probabilities, over those of the reference if there is one.
    pub rewards: [f64; 2],
    /// Number of pairs whose chosen completion has the larger reward.
    pub accurate: usize,
    /// Sum over rows of the estimated KL divergence, of KTO.
    pub divergence: Option<f64>,
}

impl Sums {
    pub(crate) fn new(task: &TaskCompletions, completions: &LogProbs) -> Self {
        let values = if task.rewards_means() {
            completions.means()
        } else {
            completions.sums()
        };
        let rewards = match task.preference {
            PreferenceLoss::Dpo(_) | PreferenceLoss::Kto(_) => completions.ratios(),
            _ => values.clone(),
        };
        let (values, rewards) = (numbers(values), numbers(rewards.mul_scalar(task.beta())));
        let mut sums = Self {
            rows: task.rows(),
            loss: numbers(task.losses(completions)).iter().sum(),
            ..Self::default()
        };
        for (index, role) in completions.roles().iter().enumerate() {
            let side = match role {
                CompletionRole::Chosen => 0,
                CompletionRole::Rejected => 1,
                CompletionRole::Unrelated => continue,
            };
            sums.completions[side] += 1;
            sums.log_probs[side] += values[index];
            sums.rewards[side] += rewards[index];
        }
        if let PreferenceLoss::Kto(_) = task.preference {
            let divergence: f64 = numbers(kto::divergence(completions)).iter().sum();
            sums.divergence = Some(divergence * sums.rows as f64);
        } else {
            let pairs = rewards.chunks_exact(2);
            sums.accurate = pairs.filter(|pair| pair[0] > pair[1]).count();
        }
        sums
    }
}

impl AddAssign for Sums {
    fn add_assign(&mut self, other: Self) {
        self.rows += other.rows;
        self.loss += other.loss;
        self.accurate += other.accurate;
        self.divergence = match (self.divergence, other.divergence) {
            (Some(one), Some(other)) => Some(one + other),
            (one, other) => one.or(other),
        };
        for side in 0..2 {
            self.completions[side] += other.completions[side];
            self.log_probs[side] += other.log_probs[side];
            self.rewards[side] += other.rewards[side];
        }
    }
}

fn numbers(values: Tensor<1>) -> Vec<f64> {
    values.into_data().iter::<f64>().collect()
}

#[cfg(test)]
mod tests {
    use loraloom_config::{Dpo, LossType, PreferenceLoss};

    use crate::{Completion, CompletionRole, TaskCompletions};

    /// As in TRL, of an adapter that is its reference still.
    #[test]
    fn equal_rewards_are_not_accurate() {
        let completion = |role| Completion {
            role,
            prompt_targets: 0,
            targets: 1,
            reference: -0.5,
        };
        let completions = [CompletionRole::Chosen, CompletionRole::Rejected].map(completion);
        let task = TaskCompletions {
            preference: PreferenceLoss::Dpo(Dpo {
                losses: vec![(LossType::Sigmoid, 1.0)],
                beta: 0.1,
                label_smoothing: 0.0,
            }),
            completions: completions.to_vec(),
            step_rows: 1,
            step_chosen_targets: 1,
        };
        assert_eq!(task.sums(&[0.5, 0.5]).accurate, 0);
        assert_eq!(task.sums(&[0.4, 0.5]).accurate, 1);
    }
}

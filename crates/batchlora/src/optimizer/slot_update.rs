use serde::{Deserialize, Serialize};

/// One slot's learning rates for one update.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LearningRates {
    /// Of A.
    pub a: f64,
    /// Of B and of DoRA's magnitude. With LoRA+ it is a multiple of A's.
    pub b: f64,
    /// Of A and B of an embedding.
    pub embedding: f64,
}

impl From<f64> for LearningRates {
    /// One learning rate for all.
    fn from(rate: f64) -> Self {
        Self {
            a: rate,
            b: rate,
            embedding: rate,
        }
    }
}

/// One slot's hyper-parameters for one update.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SlotUpdate {
    /// Learning rates of this step.
    pub learning_rates: LearningRates,
    /// Decay rate of the first moment.
    pub beta1: f64,
    /// Decay rate of the second moment.
    pub beta2: f64,
    /// Added outside the square root.
    pub epsilon: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// Largest global norm of the gradient, which is scaled down to it; 0 never scales.
    pub max_grad_norm: f64,
    /// Number of this update, counted from 1, for bias correction.
    pub step: u64,
}

/// Columns of a step's table, one row per slot. Rows of slots without an update are zero.
pub(crate) mod column {
    /// 1 for a slot that has an update.
    pub(crate) const ACTIVE: usize = 0;
    pub(crate) const DECAY: usize = 1;
    pub(crate) const ONE_MINUS_BETA1: usize = 2;
    pub(crate) const BETA2: usize = 3;
    pub(crate) const ONE_MINUS_BETA2: usize = 4;
    pub(crate) const EPSILON: usize = 5;
    pub(crate) const STEP_SIZE: usize = 6;
    pub(crate) const ROOT_BIAS_CORRECTION2: usize = 7;
    pub(crate) const MAX_GRAD_NORM: usize = 8;
    pub(crate) const COUNT: usize = 9;
}

/// Added to a norm before the limit is divided by it, as torch's `clip_grad_norm_` does.
pub(crate) const CLIP_EPSILON: f32 = 1e-6;

/// Above the root of every finite `float32`, and finite after division by [`CLIP_EPSILON`]:
/// shaders may assume that there are no infinities.
const NO_LIMIT: f64 = 1e25;

impl SlotUpdate {
    fn columns(&self, learning_rate: f64) -> [f64; column::COUNT] {
        // In double precision: 1 - beta2 loses four digits in single precision.
        let correction = |beta: f64| 1.0 - beta.powf(self.step as f64);
        let mut row = [0.0; column::COUNT];
        row[column::ACTIVE] = 1.0;
        row[column::DECAY] = 1.0 - learning_rate * self.weight_decay;
        row[column::ONE_MINUS_BETA1] = 1.0 - self.beta1;
        row[column::BETA2] = self.beta2;
        row[column::ONE_MINUS_BETA2] = 1.0 - self.beta2;
        row[column::EPSILON] = self.epsilon;
        row[column::STEP_SIZE] = learning_rate / correction(self.beta1);
        row[column::ROOT_BIAS_CORRECTION2] = correction(self.beta2).sqrt();
        row[column::MAX_GRAD_NORM] = if self.max_grad_norm > 0.0 {
            self.max_grad_norm.min(NO_LIMIT)
        } else {
            NO_LIMIT
        };
        row
    }
}

/// `[slots, column::COUNT]`, row after row, with the learning rate that `rate` chooses.
pub(super) fn table(
    updates: &[Option<SlotUpdate>],
    rate: impl Fn(&LearningRates) -> f64,
) -> Vec<f32> {
    let columns = |update: &SlotUpdate| update.columns(rate(&update.learning_rates));
    let rows = updates.iter();
    let rows = rows.flat_map(|update| update.as_ref().map_or([0.0; column::COUNT], columns));
    rows.map(|value| value as f32).collect()
}

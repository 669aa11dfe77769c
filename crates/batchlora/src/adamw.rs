//! `AdamW` for all adapters at once: torch's arithmetic, every hyper-parameter a vector over slots.

use burn::tensor::{Bool, Device, IndexingUpdateOp, Int, Tensor, TensorData};

use crate::{AdapterBank, LoraPair, bank::Packed};

/// One slot's hyper-parameters for one update.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SlotUpdate {
    /// Learning rate of this step.
    pub learning_rate: f64,
    /// Decay rate of the first moment.
    pub beta1: f64,
    /// Decay rate of the second moment.
    pub beta2: f64,
    /// Added outside the square root.
    pub epsilon: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// Global norm the gradient is scaled down to; 0 never scales.
    pub max_grad_norm: f64,
    /// Number of this update, counted from 1, for bias correction.
    pub step: u64,
}

/// Sum of squares of each slot's gradient in one bank, `[slots]`. The sums of all banks, on all
/// devices, added up and rooted, are the global norms that [`AdamWStep::new`] takes.
pub fn squared_gradient_norms(bank: &AdapterBank, gradient: &LoraPair) -> Tensor<1> {
    let device = gradient.a.device();
    let per_rank =
        gradient.a.clone().powi_scalar(2).sum_dim(1) + gradient.b.clone().powi_scalar(2).sum_dim(1);
    let zeros = Tensor::<1>::zeros([bank.num_slots()], &device);
    let slots = slot_indices(bank, &device);
    zeros.select_assign(0, slots, per_rank.flatten(0, 1), IndexingUpdateOp::Add)
}

/// Columns of the table that [`AdamWStep`] makes, one row per slot.
mod column {
    pub(super) const DECAY: usize = 0;
    pub(super) const ONE_MINUS_BETA1: usize = 1;
    pub(super) const BETA2: usize = 2;
    pub(super) const ONE_MINUS_BETA2: usize = 3;
    pub(super) const EPSILON: usize = 4;
    pub(super) const STEP_SIZE: usize = 5;
    pub(super) const ROOT_BIAS_CORRECTION2: usize = 6;
    pub(super) const MAX_GRAD_NORM: usize = 7;
    pub(super) const COUNT: usize = 8;
}

/// One optimizer step of all slots: the vectors that every bank's update shares.
#[derive(Debug)]
pub struct AdamWStep {
    /// `[slots, column::COUNT]`.
    table: Tensor<2>,
    /// `[slots, 1]`: the factor that brings the gradient down to its largest allowed norm.
    clip: Tensor<2>,
    /// `[slots, 1]`: slots that stay as they are.
    keep: Tensor<2, Bool>,
}

impl AdamWStep {
    /// Prepares the step. Slots whose entry is `None`, and slots whose squared norm is not finite,
    /// keep their weights and moments as they are.
    ///
    /// # Shapes
    /// - updates: one entry per slot
    /// - `squared_norms`: `[slots]`, the squares of the slots' global gradient norms
    ///
    /// # Panics
    /// If the two differ in length.
    pub fn new(updates: &[Option<SlotUpdate>], squared_norms: Tensor<1>) -> Self {
        let slots = updates.len();
        assert_eq!(
            squared_norms.dims(),
            [slots],
            "AdamWStep: one squared norm per slot"
        );
        let device = squared_norms.device();
        let mut table = vec![0f32; slots * column::COUNT];
        for (row, update) in table.chunks_exact_mut(column::COUNT).zip(updates) {
            let Some(update) = update else { continue };
            // In double precision: 1 - beta2 loses four digits in single precision.
            let correction = |beta: f64| 1.0 - beta.powf(update.step as f64);
            let limit = if update.max_grad_norm > 0.0 {
                update.max_grad_norm
            } else {
                f64::INFINITY
            };
            for (index, value) in [
                (
                    column::DECAY,
                    1.0 - update.learning_rate * update.weight_decay,
                ),
                (column::ONE_MINUS_BETA1, 1.0 - update.beta1),
                (column::BETA2, update.beta2),
                (column::ONE_MINUS_BETA2, 1.0 - update.beta2),
                (column::EPSILON, update.epsilon),
                (
                    column::STEP_SIZE,
                    update.learning_rate / correction(update.beta1),
                ),
                (
                    column::ROOT_BIAS_CORRECTION2,
                    correction(update.beta2).sqrt(),
                ),
                (column::MAX_GRAD_NORM, limit),
            ] {
                row[index] = value as f32;
            }
        }
        let table = Tensor::<2>::from_data(TensorData::new(table, [slots, column::COUNT]), &device);
        let idle: Vec<bool> = updates.iter().map(Option::is_none).collect();
        let idle = Tensor::<2, Bool>::from_data(TensorData::new(idle, [slots, 1]), &device);
        let norms = squared_norms.reshape([slots, 1]).sqrt();
        let limit = table.clone().narrow(1, column::MAX_GRAD_NORM, 1);
        Self {
            keep: norms.clone().is_finite().bool_not().bool_or(idle),
            clip: (limit / (norms + 1e-6)).clamp_max(1.0),
            table,
        }
    }

    /// Updates one bank's weights and moments with its gradient, `[Σr, d_in]` and `[Σr, d_out]`.
    /// Does nothing to a bank without adapters.
    ///
    /// # Panics
    /// If the gradient is not of the bank's shape.
    pub fn apply(&self, bank: &mut AdapterBank, gradient: LoraPair) {
        let rows = slot_indices(bank, &gradient.a.device());
        let table = self.table.clone().select(0, rows.clone());
        let clip = self.clip.clone().select(0, rows.clone());
        let keep = self.keep.clone().select(0, rows);
        if let Some(Packed {
            weights,
            first_moment,
            second_moment,
        }) = bank.packed_mut()
        {
            let update = |weight: &mut Tensor<2>,
                          first: &mut Tensor<2>,
                          second: &mut Tensor<2>,
                          gradient: Tensor<2>| {
                let state = [weight.clone(), first.clone(), second.clone()];
                [*weight, *first, *second] = adamw(state, gradient * clip.clone(), &table, &keep);
            };
            update(
                &mut weights.a,
                &mut first_moment.a,
                &mut second_moment.a,
                gradient.a,
            );
            update(
                &mut weights.b,
                &mut first_moment.b,
                &mut second_moment.b,
                gradient.b,
            );
        }
    }
}

/// torch's `AdamW` on `[Σr, width]`, with a row of hyper-parameters per row.
fn adamw(
    [weight, first, second]: [Tensor<2>; 3],
    gradient: Tensor<2>,
    table: &Tensor<2>,
    keep: &Tensor<2, Bool>,
) -> [Tensor<2>; 3] {
    let column = |index| table.clone().narrow(1, index, 1);
    let keep = keep.clone().expand(weight.dims());
    let next_first =
        first.clone() + (gradient.clone() - first.clone()) * column(column::ONE_MINUS_BETA1);
    let next_second = second.clone() * column(column::BETA2)
        + gradient.clone() * gradient * column(column::ONE_MINUS_BETA2);
    let denominator = next_second.clone().sqrt() / column(column::ROOT_BIAS_CORRECTION2)
        + column(column::EPSILON);
    let next = weight.clone() * column(column::DECAY)
        - next_first.clone() / denominator * column(column::STEP_SIZE);
    [
        next.mask_where(keep.clone(), weight),
        next_first.mask_where(keep.clone(), first),
        next_second.mask_where(keep, second),
    ]
}

/// The slot of every row of a bank's packed weights, `[Σr]`.
fn slot_indices(bank: &AdapterBank, device: &Device) -> Tensor<1, Int> {
    let slots: Vec<i32> = bank
        .slot_of_rank()
        .into_iter()
        .map(|slot| slot as i32)
        .collect();
    let count = slots.len();
    Tensor::from_data(TensorData::new(slots, [count]), device)
}

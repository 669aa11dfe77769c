use burn::{
    backend::Dispatch,
    tensor::{DType, Int, Tensor, TensorData},
};

use super::{
    OptimizerOps, SlotUpdate,
    slot_update::{column, table},
};
use crate::{AdapterBank, LoraPair, bank::Packed};

/// One `AdamW` step of all slots, with torch's arithmetic, to be applied to every bank.
#[derive(Debug)]
pub struct AdamWStep {
    /// `[slots, column::COUNT]`.
    table: Tensor<2>,
    /// `[slots]`.
    squared_norms: Tensor<1>,
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
        let squared_norms = squared_norms.without_autodiff();
        let table = TensorData::new(table(updates), [slots, column::COUNT]);
        Self {
            table: Tensor::from_data(table, (&squared_norms.device(), DType::F32)),
            squared_norms,
        }
    }

    /// Updates one bank's weights and moments with its gradient, `[Σr, d_in]` and `[Σr, d_out]`, in
    /// place if they have no other owner. Does nothing to a bank without adapters.
    ///
    /// # Panics
    /// If the bank has another number of slots than the step, or the gradient is not `float32` of
    /// the bank's shape.
    pub fn apply(&self, bank: &mut AdapterBank, gradient: LoraPair) {
        assert_eq!(
            self.table.dims()[0],
            bank.num_slots(),
            "AdamWStep: one update per slot of the bank"
        );
        let Some(tables) = bank.rank_tables() else {
            return;
        };
        let slots = tables.slots.clone();
        let LoraPair { a, b } = bank.checked_gradient(gradient);
        bank.replace_packed(|packed| {
            let Packed {
                weights,
                first_moment,
                second_moment,
            } = packed;
            let of_a = [weights.a, first_moment.a, second_moment.a];
            let of_b = [weights.b, first_moment.b, second_moment.b];
            let [a0, a1, a2] = self.updated(of_a, a, slots.clone());
            let [b0, b1, b2] = self.updated(of_b, b, slots);
            let [weights, first_moment, second_moment] =
                [(a0, b0), (a1, b1), (a2, b2)].map(|(a, b)| LoraPair { a, b });
            Packed {
                weights,
                first_moment,
                second_moment,
            }
        });
    }

    /// One packed matrix and its two moments.
    fn updated(
        &self,
        [weight, first, second]: [Tensor<2>; 3],
        gradient: Tensor<2>,
        slots: Tensor<1, Int>,
    ) -> [Tensor<2>; 3] {
        let (weight, first, second) = Dispatch::adamw(
            weight.into_dispatch(),
            first.into_dispatch(),
            second.into_dispatch(),
            gradient.into_dispatch(),
            self.table.clone().into_dispatch(),
            slots.into_dispatch(),
            self.squared_norms.clone().into_dispatch(),
        );
        [weight, first, second].map(Tensor::from_dispatch)
    }
}

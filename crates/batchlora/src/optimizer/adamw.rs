use burn::{
    backend::Dispatch,
    tensor::{DType, Int, Tensor, TensorData},
};

use super::{
    LearningRates, OptimizerOps, SlotUpdate,
    slot_update::{column, table},
};
use crate::{AdapterBank, LoraPair};

/// One `AdamW` step of all slots, with torch's arithmetic, to be applied to every bank.
///
/// ```
/// use batchlora::{
///     AdamWStep, AdapterBank, AdapterState, GradientNorms, LearningRates, LoraSpec, Segment, Segments,
///     SlotUpdate,
/// };
/// use burn::tensor::{Device, Distribution, Tensor};
///
/// # fn main() -> Result<(), batchlora::BatchLoraError> {
/// let device = Device::flex();
/// let weight = Tensor::<2>::random([64, 32], Distribution::Default, &device); // [d_in, d_out]
/// let mut bank = AdapterBank::new(64, 32, 0, &device);
/// for (r, seed) in [(4, 1), (16, 2)] {
///     let adapter = AdapterState::init(LoraSpec::new(r, 32.0), [64, 32], seed, 0, &device)?;
///     bank.push(Some(adapter))?;
/// }
/// let segment = |rows, slot| Segment { rows, slot };
/// let segments = Segments::new(8, vec![segment(0..3, 0), segment(3..8, 1)])?;
/// let lora = bank.attach(&segments, None)?.expect("rows with adapters").require_grad();
/// let x = Tensor::<2>::random([8, 64], Distribution::Default, &device).autodiff();
/// let mut gradients = lora.forward(x, weight)?.square().sum().backward();
/// let gradient = lora.take_gradient(&mut gradients).expect("A and B are leaves");
///
/// let update = |learning_rate, weight_decay| {
///     Some(SlotUpdate {
///         learning_rates: LearningRates::from(learning_rate),
///         beta1: 0.9,
///         beta2: 0.999,
///         epsilon: 1e-8,
///         weight_decay,
///         max_grad_norm: 1.0,
///         step: 1,
///     })
/// };
/// let norms = GradientNorms::new(bank.num_slots(), &device).add(&bank, &gradient).finish();
/// AdamWStep::new(&[update(1e-3, 0.0), update(3e-4, 0.1)], norms).apply(&mut bank, gradient);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct AdamWStep {
    /// Hyper-parameters of A, of B, and of an embedding's A and B: `[slots, column::COUNT]`. One tensor where no
    /// learning rates differ.
    tables: [Tensor<2>; 3],
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
        let device = squared_norms.device();
        let upload = |rows: Vec<f32>| {
            let table = TensorData::new(rows, [slots, column::COUNT]);
            Tensor::from_data(table, (&device, DType::F32))
        };
        let of_a = table(updates, |rates| rates.a);
        let table_a: Tensor<2> = upload(of_a.clone());
        let another = |rate: fn(&LearningRates) -> f64| {
            let rows = table(updates, rate);
            if rows == of_a {
                table_a.clone()
            } else {
                upload(rows)
            }
        };
        let (b, embedding) = (another(|rates| rates.b), another(|rates| rates.embedding));
        Self {
            tables: [table_a, b, embedding],
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
        let [a, b, _] = &self.tables;
        self.apply_tables(bank, gradient, [a, b]);
    }

    /// As [`apply`](Self::apply), to the bank of an embedding, with the embedding's learning rate.
    ///
    /// # Panics
    /// As [`apply`](Self::apply).
    pub fn apply_to_embedding(&self, bank: &mut AdapterBank, gradient: LoraPair) {
        let [_, _, embedding] = &self.tables;
        self.apply_tables(bank, gradient, [embedding, embedding]);
    }

    fn apply_tables(
        &self,
        bank: &mut AdapterBank,
        gradient: LoraPair,
        [table_a, table_b]: [&Tensor<2>; 2],
    ) {
        assert_eq!(
            table_a.dims()[0],
            bank.num_slots(),
            "AdamWStep: one update per slot of the bank"
        );
        let Some(tables) = bank.rank_tables() else {
            return;
        };
        let (slots, idle) = (tables.slots.clone(), tables.trained_rows.is_some());
        // A row of zeros is that of a slot without an update.
        let table_a = match &tables.trains_a {
            Some(trains_a) => table_a.clone() * trains_a.clone(),
            None => table_a.clone(),
        };
        let of_magnitudes = tables.magnitudes.as_ref().map(|[slots, _]| slots.clone());
        // Rows that are not trained are those of a slot behind the last one.
        let (mut tables, mut norms) = ([table_a, table_b.clone()], self.squared_norms.clone());
        if idle {
            let device = norms.device();
            let zeros = Tensor::zeros([1, column::COUNT], (&device, DType::F32));
            tables = tables.map(|table| Tensor::cat(vec![table, zeros.clone()], 0));
            norms = Tensor::cat(vec![norms, Tensor::zeros([1], (&device, DType::F32))], 0);
        }
        let [table_a, table_b] = tables;
        let LoraPair { a, b, magnitude } = bank.checked_gradient(gradient);
        bank.update(|[weights, first, second]| {
            let state = [weights.a, first.a, second.a];
            let [a0, a1, a2] = updated(state, a, table_a, slots.clone(), norms.clone());
            let state = [weights.b, first.b, second.b];
            let [b0, b1, b2] = updated(state, b, table_b.clone(), slots, norms.clone());
            let state = [weights.magnitude, first.magnitude, second.magnitude];
            let [m0, m1, m2] = match (state, magnitude, of_magnitudes) {
                // PEFT's LoRA+ gives magnitudes the learning rate of B.
                ([Some(m0), Some(m1), Some(m2)], Some(gradient), Some(slots)) => {
                    updated([m0, m1, m2], gradient, table_b, slots, norms).map(Some)
                }
                (state, ..) => state,
            };
            [(a0, b0, m0), (a1, b1, m1), (a2, b2, m2)].map(|(a, b, magnitude)| LoraPair {
                a,
                b,
                magnitude,
            })
        });
    }
}

/// One packed matrix and its two moments.
fn updated(
    [weight, first, second]: [Tensor<2>; 3],
    gradient: Tensor<2>,
    table: Tensor<2>,
    slots: Tensor<1, Int>,
    squared_norms: Tensor<1>,
) -> [Tensor<2>; 3] {
    let (weight, first, second) = Dispatch::adamw(
        weight.into_dispatch(),
        first.into_dispatch(),
        second.into_dispatch(),
        gradient.into_dispatch(),
        table.into_dispatch(),
        slots.into_dispatch(),
        squared_norms.into_dispatch(),
    );
    [weight, first, second].map(Tensor::from_dispatch)
}

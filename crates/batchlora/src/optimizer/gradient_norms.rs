use burn::{
    backend::Dispatch,
    tensor::{DType, Device, Int, Tensor},
};

use super::OptimizerOps;
use crate::{AdapterBank, LoraPair};

/// Partial sums of an adapter's squares. A constant, so that the order of summation, and with it the bits of a norm,
/// depends on the adapter alone.
pub(super) const SHARES: usize = 32;

/// The squared norms of all slots' gradients, added up bank by bank on one device.
///
/// A slot's sum has the same bits in any banks. With banks on several devices, move the sums from one device to the
/// next: banks added in the same order give the same bits on any devices. [`AdamWStep`](crate::AdamWStep) takes the
/// result.
#[derive(Debug)]
pub struct GradientNorms {
    /// `[slots, SHARES]`.
    sums: Tensor<2>,
}

impl GradientNorms {
    /// Zero for every slot.
    pub fn new(slots: usize, device: &Device) -> Self {
        let device = device.clone().without_autodiff();
        Self {
            sums: Tensor::zeros([slots, SHARES], (&device, DType::F32)),
        }
    }

    /// From the result of [`into_sums`](Self::into_sums) on another device, moved to this one.
    ///
    /// # Panics
    /// If they are not of the shape `[slots, SHARES]`.
    pub fn from_sums(sums: Tensor<2>) -> Self {
        assert_eq!(
            sums.dims()[1],
            SHARES,
            "GradientNorms: {SHARES} shares per slot"
        );
        Self { sums }
    }

    /// The sums so far, to be moved to another device: `[slots, SHARES]`.
    pub fn into_sums(self) -> Tensor<2> {
        self.sums
    }

    /// Adds the squares of one bank's gradient, `[Σr, d_in]` and `[Σr, d_out]`. A bank without adapters adds
    /// nothing.
    ///
    /// # Panics
    /// If the bank has another number of slots, or the gradient is not `float32` of its shape.
    pub fn add(self, bank: &AdapterBank, gradient: &LoraPair) -> Self {
        assert_eq!(
            self.sums.dims()[0],
            bank.num_slots(),
            "GradientNorms: one sum per slot of the bank"
        );
        let Some(tables) = bank.rank_tables() else {
            return self;
        };
        let LoraPair { a, b, magnitude } = bank.checked_gradient(gradient.clone());
        let add = |sums: Tensor<2>, [a, b]: [Tensor<2>; 2], slots: &Tensor<1, Int>, starts| {
            let starts: &Tensor<1, Int> = starts;
            Tensor::from_dispatch(Dispatch::add_squares(
                sums.into_dispatch(),
                a.into_dispatch(),
                b.into_dispatch(),
                slots.clone().into_dispatch(),
                starts.clone().into_dispatch(),
            ))
        };
        let mut sums = add(self.sums, [a, b], &tables.slots, &tables.starts);
        if let (Some(magnitude), Some([slots, starts])) = (magnitude, &tables.magnitudes) {
            let none = Tensor::zeros([magnitude.dims()[0], 1], (&magnitude.device(), DType::F32));
            sums = add(sums, [magnitude, none], slots, starts);
        }
        Self { sums }
    }

    /// The squared norms, `[slots]`.
    pub fn finish(self) -> Tensor<1> {
        Tensor::from_dispatch(Dispatch::total_squares(self.sums.into_dispatch()))
    }
}

use burn::{
    backend::Dispatch,
    tensor::{DType, Device, Tensor},
};

use super::OptimizerOps;
use crate::{AdapterBank, LoraPair};

/// Parts that an adapter's sum of squares is added up in. A constant: the order of summation, and
/// with it the bits of a norm, must depend on the adapter alone.
pub(super) const SHARES: usize = 32;

/// The squared norms of all slots' gradients, added up bank by bank on one device.
///
/// A slot's sum has the same bits whatever else is in the banks. Where the banks are spread over
/// devices, the sums go along from one to the next: banks added in the same order give the same
/// bits wherever they are. The end of it are the global norms that
/// [`AdamWStep`](crate::AdamWStep) takes.
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

    /// The sums of another device, which [`into_sums`](Self::into_sums) gave, moved here.
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

    /// With the squares of one bank's gradient, `[Σr, d_in]` and `[Σr, d_out]`, added. A bank
    /// without adapters adds nothing.
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
        let LoraPair { a, b } = bank.checked_gradient(gradient.clone());
        let sums = Dispatch::add_squares(
            self.sums.into_dispatch(),
            a.into_dispatch(),
            b.into_dispatch(),
            tables.slots.clone().into_dispatch(),
            tables.starts.clone().into_dispatch(),
        );
        Self {
            sums: Tensor::from_dispatch(sums),
        }
    }

    /// The squared norms, `[slots]`.
    pub fn finish(self) -> Tensor<1> {
        Tensor::from_dispatch(Dispatch::total_squares(self.sums.into_dispatch()))
    }
}

use burn::backend::{
    Backend, Flex, backend_extension,
    tensor::{FloatTensor, IntTensor},
};

use super::{flex, reference};

/// The optimizer on a backend, in `float32`. The default bodies are the plain-tensor reference.
///
/// Not for Autodiff: none of these tensors is in a graph.
#[backend_extension(Cube: cfg(feature = "cubecl"), Flex, Fusion: cfg(feature = "fusion"))]
pub(crate) trait OptimizerOps: Backend {
    /// Sums `[slots, shares]` with the squares of packed gradients a `[Σr, d_in]` and b
    /// `[Σr, d_out]` added, each to one of its slot's shares. `slots` `[Σr]` has the slot of every
    /// packed row, `starts` `[slots + 1]` the first row of every slot and the end of the last one.
    #[fusion(dtype = sums, shape = sums)]
    fn add_squares(
        sums: FloatTensor<Self>,
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        slots: IntTensor<Self>,
        starts: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        let _ = starts;
        reference::add_squares::<Self>(sums, a, b, slots)
    }

    /// The shares `[slots, shares]` added up, `[slots]`.
    #[fusion(dtype = sums, shape = burn::tensor::Shape::new([sums[0]]))]
    fn total_squares(sums: FloatTensor<Self>) -> FloatTensor<Self> {
        reference::total_squares::<Self>(sums)
    }

    /// `AdamW` on one packed matrix: `weight`, `first` and `second` moment and `gradient` are
    /// `[Σr, width]`, `table` is `[slots, column::COUNT]`, `slots` `[Σr]`, `squared_norms`
    /// `[slots]`. Rows of slots without an update, or with a norm that is not finite, keep every
    /// bit.
    #[fusion(meta = |weight, first, second, _, _, _, _| {
        (weight.clone(), first.clone(), second.clone())
    })]
    fn adamw(
        weight: FloatTensor<Self>,
        first: FloatTensor<Self>,
        second: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        table: FloatTensor<Self>,
        slots: IntTensor<Self>,
        squared_norms: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let state = [weight, first, second];
        reference::adamw::<Self>(state, gradient, table, slots, squared_norms).into()
    }
}

impl OptimizerOps for Flex {
    fn add_squares(
        sums: FloatTensor<Self>,
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        _slots: IntTensor<Self>,
        starts: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        flex::add_squares(sums, [&a, &b], &starts)
    }

    fn adamw(
        weight: FloatTensor<Self>,
        first: FloatTensor<Self>,
        second: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        table: FloatTensor<Self>,
        slots: IntTensor<Self>,
        squared_norms: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let mut state = [weight, first, second].map(crate::ops::flex::whole);
        flex::adamw(&mut state, &gradient, &table, &slots, &squared_norms);
        state.into()
    }
}

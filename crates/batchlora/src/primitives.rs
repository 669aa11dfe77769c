//! The parts of [`lora_linear`](crate::lora_linear), for measurements and custom operators: without autodiff and
//! checks.

use burn::{backend::Dispatch, tensor::Tensor};

pub use crate::ops::Side;
use crate::{Routing, ops::BatchLoraOps};

/// `S = D(X) Aᵀ` or `dS = s · dH Bᵀ`: wide `[rows, width]`, weight `[Σr, width]` to `[rows, rank_max]`,
/// unspecified where there is no adapter and beyond its rank.
pub fn shrink(wide: Tensor<2>, weight: Tensor<2>, routing: &Routing, side: Side) -> Tensor<2> {
    let (wide, weight) = (wide.into_dispatch(), weight.into_dispatch());
    Tensor::from_dispatch(Dispatch::lora_shrink(wide, weight, routing.clone(), side))
}

/// `H + s · S B` or `dX + D'(dS A)`: wide `[rows, width]`, narrow `[rows, rank_max]`, weight
/// `[Σr, width]`; in place if the wide operand has no other owner.
pub fn expand_add(
    wide: Tensor<2>,
    narrow: Tensor<2>,
    weight: Tensor<2>,
    routing: &Routing,
    side: Side,
) -> Tensor<2> {
    Tensor::from_dispatch(Dispatch::lora_expand_add(
        wide.into_dispatch(),
        narrow.into_dispatch(),
        weight.into_dispatch(),
        routing.clone(),
        side,
    ))
}

/// `dA = dSᵀ D(X)` or `dB = s · Sᵀ dH`: wide `[rows, width]`, narrow `[rows, rank_max]` to
/// `[Σr, width]`.
pub fn weight_grad(wide: Tensor<2>, narrow: Tensor<2>, routing: &Routing, side: Side) -> Tensor<2> {
    let (wide, narrow) = (wide.into_dispatch(), narrow.into_dispatch());
    Tensor::from_dispatch(Dispatch::lora_weight_grad(
        wide,
        narrow,
        routing.clone(),
        side,
    ))
}

/// `(dS, dB)` of dH `[rows, width]`, S `[rows, rank_max]` and B `[Σr, width]`, from one read of dH.
pub fn output_grads(
    gradient: Tensor<2>,
    narrow: Tensor<2>,
    weight: Tensor<2>,
    routing: &Routing,
) -> (Tensor<2>, Tensor<2>) {
    let (ds, db) = Dispatch::lora_output_grads(
        gradient.into_dispatch(),
        narrow.into_dispatch(),
        weight.into_dispatch(),
        routing.clone(),
    );
    (Tensor::from_dispatch(ds), Tensor::from_dispatch(db))
}

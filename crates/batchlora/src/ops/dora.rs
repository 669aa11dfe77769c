//! The operator with DoRA: `c_i ∘ H` in the rows of an adapter with a magnitude, for its scales `c = m / ‖W + s·A B‖`.
//!
//! With dropout PEFT drops elements of the base's input too, as far as the magnitude scales it:
//! `x W + (c - 1) ∘ D(x) W + c ∘ s·D(x) A B`, which is `(x - D(x)) W + c ∘ (D(x) W + s·D(x) A B)`. The rows of such adapters
//! are masked before the operator, which then knows no dropout of theirs.

use std::ops::Range;

use burn::{
    backend::{Backend, TensorMetadata, tensor::FloatTensor},
    tensor::Slice,
};

use super::{BatchLoraOps, Frozen, Side};
use crate::Routing;

/// Results of a forward pass, and what its backward pass needs.
pub(super) struct Forward<B: Backend> {
    /// The output.
    pub(super) h: FloatTensor<B>,
    /// The output before it was scaled.
    pub(super) unscaled: FloatTensor<B>,
    /// The rank-r product.
    pub(super) s: FloatTensor<B>,
    /// For the operator within.
    pub(super) routing: Routing,
}

/// The gradients of x, A, B and the scales.
pub(super) struct Gradients<B: Backend> {
    pub(super) x: FloatTensor<B>,
    pub(super) a: FloatTensor<B>,
    pub(super) b: FloatTensor<B>,
    pub(super) scales: FloatTensor<B>,
}

pub(super) fn forward<B: BatchLoraOps>(
    x: FloatTensor<B>,
    weight: Frozen<B>,
    [a, b, scales]: [FloatTensor<B>; 3],
    routing: Routing,
) -> Forward<B> {
    let dropped = routing.dora_dropout();
    let (masked, rest, routing) = match &dropped {
        Some((_, others)) => {
            let (masked, rest) = B::lora_split_dropped(x, routing);
            (masked, Some(rest), others.clone().keeping_mask())
        }
        None => (x, None, routing),
    };
    let (unscaled, s) = B::lora_forward(masked, weight.clone(), a, b, routing.clone());
    let mut h = B::lora_scale_columns(unscaled.clone(), scales, routing.clone());
    if let Some(((rows, _), rest)) = dropped.zip(rest) {
        for rows in rows {
            let first = rows.start;
            h = weight.multiply_add(h, part::<B>(&rest, rows), first);
        }
    }
    Forward {
        h,
        unscaled,
        s,
        routing,
    }
}

pub(super) fn backward<B: BatchLoraOps>(
    x: FloatTensor<B>,
    weight: &Frozen<B>,
    [a, b, scales]: [FloatTensor<B>; 3],
    forward: (FloatTensor<B>, FloatTensor<B>, Routing),
    all: &Routing,
    gradient: FloatTensor<B>,
) -> Gradients<B> {
    let (unscaled, s, routing) = forward;
    let dropped = all.dora_dropout().map(|(rows, _)| (rows, gradient.clone()));
    let (scaled, of_scales) = B::lora_scale_backward(unscaled, gradient, scales, routing.clone());
    let masked = match &dropped {
        Some(_) => B::lora_split_dropped(x, all.clone()).0,
        None => x,
    };
    let (ds, da, db) = B::lora_gradients(masked, scaled.clone(), s, b, routing.clone());
    let dx = weight.multiply_transposed(scaled);
    let mut dx = B::lora_expand_add(dx, ds, a, routing, Side::Input);
    if let Some((all_rows, gradient)) = dropped {
        for rows in all_rows {
            let first = rows.start;
            let rest = weight.multiply_transposed(part::<B>(&gradient, rows));
            dx = B::lora_join_dropped(dx, rest, all.clone(), first);
        }
    }
    Gradients {
        x: dx,
        a: da,
        b: db,
        scales: of_scales,
    }
}

fn part<B: Backend>(tensor: &FloatTensor<B>, rows: Range<usize>) -> FloatTensor<B> {
    if rows.len() == tensor.shape()[0] {
        return tensor.clone();
    }
    B::float_slice(tensor.clone(), &[rows.into(), Slice::full()])
}

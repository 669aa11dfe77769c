//! The operator with DoRA: `c_i ∘ H` in the rows of an adapter with a magnitude, for its scales `c = m / ‖W + s·A B‖`.
//!
//! With dropout PEFT drops elements of the base's input too, as far as the magnitude scales it:
//! `x W + (c - 1) ∘ D(x) W + c ∘ s·D(x) A B`, which is `(x - D(x)) W + c ∘ (D(x) W + s·D(x) A B)`. The rows of such adapters
//! are masked before the operator, which then knows no dropout of theirs.

use burn::{
    backend::{Backend, TensorMetadata, tensor::FloatTensor},
    tensor::{FloatDType, Shape, Slice},
};

use super::{BatchLoraOps, Side};
use crate::{RoutedSegment, Routing};

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
    weight: FloatTensor<B>,
    [a, b, scales]: [FloatTensor<B>; 3],
    routing: Routing,
) -> Forward<B> {
    let dropped = Dropped::<B>::new(&x, &routing);
    let (masked, routing) = match &dropped {
        Some(dropped) => (dropped.mask(&x), dropped.others.clone().keeping_mask()),
        None => (x.clone(), routing),
    };
    let (unscaled, s) = B::lora_forward(masked, weight.clone(), a, b, routing.clone());
    let h = B::lora_scale_columns(unscaled.clone(), scales, routing.clone());
    let h = match dropped {
        Some(dropped) => dropped.add_rest(h, &x, &weight),
        None => h,
    };
    Forward {
        h,
        unscaled,
        s,
        routing,
    }
}

pub(super) fn backward<B: BatchLoraOps>(
    x: &FloatTensor<B>,
    weight: &FloatTensor<B>,
    [a, b, scales]: [FloatTensor<B>; 3],
    forward: (FloatTensor<B>, FloatTensor<B>, Routing),
    all: &Routing,
    gradient: FloatTensor<B>,
) -> Gradients<B> {
    let (unscaled, s, routing) = forward;
    let of_scales = B::lora_scale_grad(unscaled, gradient.clone(), routing.clone());
    let scaled = B::lora_scale_columns(gradient.clone(), scales, routing.clone());
    let dropped = Dropped::<B>::new(x, all);
    let masked = match &dropped {
        Some(dropped) => dropped.mask(x),
        None => x.clone(),
    };
    let (ds, da, db) = B::lora_gradients(masked, scaled.clone(), s, b, routing.clone());
    let transposed = B::float_transpose(weight.clone());
    let dx = B::frozen_matmul(scaled, transposed.clone());
    let dx = B::lora_expand_add(dx, ds, a, routing, Side::Input);
    Gradients {
        x: match dropped {
            Some(dropped) => dropped.input_gradient(dx, &gradient, &transposed),
            None => dx,
        },
        a: da,
        b: db,
        scales: of_scales,
    }
}

/// The rows of adapters with a magnitude and dropout.
struct Dropped<B: Backend> {
    /// Their segments.
    routing: Routing,
    /// All segments, these without their dropout.
    others: Routing,
    /// `[rows, d_in]`.
    mask: FloatTensor<B>,
}

impl<B: BatchLoraOps> Dropped<B> {
    /// `None` if there are none.
    fn new(x: &FloatTensor<B>, routing: &Routing) -> Option<Self> {
        let (routing, others) = routing.split_dora_dropout()?;
        // The operator at its input's side multiplies ones with the mask.
        let ([rows, d_in], device) = (x.shape().dims::<2>(), x.device());
        let float32 = FloatDType::F32;
        let zeros = |shape, dtype| B::float_zeros(Shape::new(shape), &device, dtype);
        let ones = |shape| B::float_ones(Shape::new(shape), &device, float32);
        let first = [Slice::full(), Slice::from(0..1)];
        let narrow = zeros([rows, routing.rank_max()], float32);
        let narrow = B::float_slice_assign(narrow, &first, ones([rows, 1]));
        let mask = B::lora_expand_add(
            zeros([rows, d_in], x.dtype().into()),
            narrow,
            ones([routing.rank_sum(), d_in]),
            routing.clone(),
            Side::Input,
        );
        Some(Self {
            routing,
            others,
            mask,
        })
    }

    /// x with these rows masked.
    fn mask(&self, x: &FloatTensor<B>) -> FloatTensor<B> {
        self.replaced(x.clone(), |rows| {
            B::float_mul(part::<B>(x, rows), part::<B>(&self.mask, rows))
        })
    }

    /// Adds `(x - D(x)) W` to the output of these rows.
    fn add_rest(
        &self,
        output: FloatTensor<B>,
        x: &FloatTensor<B>,
        weight: &FloatTensor<B>,
    ) -> FloatTensor<B> {
        self.replaced(output.clone(), |rows| {
            let x = part::<B>(x, rows);
            let rest = B::float_sub(x.clone(), B::float_mul(x, part::<B>(&self.mask, rows)));
            B::float_add(
                part::<B>(&output, rows),
                B::frozen_matmul(rest, weight.clone()),
            )
        })
    }

    /// The gradient of x from that of the masked x: `D ∘ dx + (1 - D) ∘ dH Wᵀ` in these rows.
    fn input_gradient(
        &self,
        of_masked: FloatTensor<B>,
        gradient: &FloatTensor<B>,
        transposed: &FloatTensor<B>,
    ) -> FloatTensor<B> {
        self.replaced(of_masked.clone(), |rows| {
            let mask = part::<B>(&self.mask, rows);
            let through = B::float_mul(part::<B>(&of_masked, rows), mask.clone());
            let beside = B::frozen_matmul(part::<B>(gradient, rows), transposed.clone());
            let rest = B::float_sub(beside.clone(), B::float_mul(beside, mask));
            B::float_add(through, rest)
        })
    }

    fn replaced(
        &self,
        tensor: FloatTensor<B>,
        by: impl Fn(&RoutedSegment) -> FloatTensor<B>,
    ) -> FloatTensor<B> {
        self.routing
            .segments()
            .iter()
            .fold(tensor, |tensor, segment| {
                B::float_slice_assign(tensor, &place(segment), by(segment))
            })
    }
}

fn place(segment: &RoutedSegment) -> [Slice; 2] {
    [segment.rows.clone().into(), Slice::full()]
}

fn part<B: Backend>(tensor: &FloatTensor<B>, segment: &RoutedSegment) -> FloatTensor<B> {
    B::float_slice(tensor.clone(), &place(segment))
}

//! The operator's primitives and its autodiff node.
//!
//! For the rows x_i of adapter i, with packed A and B (each adapter's rows of rank first, as PEFT
//! stores A; B is stored transposed, so that both are `[Σr, width]`):
//!
//! ```text
//! S   = D(x_i) A_iᵀ                      shrink(x, A, Input)
//! H   = X W + s_i S B_i                  expand_add(XW, S, B, Output)
//! dS  = s_i dH B_iᵀ                      shrink(dH, B, Output)       } output_grads(dH, S, B)
//! dB  = s_i Sᵀ dH                        weight_grad(dH, S, Output)  } where both are wanted
//! dA  = dSᵀ D(x_i)                       weight_grad(x, dS, Input)
//!                                        gradients(x, dH, S, B): all three
//! dX  = dH Wᵀ + D'(dS A_i)               expand_add(dH Wᵀ, dS, A, Input)
//! ```
//!
//! With DoRA ([`dora`]), H becomes `c_i ∘ H` (scale_columns), and the gradient of c_i is `Σ dH ∘ H` (scale_grad).
//!
//! These are mLoRA's equations with *graph pruning*: the node keeps x, which its neighbour keeps anyway,
//! and the compact S `[rows, rank_max]` (a row belongs to one adapter); W gets no gradient. On the CPU
//! backward computes the dropout mask D again from its counter; on GPUs forward keeps its bits.

mod autodiff;
mod dora;
pub(crate) mod flex;
mod frozen;
pub(crate) mod reference;

use std::ops::Range;

use burn::{
    backend::{
        Backend, TensorMetadata, backend_extension,
        tensor::{FloatTensor, IntTensor},
    },
    tensor::Slice,
};

use crate::{Routing, nf4::Nf4Layout};
pub(crate) use frozen::Frozen;

/// An adapter's rows of packed weights, and the factor s of its product.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ScaledRanks {
    pub(crate) ranks: Range<usize>,
    pub(crate) scale: f64,
}

/// The adapter matrix of a primitive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// A, beside the operator's input: the wide operand is masked by dropout and never scaled.
    Input,
    /// B, beside the operator's output: the product is scaled and never masked.
    Output,
}

/// The operator's primitives on a backend. The default bodies are the plain-tensor reference.
///
/// Wide operands may be `float32`, `float16` or `bfloat16`; packed weights, their gradients and the
/// narrow operands of rank r are `float32`, and so is every sum.
#[backend_extension(Cube: cfg(feature = "cubecl"), Flex, Autodiff, Fusion: cfg(feature = "fusion"))]
pub(crate) trait BatchLoraOps: Backend {
    /// `[rows, width] × [Σr, width] → [rows, rank_max]`: every routed row times its adapter's
    /// packed rows. Unspecified beyond the adapter's rank and in rows of no adapter.
    #[fusion(dtype = burn::tensor::DType::F32,
        shape = burn::tensor::Shape::new([wide[0], routing.rank_max()]))]
    fn lora_shrink(
        wide: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        routing: Routing,
        side: Side,
    ) -> FloatTensor<Self> {
        reference::shrink::<Self>(wide, weight, &routing, side)
    }

    /// `[rows, width] + [rows, rank_max] × [Σr, width] → [rows, width]`.
    #[fusion(dtype = wide, shape = wide)]
    fn lora_expand_add(
        wide: FloatTensor<Self>,
        narrow: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        routing: Routing,
        side: Side,
    ) -> FloatTensor<Self> {
        reference::expand_add::<Self>(wide, narrow, weight, &routing, side)
    }

    /// `[rows, width], [rows, rank_max] → [Σr, width]`: the gradient of a packed weight, zero for
    /// adapters without rows.
    #[fusion(dtype = burn::tensor::DType::F32,
        shape = burn::tensor::Shape::new([routing.rank_sum(), wide[1]]))]
    fn lora_weight_grad(
        wide: FloatTensor<Self>,
        narrow: FloatTensor<Self>,
        routing: Routing,
        side: Side,
    ) -> FloatTensor<Self> {
        reference::weight_grad::<Self>(wide, narrow, &routing, side)
    }

    /// `(dS, dB)` of a gradient `[rows, width]`, S `[rows, rank_max]` and B `[Σr, width]`: the results of
    /// `lora_shrink` and `lora_weight_grad` at the output's side.
    #[fusion(meta = |gradient, _, weight, routing| {
        let mut narrow = weight.clone();
        narrow.shape = burn::tensor::Shape::new([gradient.shape[0], routing.rank_max()]);
        (narrow, weight.clone())
    })]
    fn lora_output_grads(
        gradient: FloatTensor<Self>,
        narrow: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        routing: Routing,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let ds = Self::lora_shrink(gradient.clone(), weight, routing.clone(), Side::Output);
        let db = Self::lora_weight_grad(gradient, narrow, routing, Side::Output);
        (ds, db)
    }

    /// `(dS, dA, dB)` of x `[rows, d_in]`, dH `[rows, d_out]`, S `[rows, rank_max]` and B `[Σr, d_out]`.
    #[fusion(default)]
    fn lora_gradients(
        x: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        narrow: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        routing: Routing,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let (ds, db) = Self::lora_output_grads(gradient, narrow, weight, routing.clone());
        let da = Self::lora_weight_grad(x, ds.clone(), routing, Side::Input);
        (ds, da, db)
    }

    /// `[rows, width]` with the rows of adapters that have a magnitude times theirs of scales `[magnitudes, width]`.
    #[fusion(dtype = wide, shape = wide)]
    fn lora_scale_columns(
        wide: FloatTensor<Self>,
        scales: FloatTensor<Self>,
        routing: Routing,
    ) -> FloatTensor<Self> {
        reference::scale_columns::<Self>(wide, scales, &routing)
    }

    /// `[rows, width], [rows, width] → [magnitudes, width]`: the gradient of the scales, zero for adapters without rows.
    #[fusion(dtype = burn::tensor::DType::F32,
        shape = burn::tensor::Shape::new([routing.magnitudes(), wide[1]]))]
    fn lora_scale_grad(
        wide: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        routing: Routing,
    ) -> FloatTensor<Self> {
        reference::scale_grad::<Self>(wide, gradient, &routing)
    }

    /// `lora_scale_columns` of the gradient, and `lora_scale_grad`.
    #[fusion(default)]
    fn lora_scale_backward(
        wide: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        scales: FloatTensor<Self>,
        routing: Routing,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let of_scales = Self::lora_scale_grad(wide, gradient.clone(), routing.clone());
        (
            Self::lora_scale_columns(gradient, scales, routing),
            of_scales,
        )
    }

    /// `(D(x), x - D(x))` in the rows of adapters with both magnitude and dropout, `(x, 0)` in others: all
    /// `[rows, d_in]`.
    #[fusion(meta = |x, _| (x.clone(), x.clone()))]
    fn lora_split_dropped(
        x: FloatTensor<Self>,
        routing: Routing,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        reference::split_dropped::<Self>(x, &routing)
    }

    /// The gradient of x from those of the two parts of [`lora_split_dropped`](Self::lora_split_dropped): masked
    /// `[rows, d_in]`, and the rest `[some, d_in]` from row `first` on, all of adapters with both magnitude and dropout.
    #[fusion(dtype = masked, shape = masked)]
    fn lora_join_dropped(
        masked: FloatTensor<Self>,
        rest: FloatTensor<Self>,
        routing: Routing,
        first: usize,
    ) -> FloatTensor<Self> {
        reference::join_dropped::<Self>(masked, rest, &routing, first)
    }

    /// The norms of the columns of `W + s·A B` for each adapter, `[adapters, d_out]`: of W, squared, `[1, d_out]`; of the
    /// adapters A `[Σr, d_in]`, B `[Σr, d_out]` and the product A W `[Σr, d_out]`, all `float32`.
    #[fusion(dtype = burn::tensor::DType::F32,
        shape = burn::tensor::Shape::new([adapters.len(), b[1]]))]
    fn lora_dora_norms(
        squares: FloatTensor<Self>,
        products: FloatTensor<Self>,
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        adapters: Vec<ScaledRanks>,
    ) -> FloatTensor<Self> {
        reference::dora_norms::<Self>(&squares, [&products, &a, &b], &adapters)
    }

    /// x `[rows, d_in]` times a weight `[d_in, d_out]` that gets no gradient. Where the backend can, a
    /// row's result does not depend on the number of rows.
    #[fusion(dtype = x, shape = burn::tensor::Shape::new([x[0], weight[1]]))]
    fn frozen_matmul(x: FloatTensor<Self>, weight: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::float_matmul(x, weight)
    }

    /// Adds `x · weight` to the rows of `out` from `first` on.
    #[fusion(dtype = out, shape = out)]
    fn frozen_matmul_add(
        out: FloatTensor<Self>,
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        first: usize,
    ) -> FloatTensor<Self> {
        let place = [(first..first + x.shape()[0]).into(), Slice::full()];
        let product = Self::frozen_matmul(x, weight);
        let sum = Self::float_add(Self::float_slice(out.clone(), &place), product);
        Self::float_slice_assign(out, &place, sum)
    }

    /// `(H, S)`, the forward with the rank-r product that backward needs.
    #[fusion(default)]
    fn lora_forward(
        x: FloatTensor<Self>,
        #[extension_type] weight: Frozen<Self>,
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        routing: Routing,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let h = weight.multiply(x.clone());
        let s = Self::lora_shrink(x, a, routing.clone(), Side::Input);
        let h = Self::lora_expand_add(h, s.clone(), b, routing, Side::Output);
        (h, s)
    }

    /// Rows of a weight `[d_out, d_in]` in NF4 in floating point. The first is that of a block.
    #[fusion(dtype = layout.dtype.into(), shape = burn::tensor::Shape::new([rows.len(), layout.shape[1]]))]
    fn nf4_dequantize(
        codes: IntTensor<Self>,
        scales: FloatTensor<Self>,
        layout: Nf4Layout,
        rows: Range<usize>,
    ) -> FloatTensor<Self>;

    /// x `[rows, d_in]` times a frozen weight: `[rows, d_out]`. Under autodiff a weight in NF4 is kept as it is, and made
    /// dense again for the gradient of x.
    #[fusion(default)]
    fn frozen_linear(
        x: FloatTensor<Self>,
        #[extension_type] weight: Frozen<Self>,
    ) -> FloatTensor<Self> {
        weight.multiply(x)
    }

    /// The gradient of x, `[rows, d_in]`, for that of `x · weight`, `[rows, d_out]`.
    #[fusion(default)]
    fn frozen_linear_backward(
        gradient: FloatTensor<Self>,
        #[extension_type] weight: Frozen<Self>,
    ) -> FloatTensor<Self> {
        weight.multiply_transposed(gradient)
    }

    /// The operator: x `[rows, d_in]`, frozen weight `[d_in, d_out]`, packed A `[Σr, d_in]` and
    /// B `[Σr, d_out]` to `[rows, d_out]`. Under autodiff it is a single node.
    #[fusion(default)]
    fn lora_linear(
        x: FloatTensor<Self>,
        #[extension_type] weight: Frozen<Self>,
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        routing: Routing,
    ) -> FloatTensor<Self> {
        Self::lora_forward(x, weight, a, b, routing).0
    }

    /// As [`lora_linear`](Self::lora_linear), for a batch that has adapters with DoRA: magnitudes and the norms that they
    /// take the place of are `[magnitudes, d_out]`. Under autodiff it is a single node of leaves and x, too: gradients of
    /// x that meet others are added in the same order.
    #[fusion(default)]
    fn lora_dora(
        x: FloatTensor<Self>,
        #[extension_type] weight: Frozen<Self>,
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        magnitude: FloatTensor<Self>,
        norms: FloatTensor<Self>,
        routing: Routing,
    ) -> FloatTensor<Self> {
        let scales = Self::float_div(magnitude, norms);
        dora::forward::<Self>(x, weight.opened(), [a, b, scales], routing).h
    }

    /// A scalar root whose backward gives `gradient` to `output`, so that a gradient computed elsewhere
    /// enters a graph.
    #[fusion(dtype = output, shape = burn::tensor::Shape::new([1]))]
    fn seed_gradient(output: FloatTensor<Self>, gradient: FloatTensor<Self>) -> FloatTensor<Self>;
}

//! DoRA (Liu et al. 2024, arXiv 2402.09353, Eq. 5): the output of an adapted layer, column by column times
//! `m / ‖W + s·A B‖`. As in section 4.3 of the paper, and in PEFT, no gradient passes through the norm.

use burn::{
    backend::Dispatch,
    tensor::{DType, Tensor},
};

use crate::{BatchLoraError, LoraPair, LoraSpec, Routing, frozen_linear, ops::BatchLoraOps};

/// Elements of a weight in half precision that are held in `float32` at a time.
const HELD: usize = 1 << 24;

/// The squared norms of the columns of a weight `[d_in, d_out]`: `[1, d_out]` in `float32`.
pub(crate) fn squared_norms(weight: &Tensor<2>) -> Tensor<2> {
    by_columns(weight, |part| part.square().sum_dim(0))
}

/// The norms of the columns of `W + s·A B` for each packed adapter with DoRA, `[adapters, d_out]` in `float32`, from
/// `‖w + s·Aᵀb‖² = ‖w‖² + s·Σ b ∘ (2·A w + s·A Aᵀ b)`. `squares` are those of [`squared_norms`], `specs` those of all
/// packed adapters.
pub(crate) fn adapted_norms(
    weight: &Tensor<2>,
    squares: &Tensor<2>,
    adapters: &LoraPair,
    specs: &[LoraSpec],
) -> Tensor<2> {
    let a = adapters.a.clone().without_autodiff();
    let b = adapters.b.clone().without_autodiff();
    let mut start = 0;
    let ranks = specs.iter().map(|spec| {
        start += spec.r;
        (spec, start - spec.r..start)
    });
    let norms = ranks
        .filter(|(spec, _)| spec.use_dora)
        .map(|(spec, ranks)| {
            let rows = |t: &Tensor<2>| t.clone().slice_dim(0, ranks.clone());
            let (a, b) = (rows(&a), rows(&b));
            let scale = spec.scale();
            let products = by_columns(weight, |part| frozen_linear(a.clone(), part));
            let among = frozen_linear(a.clone(), a.clone().transpose());
            let sum = products * 2.0 + frozen_linear(among, b.clone()) * scale;
            let sum = (b * sum).sum_dim(0) * scale;
            // Rounding may make the square of a norm of almost zero negative.
            (squares.clone() + sum).clamp_min(0.0).sqrt()
        });
    Tensor::cat(norms.collect(), 0)
}

/// A function of the columns of a weight `[d_in, d_out]` in `float32`, joined.
fn by_columns(weight: &Tensor<2>, of: impl Fn(Tensor<2>) -> Tensor<2>) -> Tensor<2> {
    let weight = weight.clone().without_autodiff();
    let [d_in, d_out] = weight.dims();
    if weight.dtype() == DType::F32 {
        return of(weight);
    }
    let columns = (HELD / d_in.max(1)).max(1);
    let parts = (0..d_out).step_by(columns).map(|start| {
        let part = start..(start + columns).min(d_out);
        of(weight.clone().slice_dim(1, part).cast(DType::F32))
    });
    Tensor::cat(parts.collect(), 1)
}

/// The rows of adapters with a magnitude times their row of `scales` `[magnitudes, width]`, one node under autodiff.
/// wide and output are `[rows, width]`. The gradient of the scales is divided by the segments' loss scales.
pub(crate) fn scale_columns(wide: Tensor<2>, scales: Tensor<2>, routing: &Routing) -> Tensor<2> {
    Tensor::from_dispatch(Dispatch::lora_scale_columns(
        wide.into_dispatch(),
        scales.into_dispatch(),
        routing.clone(),
    ))
}

/// The input of an adapted layer where DoRA and dropout meet. PEFT drops elements of the base's input too, as far as
/// the magnitude scales it: `x W + (c - 1) ∘ D(x) W + c ∘ s·D(x) A B`, which is `(x - D(x)) W + c ∘ (D(x) W + s·D(x) A B)`.
pub(crate) struct Dropped {
    /// D(x) in the rows of these adapters, x in all others.
    pub(crate) x: Tensor<2>,
    /// The routing of x, whose rows are masked already.
    pub(crate) routing: Routing,
    /// `x - D(x)` of the masked rows.
    rest: Tensor<2>,
    masked: Routing,
}

impl Dropped {
    /// `None` if no adapter has both.
    pub(crate) fn new(x: &Tensor<2>, routing: &Routing) -> Option<Self> {
        let (masked, routing) = routing.split_dora_dropout()?;
        let mask = dropout_mask(&x.clone().without_autodiff(), &masked);
        let (mut dropped, mut rest) = (x.clone(), Vec::new());
        for segment in masked.segments() {
            let rows = |t: &Tensor<2>| t.clone().slice_dim(0, segment.rows.clone());
            let (of_x, kept) = (rows(x), rows(x) * rows(&mask));
            rest.push(of_x - kept.clone());
            let width = kept.dims()[1];
            dropped = dropped.slice_assign([segment.rows.clone(), 0..width], kept);
        }
        Some(Self {
            x: dropped,
            routing,
            rest: Tensor::cat(rest, 0),
            masked,
        })
    }

    /// Adds `(x - D(x)) W` to the output of its rows.
    pub(crate) fn add_rest(self, mut output: Tensor<2>, weight: Tensor<2>) -> Tensor<2> {
        let products = frozen_linear(self.rest, weight);
        let (width, mut start) = (output.dims()[1], 0);
        for segment in self.masked.segments() {
            let end = start + segment.rows.len();
            let product = products.clone().slice_dim(0, start..end);
            let sum = output.clone().slice_dim(0, segment.rows.clone()) + product;
            output = output.slice_assign([segment.rows.clone(), 0..width], sum);
            start = end;
        }
        output
    }
}

/// The mask of a routing's dropout, `[rows, d_in]` as x: what the operator makes of ones at its input's side.
fn dropout_mask(x: &Tensor<2>, routing: &Routing) -> Tensor<2> {
    let ([rows, d_in], device) = (x.dims(), x.device());
    let first = Tensor::<2>::ones([rows, 1], (&device, DType::F32));
    let narrow = match routing.rank_max() {
        1 => first,
        ranks => {
            let others = Tensor::zeros([rows, ranks - 1], (&device, DType::F32));
            Tensor::cat(vec![first, others], 1)
        }
    };
    let ones = Tensor::ones([routing.rank_sum(), d_in], (&device, DType::F32));
    let side = crate::ops::Side::Input;
    crate::primitives::expand_add(x.zeros_like(), narrow, ones, routing, side)
}

/// Refuses a DoRA adapter without a magnitude.
pub(crate) fn check(spec: &LoraSpec, weights: &LoraPair) -> Result<(), BatchLoraError> {
    if spec.use_dora == weights.magnitude.is_some() {
        return Ok(());
    }
    Err(BatchLoraError::InvalidConfig(format!(
        "use_dora is {}, and the adapter has {} magnitude",
        spec.use_dora,
        if spec.use_dora { "no" } else { "a" }
    )))
}

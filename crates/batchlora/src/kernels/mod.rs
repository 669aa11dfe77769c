//! The operator's primitives and the optimizer as CubeCL kernels, for every device of CubeCL. The crate's README and
//! `docs/lab-notes.md` list the bytes that each kernel moves and the alternatives that were tried.

#![expect(
    clippy::used_underscore_binding,
    reason = "`#[define]` makes a kernel's type from an argument that its body never names"
)]

mod adamw;
mod dora;
mod dropout;
mod expand_add;
mod gradient_norm;
mod nf4;
mod output_grads;
mod shrink;
mod tables;
mod tensor_cores;
mod weight_grad;

pub(crate) use tables::{Tables, TablesKey};
pub use tensor_cores::has_tensor_cores;

use std::ops::Range;

use burn::backend::{
    TensorMetadata,
    tensor::{FloatTensor, IntTensor},
};
use burn_cubecl::CubeBackend;

use crate::{
    Routing,
    nf4::Nf4Layout,
    ops::{BatchLoraOps, ScaledRanks, Side, reference},
    optimizer::OptimizerOps,
};

impl BatchLoraOps for CubeBackend {
    fn nf4_dequantize(
        codes: IntTensor<Self>,
        scales: FloatTensor<Self>,
        layout: Nf4Layout,
        rows: Range<usize>,
    ) -> FloatTensor<Self> {
        nf4::dequantize(codes, scales, layout, rows)
    }

    fn lora_shrink(
        wide: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        routing: Routing,
        side: Side,
    ) -> FloatTensor<Self> {
        shrink::shrink(wide, weight, &routing, side)
    }

    fn lora_expand_add(
        wide: FloatTensor<Self>,
        narrow: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        routing: Routing,
        side: Side,
    ) -> FloatTensor<Self> {
        expand_add::expand_add(wide, narrow, weight, &routing, side)
    }

    fn lora_weight_grad(
        wide: FloatTensor<Self>,
        narrow: FloatTensor<Self>,
        routing: Routing,
        side: Side,
    ) -> FloatTensor<Self> {
        weight_grad::weight_grad(wide, narrow, &routing, side)
    }

    fn lora_output_grads(
        gradient: FloatTensor<Self>,
        narrow: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        routing: Routing,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        output_grads::output_grads(gradient, narrow, weight, &routing)
    }

    fn lora_gradients(
        x: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        narrow: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        routing: Routing,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        if tensor_cores::takes(&x) {
            return tensor_cores::gradients(x, gradient, narrow, weight, &routing);
        }
        let (ds, db) = output_grads::output_grads(gradient, narrow, weight, &routing);
        let da = weight_grad::weight_grad(x, ds.clone(), &routing, Side::Input);
        (ds, da, db)
    }

    fn lora_scale_columns(
        wide: FloatTensor<Self>,
        scales: FloatTensor<Self>,
        routing: Routing,
    ) -> FloatTensor<Self> {
        dora::scale_columns(wide, scales, &routing)
    }

    fn lora_scale_grad(
        wide: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        routing: Routing,
    ) -> FloatTensor<Self> {
        dora::scale_grad(wide, gradient, &routing)
    }

    fn lora_split_dropped(
        x: FloatTensor<Self>,
        routing: Routing,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        dora::split_dropped(x, &routing)
    }

    fn lora_join_dropped(
        masked: FloatTensor<Self>,
        rest: FloatTensor<Self>,
        routing: Routing,
        first: usize,
    ) -> FloatTensor<Self> {
        dora::join_dropped(masked, rest, &routing, first)
    }

    fn lora_dora_norms(
        squares: FloatTensor<Self>,
        products: FloatTensor<Self>,
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        adapters: Vec<ScaledRanks>,
    ) -> FloatTensor<Self> {
        dora::norms(squares, products, a, b, &adapters)
    }

    fn frozen_matmul_add(
        out: FloatTensor<Self>,
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        first: usize,
    ) -> FloatTensor<Self> {
        dora::matmul_add(out, x, weight, first)
    }

    fn frozen_matmul(x: FloatTensor<Self>, weight: FloatTensor<Self>) -> FloatTensor<Self> {
        let dtype = x.dtype();
        batchlora_kernels::matmul(x, weight, dtype)
    }

    fn seed_gradient(output: FloatTensor<Self>, _gradient: FloatTensor<Self>) -> FloatTensor<Self> {
        reference::scalar_root::<Self>(&output)
    }
}

impl OptimizerOps for CubeBackend {
    fn add_squares(
        sums: FloatTensor<Self>,
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        _slots: IntTensor<Self>,
        starts: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        gradient_norm::add_squares(sums, a, b, starts)
    }

    fn total_squares(sums: FloatTensor<Self>) -> FloatTensor<Self> {
        gradient_norm::total_squares(sums)
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
        let state = [weight, first, second];
        let [weight, first, second] = adamw::adamw(state, gradient, table, slots, squared_norms);
        (weight, first, second)
    }
}

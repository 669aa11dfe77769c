//! The operator's primitives as CubeCL kernels, for every device that CubeCL has.

mod adamw;
mod count;
mod dropout;
mod expand_add;
mod gradient_norm;
#[doc(hidden)]
pub mod launch;
mod shrink;
mod tables;
mod weight_grad;

pub use count::LaunchCount;
pub(crate) use tables::{Tables, TablesKey};

use burn::backend::{
    TensorMetadata,
    tensor::{FloatTensor, IntTensor},
};
use burn_cubecl::CubeBackend;

use crate::{
    Routing,
    ops::{BatchLoraOps, Side, reference},
    optimizer::OptimizerOps,
};

impl BatchLoraOps for CubeBackend {
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

    fn frozen_matmul(x: FloatTensor<Self>, weight: FloatTensor<Self>) -> FloatTensor<Self> {
        let dtype = x.dtype();
        launch::matmul(x, weight, dtype)
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

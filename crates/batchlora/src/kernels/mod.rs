//! The operator's primitives and the optimizer as CubeCL kernels, for every device that CubeCL has.
//!
//! The ladder, and where it stands:
//!
//! 1. `shrink`: one launch for all segments, chunks of 16 ranks. Kept.
//! 2. `expand_add`: one launch, in place on the frozen product's result. Kept.
//! 3. `weight_grad`: partial sums over blocks of 512 rows and their sum, two launches. Kept, for dA.
//!    - 3b. `output_grads`: dS and dB from one read of dH, two launches where `shrink` and
//!      `weight_grad` take three. Kept for its bytes: an operator moves 0.8478 GB, 0.0587 fewer
//!      (8192 rows, 4096 × 4096, rank 16, two bytes per activation). On lavapipe it takes 1.09 times
//!      as long as the two at rank 16 there, 0.7 times at rank 4, and about twice as long at rank 64,
//!      where it spares half as much; `docs/lab-notes.md` has the figures.
//! 4. The expansion in the frozen product's epilogue: cubek-matmul 0.3.1 writes its result through a
//!    view (`MatmulArgs`, which Burn's fusion is built on), and a view of ours can add s · S B there.
//!    It spares one launch, one read and one write of H: 0.134 GB at that size, and as much of dX. Tried
//!    with one of Burn's products on lavapipe: the same bits, `docs/lab-notes.md` has the times. Not
//!    kept yet: on a GPU Burn's products are tuned, and ours would have to be tuned beside them; and a
//!    view sees one vector at a time, so that packed rows are loaded from cache for every row, 2.1 GB at
//!    rank 16 where `expand_add` loads 0.27. Appending S and B as more columns of the product's inner
//!    dimension spares the same 0.134 GB but copies X (0.134 GB) and, in every step, W (0.067 GB) to
//!    where these columns are.
//! 5. `tensor_cores`: for `bfloat16` on devices that have them, the products of `shrink`, `expand_add` and
//!    `weight_grad` on tensor cores, and these in place of `output_grads`. The form of that case, by
//!    arithmetic: on ordinary cores these kernels are bound by instructions, not by memory.
//!
//! Steps 4 and 5 want a measurement on the GPU they are for; the operands' bytes and the number of
//! launches, which can be counted anywhere, are in `tests/launches.rs`.

#![expect(
    clippy::used_underscore_binding,
    reason = "`#[define]` makes a kernel's type from an argument that its body never names"
)]

mod adamw;
mod count;
#[cfg(feature = "cuda")]
#[expect(unsafe_code, reason = "cuBLAS and the driver are C")]
mod cublas;
mod dropout;
mod expand_add;
mod gradient_norm;
#[doc(hidden)]
pub mod launch;
mod output_grads;
#[cfg(feature = "persistence")]
mod persistence;
mod product;
mod profile;
mod shrink;
mod software_product;
mod tables;
mod tensor_cores;
mod weight_grad;

pub use count::LaunchCount;
#[cfg(feature = "cuda")]
pub(crate) use cublas::take_failure;
#[cfg(feature = "persistence")]
pub use persistence::persist_kernels;
pub(crate) use product::products;
pub use profile::{KernelProfile, KernelTime};
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

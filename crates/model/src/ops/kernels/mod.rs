//! The decoder's operations as CubeCL kernels, for every device that CubeCL has.
//!
//! Operands are `float32`, `float16` or `bfloat16`; arithmetic is `float32`, results are of the
//! operands' type. What a cube and a unit do is in each kernel's own documentation.

#![expect(
    clippy::used_underscore_binding,
    reason = "`#[define]` makes a kernel's type from an argument that its body never names"
)]

mod attention;
mod chunks;
mod cross_entropy;
mod places;
mod rms_norm;
mod rotate;
mod rows;
mod softmax;
mod swiglu;
mod tables;

pub(crate) use tables::SequenceTable;

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn_cubecl::CubeBackend;

use super::{AttentionShape, DecoderOps, Rotation};

impl DecoderOps for CubeBackend {
    fn rms_norm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        epsilon: f64,
    ) -> FloatTensor<Self> {
        rms_norm::rms_norm(x, weight, epsilon)
    }

    fn rms_norm_backward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        epsilon: f64,
    ) -> FloatTensor<Self> {
        rms_norm::rms_norm_backward(x, weight, gradient, epsilon)
    }

    fn swiglu(gate: FloatTensor<Self>, up: FloatTensor<Self>) -> FloatTensor<Self> {
        swiglu::swiglu(gate, up)
    }

    fn swiglu_backward(
        gate: FloatTensor<Self>,
        up: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        swiglu::swiglu_backward(gate, up, gradient)
    }

    fn rotate(
        x: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        rotation: Rotation,
    ) -> FloatTensor<Self> {
        rotate::rotate(x, cos, sin, rotation)
    }

    fn self_attention(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        shape: AttentionShape,
    ) -> FloatTensor<Self> {
        attention::self_attention(q, k, v, &shape)
    }

    fn self_attention_backward(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        shape: AttentionShape,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        attention::self_attention_backward(q, k, v, gradient, &shape)
    }

    fn cached_attention(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        shape: AttentionShape,
    ) -> FloatTensor<Self> {
        attention::cached_attention(q, k, v, &shape)
    }

    fn cross_entropy(
        logits: FloatTensor<Self>,
        targets: IntTensor<Self>,
        weights: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        cross_entropy::cross_entropy(logits, targets, weights)
    }
}

//! The decoder's operations as CubeCL kernels, for every device that CubeCL has.
//!
//! Operands are `float32`, `float16` or `bfloat16`; arithmetic is `float32`, results have the operands' type. Each
//! kernel documents the work of a cube and a unit.

#![expect(
    clippy::used_underscore_binding,
    reason = "`#[define]` makes a kernel's type from an argument that its body never names"
)]

mod attention;
mod chunks;
mod cross_entropy;
mod glu;
mod paged;
mod places;
mod rms_norm;
mod rotate;
mod rows;
mod sampling;
mod softcap;
mod softmax;
mod tables;

pub(crate) use paged::RowTable;
pub(crate) use tables::{DeviceTables, SequenceTable};

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn_cubecl::CubeBackend;

use super::{Activation, AttentionShape, BlockTables, DecoderOps, Rotation, SampledRow, Sequences};

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

    fn glu(
        gate: FloatTensor<Self>,
        up: FloatTensor<Self>,
        activation: Activation,
    ) -> FloatTensor<Self> {
        glu::glu(gate, up, activation)
    }

    fn glu_backward(
        gate: FloatTensor<Self>,
        up: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        activation: Activation,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        glu::glu_backward(gate, up, gradient, activation)
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

    fn append_kv(
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        sequences: Sequences,
        tables: BlockTables,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        paged::append_kv([keys, values], [k, v], &sequences, &tables)
    }

    fn paged_attention(
        q: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        shape: AttentionShape,
        tables: BlockTables,
    ) -> FloatTensor<Self> {
        paged::paged_attention(q, keys, values, &shape, &tables)
    }

    fn cross_entropy(
        logits: FloatTensor<Self>,
        targets: IntTensor<Self>,
        weights: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        cross_entropy::cross_entropy(logits, targets, weights)
    }

    fn sample(logits: FloatTensor<Self>, rows: Vec<SampledRow>) -> FloatTensor<Self> {
        sampling::sample(logits, &rows)
    }
}

//! The decoder's operations as single autodiff nodes.
//!
//! Each keeps only its inputs for the backward pass and recomputes the rest: composed of Burn's elementwise
//! operations they would keep every intermediate and pass over memory many times. The default bodies, in
//! plain tensor operations, are the reference and serve every backend; Flex has its own, and CubeCL devices
//! have kernels. Reductions, norms, softmax and losses are `float32` whatever the operands' type.
//!
//! Rows are tokens: sequences of a batch follow each other without padding, so that a token's results do not depend
//! on the lengths of its neighbours.

mod activation;
mod autodiff;
mod flex;
mod functions;
#[cfg(feature = "cubecl")]
mod kernels;
mod padded_attention;
mod paged;
mod reference;
mod sampling;
mod sequences;

use burn::backend::{
    Backend, backend_extension,
    tensor::{FloatTensor, IntTensor},
};

pub use activation::Activation;
use flex::RowLogProbs;
pub(crate) use functions::rms_norm_backward;
pub use functions::{
    append_kv, cross_entropy, glu, paged_attention, rms_norm, rotate, self_attention,
};
pub use paged::{BLOCK_TOKENS, BlockTable, BlockTables};
pub use sampling::{Sampled, SampledRow, Sampling, sample};
pub use sequences::{AttentionShape, Sequences};

/// Sense of a rotary embedding: backward turns back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rotation {
    Forward,
    Back,
}

#[backend_extension(Cube: cfg(feature = "cubecl"), Flex, Autodiff, Fusion: cfg(feature = "fusion"))]
pub(crate) trait DecoderOps: Backend {
    /// `x / rms(x) · weight` over the last dimension: x `[rows, width]`, weight `[width]` of x's type or
    /// `float32`.
    #[fusion(dtype = x, shape = x)]
    fn rms_norm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        epsilon: f64,
    ) -> FloatTensor<Self> {
        reference::rms_norm::<Self>(x, weight, epsilon)
    }

    /// The gradient of x; the weight is frozen.
    #[fusion(dtype = x, shape = x)]
    fn rms_norm_backward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        epsilon: f64,
    ) -> FloatTensor<Self> {
        reference::rms_norm_backward::<Self>(x, weight, gradient, epsilon)
    }

    /// `act(gate) · up`, all `[rows, d_ffn]`.
    #[fusion(dtype = gate, shape = gate)]
    fn glu(
        gate: FloatTensor<Self>,
        up: FloatTensor<Self>,
        activation: Activation,
    ) -> FloatTensor<Self> {
        reference::glu::<Self>(gate, up, activation)
    }

    /// The gradients of gate and up.
    #[fusion(meta = |gate, up, _, _| (gate.clone(), up.clone()))]
    fn glu_backward(
        gate: FloatTensor<Self>,
        up: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        activation: Activation,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        reference::glu_backward::<Self>(gate, up, gradient, activation)
    }

    /// Rotary embedding of x `[rows, heads · head_dim]` with cos and sin `[rows, head_dim / 2]`;
    /// element i of a head is paired with element i + `head_dim` / 2, as transformers does.
    #[fusion(dtype = x, shape = x)]
    fn rotate(
        x: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        rotation: Rotation,
    ) -> FloatTensor<Self> {
        reference::rotate::<Self>(x, cos, sin, rotation)
    }

    /// Causal attention within each sequence: q `[rows, heads · head_dim]`, k and v
    /// `[rows, kv_heads · head_dim]`, output as q.
    #[fusion(dtype = q, shape = q)]
    fn self_attention(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        shape: AttentionShape,
    ) -> FloatTensor<Self> {
        padded_attention::self_attention::<Self>(q, k, v, &shape)
    }

    /// The gradients of q, k and v. The scores are computed again.
    #[fusion(meta = |q, k, v, _, _| (q.clone(), k.clone(), v.clone()))]
    fn self_attention_backward(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        shape: AttentionShape,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        padded_attention::self_attention_backward::<Self>(q, k, v, gradient, &shape)
    }

    /// Writes k and v of a batch's tokens, `[rows, kv_heads · head_dim]`, into caches
    /// `[blocks · BLOCK_TOKENS, kv_heads · head_dim]`, in place if these have no other owner. For generation, as
    /// [`paged_attention`](Self::paged_attention): there is no gradient.
    #[fusion(meta = |keys, values, _, _, _, _| (keys.clone(), values.clone()))]
    fn append_kv(
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        sequences: Sequences,
        tables: BlockTables,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        (
            paged::append::<Self>(keys, k, &sequences, &tables),
            paged::append::<Self>(values, v, &sequences, &tables),
        )
    }

    /// Causal attention of a batch's tokens over all tokens of their sequences, whose keys and values are in caches
    /// `[blocks · BLOCK_TOKENS, kv_heads · head_dim]`: q `[rows, heads · head_dim]`, output as q.
    #[fusion(dtype = q, shape = q)]
    fn paged_attention(
        q: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        shape: AttentionShape,
        tables: BlockTables,
    ) -> FloatTensor<Self> {
        paged::attention::<Self>(q, keys, values, &shape, &tables)
    }

    /// Cross-entropy of logits `[rows, vocabulary]` against one target a row, and the gradient of
    /// `Σ weight · loss`: losses `[rows]` in `float32`, gradient as the logits.
    #[fusion(meta = |logits, _, _| {
        let mut losses = logits.clone();
        losses.shape = burn::tensor::Shape::new([logits.shape[0]]);
        losses.dtype = burn::tensor::DType::F32;
        (losses, logits.clone())
    })]
    fn cross_entropy(
        logits: FloatTensor<Self>,
        targets: IntTensor<Self>,
        weights: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        reference::cross_entropy::<Self>(logits, targets, weights)
    }

    /// Picks a token for each row of logits `[rows, vocabulary]`, and finds the likeliest: `[rows, 2 · (1 + top)]` in
    /// `float32`, numbers of tokens and then their log-probabilities. `top` is the most that a row wants.
    #[fusion(dtype = burn::tensor::DType::F32, shape = burn::tensor::Shape::new([logits[0], SampledRow::width(rows, logits[1])]))]
    fn sample(logits: FloatTensor<Self>, rows: Vec<SampledRow>) -> FloatTensor<Self> {
        sampling::in_host_memory::<Self>(logits, &rows)
    }
}

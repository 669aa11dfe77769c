use burn::{
    backend::Dispatch,
    tensor::{Int, Tensor},
};

use super::{Activation, AttentionShape, BlockTables, DecoderOps, Rotation, Sequences};

/// `x / rms(x) · weight` over the last dimension.
///
/// # Shapes
/// x `[rows, width]`, weight `[width]` of x's type or `float32`, output `[rows, width]`.
pub fn rms_norm(x: Tensor<2>, weight: Tensor<1>, epsilon: f64) -> Tensor<2> {
    Tensor::from_dispatch(Dispatch::rms_norm(
        x.into_dispatch(),
        weight.into_dispatch(),
        epsilon,
    ))
}

/// The gradient of [`rms_norm`]'s x, for callers that are not in a graph.
pub(crate) fn rms_norm_backward(
    x: Tensor<2>,
    weight: Tensor<1>,
    gradient: Tensor<2>,
    epsilon: f64,
) -> Tensor<2> {
    Tensor::from_dispatch(Dispatch::rms_norm_backward(
        x.into_dispatch(),
        weight.into_dispatch(),
        gradient.into_dispatch(),
        epsilon,
    ))
}

/// `act(gate) · up`, all `[rows, d_ffn]`.
pub fn glu(gate: Tensor<2>, up: Tensor<2>, activation: Activation) -> Tensor<2> {
    Tensor::from_dispatch(Dispatch::glu(
        gate.into_dispatch(),
        up.into_dispatch(),
        activation,
    ))
}

/// Rotary position embedding of every head, in transformers' pairing of element i with element
/// i + `head_dim` / 2.
///
/// # Shapes
/// x `[rows, heads · head_dim]`, cos and sin `[rows, head_dim / 2]`, output as x.
pub fn rotate(x: Tensor<2>, cos: Tensor<2>, sin: Tensor<2>) -> Tensor<2> {
    Tensor::from_dispatch(Dispatch::rotate(
        x.into_dispatch(),
        cos.into_dispatch(),
        sin.into_dispatch(),
        Rotation::Forward,
    ))
}

/// Causal attention within each sequence; keeps q, k and v for backward, never the scores.
///
/// # Shapes
/// q `[rows, heads · head_dim]`, k and v `[rows, kv_heads · head_dim]`, output as q.
pub fn self_attention(
    q: Tensor<2>,
    k: Tensor<2>,
    v: Tensor<2>,
    shape: &AttentionShape,
) -> Tensor<2> {
    if shape.sequences.rows() == 0 {
        return q;
    }
    Tensor::from_dispatch(Dispatch::self_attention(
        q.into_dispatch(),
        k.into_dispatch(),
        v.into_dispatch(),
        shape.clone(),
    ))
}

/// Writes k and v of a batch's tokens into caches, in place if these have no other owner.
///
/// # Shapes
/// Caches `[blocks · BLOCK_TOKENS, kv_heads · head_dim]`, k and v `[rows, kv_heads · head_dim]`.
///
/// # Panics
/// If the tables do not [fit](BlockTables::check) sequences and caches.
pub fn append_kv(
    [keys, values]: [Tensor<2>; 2],
    [k, v]: [Tensor<2>; 2],
    sequences: &Sequences,
    tables: &BlockTables,
) -> [Tensor<2>; 2] {
    if sequences.rows() == 0 {
        return [keys, values];
    }
    let (keys, values) = Dispatch::append_kv(
        keys.into_dispatch(),
        values.into_dispatch(),
        k.into_dispatch(),
        v.into_dispatch(),
        sequences.clone(),
        tables.clone(),
    );
    [Tensor::from_dispatch(keys), Tensor::from_dispatch(values)]
}

/// Causal attention of a batch's tokens over all tokens of their sequences, whose keys and values are in caches. On the
/// CPU in `float32` a token's bits are those of [`self_attention`] over the whole sequence.
///
/// # Shapes
/// q `[rows, heads · head_dim]`, caches `[blocks · BLOCK_TOKENS, kv_heads · head_dim]`, output as q.
///
/// # Panics
/// If the tables do not [fit](BlockTables::check) sequences and caches.
pub fn paged_attention(
    q: Tensor<2>,
    [keys, values]: [Tensor<2>; 2],
    shape: &AttentionShape,
    tables: &BlockTables,
) -> Tensor<2> {
    if shape.sequences.rows() == 0 {
        return q;
    }
    Tensor::from_dispatch(Dispatch::paged_attention(
        q.into_dispatch(),
        keys.into_dispatch(),
        values.into_dispatch(),
        shape.clone(),
        tables.clone(),
    ))
}

/// Cross-entropy against one target a row, and the gradient of `Σ weight · loss`.
///
/// # Shapes
/// logits `[rows, vocabulary]`, targets and weights `[rows]`; returns losses `[rows]` in `float32`
/// and the gradient of the logits.
pub fn cross_entropy(
    logits: Tensor<2>,
    targets: Tensor<1, Int>,
    weights: Tensor<1>,
) -> (Tensor<1>, Tensor<2>) {
    let (losses, gradient) = Dispatch::cross_entropy(
        logits.into_dispatch(),
        targets.into_dispatch(),
        weights.into_dispatch(),
    );
    let losses = Tensor::from_dispatch(losses);
    (losses, Tensor::from_dispatch(gradient))
}

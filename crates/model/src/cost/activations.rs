//! Bytes that a micro-batch keeps on a stage from its forward to its backward pass: the operators keep their inputs,
//! the rank-r products and, on GPUs, the bits of dropout masks.

use std::ops::Range;

use crate::{LlamaConfig, NormPlacement, Projection, QkNorm};

/// Rank-r products are `float32` for any type of activations.
const PRODUCT_BYTES: usize = 4;

/// How a stage stores activations.
#[derive(Debug, Clone, Copy)]
pub struct ActivationStorage {
    /// Bytes of an element.
    pub element_bytes: usize,
    /// A layer keeps its input only and computes the rest again in the backward pass.
    pub gradient_checkpointing: bool,
    /// Adapters have dropout, and the device keeps a bit for every element of their inputs.
    pub dropout_masks: bool,
}

/// Bytes of one token on a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenBytes {
    /// Kept from the forward to the backward pass.
    pub kept: usize,
    /// Computed again in the backward pass, for one micro-batch at a time.
    pub computed_again: usize,
}

/// An upper estimate of the bytes of one token on a stage with these layers, before measurements: `float32`, and
/// every projection adapted with rank 16.
pub fn most_bytes_per_token(
    model: &LlamaConfig,
    layers: &Range<usize>,
    gradient_checkpointing: bool,
) -> usize {
    let storage = ActivationStorage {
        element_bytes: 4,
        gradient_checkpointing,
        dropout_masks: true,
    };
    let bytes = bytes_per_token(model, layers, |_| [16; Projection::COUNT], storage);
    bytes.kept + bytes.computed_again
}

/// Least bytes of one token over all layers, if the lowest layer is adapted: for elements of this size, without any
/// part that depends on the adapter.
pub fn least_bytes_per_token(
    model: &LlamaConfig,
    element_bytes: usize,
    gradient_checkpointing: bool,
) -> usize {
    let storage = ActivationStorage {
        element_bytes,
        gradient_checkpointing,
        dropout_masks: false,
    };
    let bytes = bytes_per_token(
        model,
        &(0..model.num_hidden_layers),
        |_| [0; Projection::COUNT],
        storage,
    );
    bytes.kept + bytes.computed_again
}

/// Bytes of one token on a stage with these layers. `ranks` gives, by layer and projection, the largest
/// rank in the micro-batch; 0 without an adapter.
pub fn bytes_per_token(
    model: &LlamaConfig,
    layers: &Range<usize>,
    ranks: impl Fn(usize) -> [usize; Projection::COUNT],
    storage: ActivationStorage,
) -> TokenBytes {
    let hidden = model.d_model * storage.element_bytes;
    let inside = layers
        .clone()
        .map(|layer| layer_bytes(model, ranks(layer), storage));
    if storage.gradient_checkpointing {
        TokenBytes {
            kept: hidden * layers.len(),
            computed_again: inside.max().unwrap_or(0) + hidden,
        }
    } else {
        TokenBytes {
            // Every layer's input, and the output of the last.
            kept: inside.sum::<usize>() + hidden * (layers.len() + 1),
            computed_again: 0,
        }
    }
}

/// Bytes of one token that the backward pass of a layer needs beside what was kept: the gradients of gate, up and their
/// product. An adapted down projection has freed its input by then.
pub fn backward_bytes_per_token(
    model: &LlamaConfig,
    layers: &Range<usize>,
    ranks: impl Fn(usize) -> [usize; Projection::COUNT],
    element_bytes: usize,
) -> usize {
    let buffers = layers.clone().map(|layer| {
        let adapted = ranks(layer)[Projection::Down as usize] > 0;
        if adapted { 2 } else { 3 }
    });
    buffers.max().unwrap_or(0) * model.d_ffn * element_bytes
}

/// Bytes that one token keeps inside a layer, without the input and output of the layer.
fn layer_bytes(
    model: &LlamaConfig,
    ranks: [usize; Projection::COUNT],
    storage: ActivationStorage,
) -> usize {
    use Projection::{Down, Gate, GateUp, K, O, Q, Qkv, Up, V};
    let if_adapted = |projections: &[Projection], width| {
        let adapted = projections.iter().any(|&p| ranks[p as usize] > 0);
        if adapted { width } else { 0 }
    };
    let query = model.num_attention_heads * model.head_dim;
    let key = model.num_key_value_heads * model.head_dim;
    let (before, after) = match model.norms {
        NormPlacement::Before => (model.d_model, 0),
        NormPlacement::After => (0, model.d_model),
        NormPlacement::Both => (model.d_model, model.d_model),
    };
    let elements = [
        // Without a norm before attention its input is the layer's.
        if_adapted(&[Q, K, V, Qkv], before),
        // Before the norms of queries and keys.
        if model.qk_norm == QkNorm::None {
            0
        } else {
            query + key
        },
        query + 2 * key,
        // Values are a part of the fused projection's output, which is kept with them.
        if model.fused { query + key } else { 0 },
        if_adapted(&[O], query),
        // The inputs of the norms after attention and before the feed-forward.
        after + before,
        if_adapted(&[Gate, Up, GateUp], model.d_model),
        // Gate and up.
        2 * model.d_ffn,
        if_adapted(&[Down], model.d_ffn),
        after,
    ];
    let elements: usize = elements.iter().sum();
    let linears = model.linears().into_iter();
    let masks: usize = linears
        .filter(|linear| storage.dropout_masks && ranks[linear.projection as usize] > 0)
        .map(|linear| linear.d_in.div_ceil(8))
        .sum();
    let linears = model.linears().into_iter();
    let products: usize = linears
        .map(|linear| ranks[linear.projection as usize])
        .sum();
    elements * storage.element_bytes + products * PRODUCT_BYTES + masks
}

#[cfg(test)]
mod tests {
    use crate::{LlamaConfig, NormPlacement, Projection, QkNorm};

    use super::{ActivationStorage, TokenBytes, backward_bytes_per_token, bytes_per_token};

    fn model() -> LlamaConfig {
        let mut model = LlamaConfig::named("micro").unwrap();
        (model.d_model, model.d_ffn) = (16, 24);
        (
            model.num_attention_heads,
            model.num_key_value_heads,
            model.head_dim,
        ) = (2, 1, 8);
        model
    }

    /// Ranks of the first seven projections.
    fn ranks(seven: &[usize; 7]) -> [usize; Projection::COUNT] {
        let mut ranks = [0; Projection::COUNT];
        ranks[..7].copy_from_slice(seven);
        ranks
    }

    const PLAIN: ActivationStorage = ActivationStorage {
        element_bytes: 2,
        gradient_checkpointing: false,
        dropout_masks: false,
    };

    #[test]
    fn every_kept_tensor_is_counted_once() {
        let model = model();
        let bytes = |ranks: [usize; Projection::COUNT]| {
            bytes_per_token(&model, &(0..1), |_| ranks, PLAIN).kept
        };
        // Input and output; q, k, v; the middle; gate and up.
        let base = 2 * (2 * 16 + (16 + 8 + 8) + 16 + 2 * 24);
        assert_eq!(bytes([0; Projection::COUNT]), base);
        // The normed input, once for three; their rank-r products.
        assert_eq!(bytes(ranks(&[4, 0, 8, 0, 0, 0, 0])), base + 2 * 16 + 4 * 12);
        assert_eq!(bytes(ranks(&[0, 0, 0, 4, 0, 0, 0])), base + 2 * 16 + 4 * 4);
        assert_eq!(bytes(ranks(&[0, 0, 0, 0, 4, 4, 0])), base + 2 * 16 + 4 * 8);
        assert_eq!(bytes(ranks(&[0, 0, 0, 0, 0, 0, 4])), base + 2 * 24 + 4 * 4);
    }

    #[test]
    fn checkpointing_keeps_inputs_and_computes_a_layer_again() {
        let model = model();
        let by_layer = |layer: usize| {
            if layer == 2 {
                [8; Projection::COUNT]
            } else {
                [4; Projection::COUNT]
            }
        };
        let checkpointed = ActivationStorage {
            gradient_checkpointing: true,
            ..PLAIN
        };
        let hidden = 2 * 16;
        let largest = bytes_per_token(&model, &(2..3), by_layer, PLAIN);
        assert_eq!(largest.computed_again, 0);
        assert_eq!(
            bytes_per_token(&model, &(0..4), by_layer, checkpointed),
            TokenBytes {
                kept: 4 * hidden,
                computed_again: largest.kept - hidden,
            }
        );
    }

    #[test]
    fn a_backward_pass_has_gradients_of_the_feed_forward() {
        let model = model();
        let bytes = |down| {
            let by_layer = |_| ranks(&[4, 4, 4, 4, 4, 4, down]);
            backward_bytes_per_token(&model, &(0..2), by_layer, 2)
        };
        assert_eq!((bytes(0), bytes(4)), (3 * 24 * 2, 2 * 24 * 2));
    }

    #[test]
    fn a_mask_is_a_bit_of_every_element_of_an_adapted_input() {
        let model = model();
        let masked = ActivationStorage {
            dropout_masks: true,
            ..PLAIN
        };
        let bytes = |ranks: [usize; Projection::COUNT], storage| {
            bytes_per_token(&model, &(0..1), |_| ranks, storage).kept
        };
        for (ranks, mask) in [
            ([0; Projection::COUNT], 0),
            (ranks(&[4, 0, 8, 0, 0, 0, 0]), 2 * 16 / 8),
            (ranks(&[0, 0, 0, 0, 0, 0, 4]), 24 / 8),
        ] {
            assert_eq!(bytes(ranks, masked), bytes(ranks, PLAIN) + mask);
        }
    }

    #[test]
    fn head_norms_keep_their_inputs() {
        let mut model = model();
        let plain = bytes_per_token(&model, &(0..1), |_| [0; Projection::COUNT], PLAIN).kept;
        model.qk_norm = QkNorm::PerHead;
        let normed = bytes_per_token(&model, &(0..1), |_| [0; Projection::COUNT], PLAIN).kept;
        assert_eq!(normed, plain + 2 * (16 + 8));
    }

    #[test]
    fn fused_projections_are_kept_whole() {
        let mut model = model();
        model.fused = true;
        let bytes = |adapted: &[Projection]| {
            let mut ranks = [0; Projection::COUNT];
            for &projection in adapted {
                ranks[projection as usize] = 4;
            }
            bytes_per_token(&model, &(0..1), |_| ranks, PLAIN).kept
        };
        // Input and output; queries, keys and values as they come, rotated queries and keys; the middle; gate and up.
        let base = 2 * (2 * 16 + (16 + 8 + 8) + (16 + 8) + 16 + 2 * 24);
        assert_eq!(bytes(&[]), base);
        for projection in [Projection::Qkv, Projection::GateUp] {
            assert_eq!(
                bytes(&[projection]),
                base + 2 * 16 + 4 * 4,
                "{projection:?}"
            );
        }
        // It has no such projection.
        assert_eq!(bytes(&[Projection::V]), base + 2 * 16);
    }

    #[test]
    fn norms_after_keep_the_outputs_of_attention_and_feed_forward() {
        let mut model = model();
        model.norms = NormPlacement::After;
        let after = model.clone();
        let bytes = |ranks: [usize; Projection::COUNT]| {
            bytes_per_token(&after, &(0..1), |_| ranks, PLAIN).kept
        };
        // Input and output; q, k, v; what attention gives; gate and up; what the feed-forward gives.
        let base = 2 * (2 * 16 + (16 + 8 + 8) + 16 + 2 * 24 + 16);
        assert_eq!(bytes([0; Projection::COUNT]), base);
        // Queries take the layer's input itself.
        assert_eq!(bytes(ranks(&[4, 0, 0, 0, 0, 0, 0])), base + 4 * 4);
        assert_eq!(bytes(ranks(&[0, 0, 0, 0, 4, 0, 0])), base + 2 * 16 + 4 * 4);
        // With norms before them besides: the middle, and the normed input of queries.
        model.norms = NormPlacement::Both;
        let bytes = bytes_per_token(&model, &(0..1), |_| ranks(&[4, 0, 0, 0, 0, 0, 0]), PLAIN).kept;
        assert_eq!(bytes, base + 2 * 16 + 2 * 16 + 4 * 4);
    }
}

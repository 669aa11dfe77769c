use std::ops::Range;

use batchlora::Nf4;

use crate::{Projection, config::LlamaConfig, head::HEAD_PART};

/// Hugging Face name and shape of every parameter of a decoder, layer by layer.
/// Linear weights are `[d_out, d_in]`.
pub fn parameter_shapes(config: &LlamaConfig) -> Vec<(String, Vec<usize>)> {
    let d_model = config.d_model;
    let table = |name: &str| (name.to_owned(), vec![config.vocab_size, d_model]);
    let mut shapes = vec![table("model.embed_tokens.weight")];
    for layer in 0..config.num_hidden_layers {
        let mut push = |path: &str, parameter: &str, shape: Vec<usize>| {
            shapes.push((format!("model.layers.{layer}.{path}.{parameter}"), shape));
        };
        for name in config.norms.of_attention().into_iter().flatten() {
            push(name, "weight", vec![d_model]);
        }
        for linear in config.linears() {
            // The digest of a checkpoint goes by this order.
            if matches!(linear.projection, Projection::Gate | Projection::GateUp) {
                for name in config.norms.of_mlp().into_iter().flatten() {
                    push(name, "weight", vec![d_model]);
                }
            }
            let path = linear.projection.path();
            push(path, "weight", vec![linear.d_out, linear.d_in]);
            if linear.bias {
                push(path, "bias", vec![linear.d_out]);
            }
        }
        let heads = [config.num_attention_heads, config.num_key_value_heads];
        for (name, heads) in ["self_attn.q_norm", "self_attn.k_norm"]
            .into_iter()
            .zip(heads)
        {
            let width = config.qk_norm.width(heads, config.head_dim);
            if width > 0 {
                push(name, "weight", vec![width]);
            }
        }
    }
    shapes.push(("model.norm.weight".to_owned(), vec![d_model]));
    if !config.tie_word_embeddings {
        shapes.push(table("lm_head.weight"));
    }
    shapes
}

/// Those of [`parameter_shapes`] that a stage with these layers has: with the embedding if they begin the
/// model, with final norm and output projection if they end it.
pub fn stage_parameters(
    model: &LlamaConfig,
    layers: &Range<usize>,
) -> impl Iterator<Item = (String, Vec<usize>)> {
    let begins = layers.start == 0;
    let ends = layers.end == model.num_hidden_layers;
    let embeds = begins || (ends && model.tie_word_embeddings);
    let parameters = parameter_shapes(model).into_iter();
    parameters.filter(move |(name, _)| match layer_of(name) {
        Some(layer) => layers.contains(&layer),
        // A tied embedding is also the output projection, and a stage with both holds it once.
        None if name == "model.embed_tokens.weight" => embeds,
        None => ends,
    })
}

/// Bytes of the weights of a stage with these layers, whose elements have `element_bytes` but in norms of
/// 1 + weight, which are `float32`, and in NF4.
pub fn weight_bytes(model: &LlamaConfig, layers: &Range<usize>, element_bytes: usize) -> usize {
    let bytes = stage_parameters(model, layers).map(|(name, shape)| {
        let is_wide = model.norm_plus_one && name.ends_with("norm.weight");
        if let Some(bytes) = nf4_bytes(model, &name, &shape) {
            return bytes;
        }
        let each = if is_wide {
            size_of::<f32>()
        } else {
            element_bytes
        };
        shape.iter().product::<usize>() * each
    });
    bytes.sum()
}

/// Bytes of a parameter that is stored in NF4.
fn nf4_bytes(model: &LlamaConfig, name: &str, shape: &[usize]) -> Option<usize> {
    let quantization = model.quantization.as_ref()?;
    let is_covered = quantization.covers(name.strip_suffix(".weight")?);
    let shape = shape.try_into().ok().filter(|_| is_covered)?;
    Some(Nf4::device_bytes(shape, quantization.double_quant))
}

/// Bytes of the largest dense copy of a weight in NF4, or of a part of one, of a stage with these layers: one exists at a
/// time.
pub fn dense_copy_bytes(model: &LlamaConfig, layers: &Range<usize>, element_bytes: usize) -> usize {
    let parameters = stage_parameters(model, layers);
    let copies = parameters.filter_map(|(name, shape)| {
        nf4_bytes(model, &name, &shape)?;
        let most = if layer_of(&name).is_some() {
            usize::MAX
        } else {
            HEAD_PART
        };
        Some(Nf4::part_elements(shape.try_into().ok()?, most))
    });
    copies.max().unwrap_or(0) * element_bytes
}

/// Number of frozen parameters of a stage with these layers.
pub fn frozen_parameters(model: &LlamaConfig, layers: &Range<usize>) -> usize {
    let sizes = stage_parameters(model, layers).map(|(_, shape)| shape.iter().product::<usize>());
    sizes.sum()
}

fn layer_of(name: &str) -> Option<usize> {
    let (layer, _) = name.strip_prefix("model.layers.")?.split_once('.')?;
    layer.parse().ok()
}

/// Tensors that checkpoints are known to have and a decoder does not need: rotary tables, which
/// follow from the configuration, the output projection where it is the embedding, and scales of a quantised
/// cache of keys and values.
pub(super) fn is_ignored(config: &LlamaConfig, name: &str) -> bool {
    name.ends_with(".rotary_emb.inv_freq")
        || (config.tie_word_embeddings && name == "lm_head.weight")
        || (config.stored.is_some()
            && [".k_scale", ".v_scale"]
                .iter()
                .any(|end| name.ends_with(end)))
}

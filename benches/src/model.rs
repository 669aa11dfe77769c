use std::{collections::BTreeMap, fs, io, path::Path};

use safetensors::{Dtype, serialize_to_file, tensor::TensorView};
use serde_json::{Map, json};

use crate::Shape;

/// Writes a Hugging Face directory of this shape with random `float32` weights and a tokenizer of
/// words `w0`, `w1`, … up to the vocabulary, the last of which is EOS.
///
/// # Errors
/// If the directory cannot be written.
pub fn write_model(shape: &Shape, directory: &Path) -> io::Result<()> {
    let config = json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_hidden_layers,
        "num_attention_heads": shape.num_attention_heads,
        "num_key_value_heads": shape.num_key_value_heads,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": false,
        "torch_dtype": "float32",
    });
    fs::write(directory.join("config.json"), config.to_string())?;
    write_tokenizer(shape.vocab_size, directory)?;
    write_weights(shape, directory)
}

fn write_tokenizer(vocab_size: usize, directory: &Path) -> io::Result<()> {
    let eos = vocab_size - 1;
    let mut vocabulary: Map<_, _> = (0..eos)
        .map(|word| (format!("w{word}"), json!(word)))
        .collect();
    vocabulary.insert("</s>".into(), json!(eos));
    let tokenizer = json!({
        "version": "1.0",
        "added_tokens": [{
            "id": eos, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true,
        }],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "w0"},
    });
    fs::write(directory.join("tokenizer.json"), tokenizer.to_string())?;
    let config = json!({"bos_token": null, "eos_token": "</s>"});
    fs::write(directory.join("tokenizer_config.json"), config.to_string())
}

fn write_weights(shape: &Shape, directory: &Path) -> io::Result<()> {
    let (hidden, mlp) = (shape.hidden_size, shape.intermediate_size);
    let kv = hidden / shape.num_attention_heads * shape.num_key_value_heads;
    let mut tensors: Vec<(String, Vec<usize>)> = vec![
        (
            "model.embed_tokens.weight".into(),
            vec![shape.vocab_size, hidden],
        ),
        ("model.norm.weight".into(), vec![hidden]),
        ("lm_head.weight".into(), vec![shape.vocab_size, hidden]),
    ];
    for layer in 0..shape.num_hidden_layers {
        for (name, dims) in [
            ("self_attn.q_proj", vec![hidden, hidden]),
            ("self_attn.k_proj", vec![kv, hidden]),
            ("self_attn.v_proj", vec![kv, hidden]),
            ("self_attn.o_proj", vec![hidden, hidden]),
            ("mlp.gate_proj", vec![mlp, hidden]),
            ("mlp.up_proj", vec![mlp, hidden]),
            ("mlp.down_proj", vec![hidden, mlp]),
            ("input_layernorm", vec![hidden]),
            ("post_attention_layernorm", vec![hidden]),
        ] {
            tensors.push((format!("model.layers.{layer}.{name}.weight"), dims));
        }
    }
    let mut state = 1u64;
    let mut values = BTreeMap::new();
    for (name, dims) in &tensors {
        let elements: usize = dims.iter().product();
        let bytes: Vec<u8> = (0..elements)
            .flat_map(|_| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let uniform = (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5;
                let value = if dims.len() == 1 { 1.0 } else { uniform * 0.07 };
                value.to_le_bytes()
            })
            .collect();
        values.insert(name.clone(), (dims.clone(), bytes));
    }
    let views: Result<Vec<_>, _> = values
        .iter()
        .map(|(name, (dims, bytes))| {
            TensorView::new(Dtype::F32, dims.clone(), bytes).map(|view| (name, view))
        })
        .collect();
    let views = views.map_err(io::Error::other)?;
    serialize_to_file(views, None, &directory.join("model.safetensors")).map_err(io::Error::other)
}

use loraloom_model::{Checkpoint, LlamaConfig, ModelError, parameter_shapes};

/// BLAKE3 over name, type, shape and bytes of every parameter of layers `first..end`, as stored, to
/// compare the weights of two machines. The embedding belongs to the first stage, the head to the last.
/// Reads all bytes once.
///
/// # Errors
/// If a parameter is missing.
pub(super) fn weights_digest(
    checkpoint: &Checkpoint,
    config: &LlamaConfig,
    (first, end): (usize, usize),
) -> Result<[u8; 32], ModelError> {
    let mut whole = blake3::Hasher::new();
    for (name, shape) in parameter_shapes(config) {
        if !belongs(&name, config, first, end) {
            continue;
        }
        let tensor = checkpoint.expect(&name, &shape)?;
        let header = format!("{name} {} {shape:?}\n", tensor.dtype);
        whole.update(header.as_bytes());
        whole.update(blake3::hash(tensor.bytes).as_bytes());
    }
    Ok(*whole.finalize().as_bytes())
}

/// Whether a stage of layers `first..end` reads a parameter.
fn belongs(name: &str, config: &LlamaConfig, first: usize, end: usize) -> bool {
    let ends_model = end == config.num_hidden_layers;
    if let Some(rest) = name.strip_prefix("model.layers.") {
        let layer = rest.split('.').next().and_then(|layer| layer.parse().ok());
        return layer.is_some_and(|layer: usize| (first..end).contains(&layer));
    }
    if name == "model.embed_tokens.weight" {
        return first == 0 || (ends_model && config.tie_word_embeddings);
    }
    ends_model
}

use std::ops::Range;

use loraloom_model::{Checkpoint, LlamaConfig, ModelError, stage_parameters};

/// BLAKE3 over name, type, shape and bytes of every parameter of a stage with these layers, as stored, to
/// compare the weights of two machines. Reads all bytes once.
///
/// # Errors
/// If a parameter is missing.
pub(super) fn weights_digest(
    checkpoint: &Checkpoint,
    config: &LlamaConfig,
    layers: &Range<usize>,
) -> Result<[u8; 32], ModelError> {
    let mut whole = blake3::Hasher::new();
    for (name, shape) in stage_parameters(config, layers) {
        let tensor = checkpoint.expect(&name, &shape)?;
        let header = format!("{name} {} {shape:?}\n", tensor.dtype);
        whole.update(header.as_bytes());
        whole.update(blake3::hash(tensor.bytes).as_bytes());
    }
    Ok(*whole.finalize().as_bytes())
}

//! Whether data and model are still those that a run began with.

use std::fs;

use loraloom_data::Encoded;
use loraloom_model::{Checkpoint, LlamaConfig, ModelError, parameter_shapes};

/// Bytes of each parameter that are looked at.
const LOOKED_AT: usize = 4096;

/// BLAKE3 over token ids and masks of all samples, in order: what the files, the template, the
/// tokenizer and the split came to.
pub(crate) fn data_digest(data: &Encoded) -> String {
    let mut hasher = blake3::Hasher::new();
    for part in [Some(&data.train), data.validation.as_ref()] {
        let samples = part.map_or(&[][..], |part| &part.samples);
        hasher.update(&(samples.len() as u64).to_le_bytes());
        for sample in samples {
            hasher.update(&(sample.len() as u64).to_le_bytes());
            let ids = sample.ids.iter().flat_map(|id| id.to_le_bytes());
            hasher.update(&ids.collect::<Vec<u8>>());
            let mask = sample.is_target.iter().map(|&target| u8::from(target));
            hasher.update(&mask.collect::<Vec<u8>>());
        }
    }
    hasher.finalize().to_hex().to_string()
}

/// BLAKE3 over `config.json` and over name, type, shape and the first 4 KiB of every parameter: of
/// two models of the same shape these differ, and reading them takes no time.
///
/// # Errors
/// If a file or a parameter is missing.
pub(crate) fn model_digest(
    checkpoint: &Checkpoint,
    config: &LlamaConfig,
    directory: &std::path::Path,
) -> Result<String, ModelError> {
    let path = directory.join("config.json");
    let text = fs::read(&path).map_err(|error| ModelError::Read { path, error })?;
    let mut hasher = blake3::Hasher::new();
    hasher.update(blake3::hash(&text).as_bytes());
    for (name, shape) in parameter_shapes(config) {
        let tensor = checkpoint.expect(&name, &shape)?;
        hasher.update(format!("{name} {} {shape:?}\n", tensor.dtype).as_bytes());
        hasher.update(&tensor.bytes[..tensor.bytes.len().min(LOOKED_AT)]);
    }
    Ok(hasher.finalize().to_hex().to_string())
}

#[cfg(test)]
mod tests {
    use loraloom_data::{EncodeReport, Encoded, EncodedDataset, Sample};

    use super::data_digest;

    type IdsAndMask = (&'static [u32], &'static [bool]);

    fn encoded(samples: &[IdsAndMask], validation: bool) -> Encoded {
        let sample = |&(ids, targets): &IdsAndMask| Sample {
            ids: ids.to_vec(),
            is_target: targets.to_vec(),
        };
        let report = EncodeReport {
            rows: 0,
            kept: 0,
            dropped_without_target: 0,
            truncated: 0,
            tokens_cut: 0,
            with_eos_target: 0,
            tokens: 0,
            target_tokens: 0,
            longest: 0,
            format: String::new(),
        };
        let samples = samples.iter().map(sample).collect();
        let part = EncodedDataset { samples, report };
        Encoded {
            train: part.clone(),
            validation: validation.then_some(part),
            warnings: Vec::new(),
        }
    }

    #[test]
    fn ids_masks_order_and_split_are_told_apart() {
        let first: IdsAndMask = (&[1, 2], &[false, true]);
        let second: IdsAndMask = (&[3], &[false]);
        let all = [
            encoded(&[first, second], false),
            encoded(&[second, first], false),
            encoded(&[first], false),
            encoded(&[first, second], true),
            encoded(&[(&[1, 2], &[false, false]), second], false),
            encoded(&[(&[1, 2, 3], &[false, true, false])], false),
        ];
        let digests: std::collections::BTreeSet<String> = all.iter().map(data_digest).collect();
        assert_eq!(digests.len(), all.len());
        assert_eq!(data_digest(&all[0]), data_digest(&all[0].clone()));
    }
}

//! Checks that data is still that of the run's start.

use loraloom_data::Encoded;

/// BLAKE3 over token ids and masks of all samples, in order: it covers files, template, tokenizer and split.
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

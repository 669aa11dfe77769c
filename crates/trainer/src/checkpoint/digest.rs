//! Checks that data is still that of the run's start.

use loraloom_data::{Encoded, Samples};

use crate::error::Result;

/// BLAKE3 over token ids, masks and preferences of all samples, in order: it covers files, template, tokenizer and split.
pub(crate) fn data_digest(data: &Encoded) -> Result<String> {
    let mut hasher = blake3::Hasher::new();
    for part in [Some(&data.train), data.validation.as_ref()] {
        let samples = part.map(|part| &part.samples);
        let length = samples.map_or(0, Samples::len);
        hasher.update(&(length as u64).to_le_bytes());
        for sample in samples.into_iter().flat_map(Samples::iter) {
            let sample = sample?;
            hasher.update(&(sample.len() as u64).to_le_bytes());
            let ids = sample.ids.iter().flat_map(|id| id.to_le_bytes());
            hasher.update(&ids.collect::<Vec<u8>>());
            let mask = sample.is_target.iter().map(|&target| u8::from(target));
            hasher.update(&mask.collect::<Vec<u8>>());
            if let Some(preferred) = sample.preferred {
                hasher.update(&[u8::from(preferred)]);
            }
        }
    }
    Ok(hasher.finalize().to_hex().to_string())
}

#[cfg(test)]
mod tests {
    use loraloom_data::{EncodeReport, Encoded, EncodedDataset, Sample, Samples};

    use super::data_digest;

    type IdsAndMask = (&'static [u32], &'static [bool]);

    fn encoded(samples: &[IdsAndMask], validation: bool) -> Encoded {
        let sample = |&(ids, targets): &IdsAndMask| Sample {
            ids: ids.to_vec(),
            is_target: targets.to_vec(),
            preferred: None,
        };
        let part = || {
            let mut kept = Samples::default();
            for one in samples {
                kept.push(&sample(one)).expect("kept");
            }
            EncodedDataset {
                samples: kept,
                report: EncodeReport::default(),
            }
        };
        Encoded {
            train: part(),
            validation: validation.then(part),
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
        let digest = |data| data_digest(data).expect("a digest");
        let digests: std::collections::BTreeSet<String> = all.iter().map(digest).collect();
        assert_eq!(digests.len(), all.len());
        // Runs of earlier versions are resumed.
        assert_eq!(
            digest(&all[3]),
            "9e9ceecd3f81b0d4702b3f3cc99d83bc014d17161dab7c3d2ec3dcf42da6793c"
        );
    }
}

use std::{
    collections::HashMap,
    sync::{Arc, atomic::AtomicBool},
};

use loraloom_config::{AdapterConfig, DatasetConfig};
use loraloom_data::{Dataset, Encoded, Samples, Tokenizer};

use super::TaskData;
use crate::{TrainerError, checkpoint::data_digest, error::Result};

/// A flag that is never set.
static NEVER: AtomicBool = AtomicBool::new(false);

/// Encoded rows of a configuration's datasets, by name, `max_seq_len` and `train_on_prompt`.
pub type EncodedRows = HashMap<(String, usize, bool), Encoded>;

/// Datasets that were read, each once, and their rows, once for each encoding.
#[derive(Debug)]
pub(crate) struct RowCache<'a> {
    tokenizer: &'a Tokenizer,
    vocabulary: usize,
    stop: &'a AtomicBool,
    raw: HashMap<String, Dataset>,
    encoded: HashMap<(String, usize, bool), Arc<TaskData>>,
    known: EncodedRows,
}

impl<'a> RowCache<'a> {
    /// An empty cache for a model with this vocabulary.
    pub(crate) fn new(tokenizer: &'a Tokenizer, vocabulary: usize) -> Self {
        Self {
            tokenizer,
            vocabulary,
            stop: &NEVER,
            raw: HashMap::new(),
            encoded: HashMap::new(),
            known: EncodedRows::new(),
        }
    }

    /// The same with rows that need not be read.
    pub(crate) fn with(self, known: EncodedRows) -> Self {
        Self { known, ..self }
    }

    /// The same, which reads until `stop` is set.
    pub(crate) fn until(self, stop: &'a AtomicBool) -> Self {
        Self { stop, ..self }
    }

    /// The rows of an adapter; `seed` chooses those for validation.
    ///
    /// # Errors
    /// If the dataset cannot be read, or does not fit the model; [`DataError::Stopped`](loraloom_data::DataError).
    pub(crate) fn read(
        &mut self,
        adapter: &AdapterConfig,
        dataset: &DatasetConfig,
        seed: u64,
    ) -> Result<Arc<TaskData>> {
        let name = adapter.dataset.as_str();
        let train = &adapter.train;
        // Tasks of different origin may use one name for different rows.
        let identity = format!("{name} {seed} {dataset:?}");
        let key = (identity.clone(), train.max_seq_len, train.train_on_prompt);
        if let Some(data) = self.encoded.get(&key) {
            return Ok(data.clone());
        }
        let mut warnings = Vec::new();
        let known = (name.to_owned(), key.1, key.2);
        let rows = if let Some(rows) = self.known.remove(&known) {
            rows
        } else {
            let raw = match self.raw.remove(&identity).filter(Dataset::is_unchanged) {
                Some(raw) => raw,
                None => Dataset::load_until(self.stop, name, dataset, seed)?,
            };
            let rows = raw.encode_until(self.stop, self.tokenizer, key.1, key.2)?;
            warnings.extend_from_slice(raw.warnings());
            self.raw.insert(identity, raw);
            rows
        };
        let parts = [Some(&rows.train), rows.validation.as_ref()];
        for part in parts.into_iter().flatten() {
            check_vocabulary(name, &part.samples, self.vocabulary)?;
        }
        let digest = data_digest(&rows)?;
        warnings.extend_from_slice(&rows.warnings);
        let data = Arc::new(TaskData {
            rows,
            digest,
            warnings,
            references: Arc::default(),
        });
        self.encoded.insert(key, data.clone());
        Ok(data)
    }

    pub(crate) fn clear(&mut self) {
        self.raw.clear();
        self.encoded.clear();
    }
}

/// Checks that a dataset's tokens are below the model's `vocabulary`.
///
/// # Errors
/// [`TrainerError::TokenBeyondVocabulary`].
pub fn check_vocabulary(dataset: &str, samples: &Samples, vocabulary: usize) -> Result<()> {
    let token = samples.largest_id();
    if (token as usize) < vocabulary {
        return Ok(());
    }
    Err(TrainerError::TokenBeyondVocabulary {
        dataset: dataset.into(),
        token,
        vocabulary,
    })
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use loraloom_data::{EncodeReport, Encoded, EncodedDataset, Sample, Samples, Tokenizer};
    use serde_json::{from_value, json};

    use super::{EncodedRows, RowCache, check_vocabulary};

    #[test]
    fn datasets_of_one_name_are_told_apart() {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/llama-gqa");
        let tokenizer = Tokenizer::load(&model).expect("a tokenizer");
        let mut cache = RowCache::new(&tokenizer, usize::MAX);
        let directory = tempfile::tempdir().expect("a directory");
        let adapter = json!({"name": "a", "dataset": "data"});
        let adapter = from_value(adapter).expect("an adapter");
        let mut digest = |name: &str| {
            let path = directory.path().join(name);
            fs::write(&path, json!({"text": name}).to_string()).expect("written");
            let dataset = from_value(json!({"path": [path], "validation": 0.0}));
            let read = cache.read(&adapter, &dataset.expect("a dataset"), 0);
            read.expect("rows").digest.clone()
        };
        let one = digest("one.jsonl");
        assert_ne!(digest("two.jsonl"), one);
        assert_eq!(digest("one.jsonl"), one);
    }

    #[test]
    fn a_dataset_that_changed_is_read_anew() {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/llama-gqa");
        let tokenizer = Tokenizer::load(&model).expect("a tokenizer");
        let mut cache = RowCache::new(&tokenizer, usize::MAX);
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("rows.jsonl");
        let dataset = json!({"path": [&path], "validation": 0.0});
        let dataset = from_value(dataset).expect("a dataset");
        for rows in 1..3 {
            let row = json!({"text": "a row"}).to_string() + "\n";
            fs::write(&path, row.repeat(rows)).expect("written");
            // Encodings that differ share a dataset.
            let train = json!({"max_seq_len": 10 + rows});
            let adapter = json!({"name": "a", "dataset": "data", "train": train});
            let adapter = from_value(adapter).expect("an adapter");
            let read = cache.read(&adapter, &dataset, 0).expect("rows");
            assert_eq!(read.rows.train.report.rows, rows);
        }
    }
    #[test]
    fn the_first_token_beyond_the_vocabulary_is_refused() {
        let mut samples = Samples::default();
        let sample = Sample {
            ids: vec![0, 9],
            is_target: vec![false, true],
            preferred: None,
        };
        samples.push(&sample).expect("kept");
        assert!(check_vocabulary("data", &samples, 10).is_ok());
        assert!(check_vocabulary("data", &samples, 9).is_err());
    }

    #[test]
    fn known_rows_are_not_read() {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/llama-gqa");
        let tokenizer = Tokenizer::load(&model).expect("a tokenizer");
        let adapter = |max_seq_len: usize| {
            let train = json!({"max_seq_len": max_seq_len});
            from_value(json!({"name": "a", "dataset": "data", "train": train})).expect("an adapter")
        };
        let nowhere = json!({"path": ["nowhere.jsonl"], "validation": 0.0});
        let nowhere = from_value(nowhere).expect("a dataset");
        let rows = Encoded {
            train: EncodedDataset {
                samples: Samples::default(),
                report: EncodeReport::default(),
            },
            validation: None,
            warnings: Vec::new(),
        };
        let known = EncodedRows::from([(("data".to_owned(), 10, false), rows)]);
        let mut cache = RowCache::new(&tokenizer, usize::MAX).with(known);
        for _ in 0..2 {
            cache.read(&adapter(10), &nowhere, 0).expect("known rows");
        }
        assert!(cache.read(&adapter(11), &nowhere, 0).is_err());
    }
}

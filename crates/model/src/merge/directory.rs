use std::{borrow::Cow, collections::BTreeMap, fs, path::Path};

use serde_json::{Map, Value};

use super::{MergePart, MergeRecord, Merger};
use crate::{
    checkpoint::{
        Checkpoint, HostTensor, INDEX_FILE, NewTensor, SINGLE_FILE, Shard, TensorDtype,
        write_safetensors,
    },
    config::LlamaConfig,
    durable::write_synced,
    error::{ModelError, on},
    files::{read_text, reading},
    peft::METADATA_KEY,
    replace::{copy_file, new_directory},
};

const CONFIG_FILE: &str = "config.json";
/// Files of a base that its merged model also needs, by lower-case prefixes of their names: tokenizer, chat template,
/// generation settings, licence. The README, pickles and weights in other formats are left out.
const COPIED: [&str; 12] = [
    "added_tokens.json",
    "chat_template",
    "generation_config.json",
    "licence",
    "license",
    "merges.txt",
    "notice",
    "special_tokens_map.json",
    "tokenizer",
    "use_policy",
    "vocab.json",
    "vocab.txt",
];

/// Result of [`merge`].
#[derive(Debug, Clone)]
pub struct Merged {
    /// Names and bytes of the files.
    pub files: Vec<(String, u64)>,
    /// Type of most weights.
    pub dtype: Option<TensorDtype>,
}

/// The data of a tensor to be written.
enum Source<'a> {
    /// Not a parameter of the model: unchanged from the base.
    Copy(&'a [u8]),
    /// A parameter, stored as this type.
    Sum(HostTensor<'a>, TensorDtype),
}

/// Writes a model directory with the model in `base` and `parts` folded in, in the same shards. Weights are stored as
/// in the base, or all of them as `dtype`. `progress` receives the bytes of weights written and to be written.
///
/// The files are written and synced in `<out>.tmp-<pid>`, which then becomes `out`.
///
/// # Errors
/// If `out` exists and is not an empty directory, the base is incomplete, an adapter does not fit it, a sum is
/// not finite in its type, or a file cannot be written.
pub fn merge(
    base: &Path,
    parts: &[MergePart],
    dtype: Option<TensorDtype>,
    out: &Path,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Merged, ModelError> {
    let config = LlamaConfig::from_directory(base)?;
    let checkpoint = Checkpoint::open(base)?;
    let merger = Merger::new(&checkpoint, &config, parts)?;
    let record = MergeRecord::new(&checkpoint, &config, parts)?;
    let record = serde_json::to_string(&record).map_err(ModelError::Json)?;
    let metadata = BTreeMap::from([
        ("format".to_owned(), "pt".to_owned()),
        (METADATA_KEY.to_owned(), record),
    ]);

    let is_single = !base.join(INDEX_FILE).exists() || base.join(SINGLE_FILE).exists();
    let mut shards = Vec::new();
    for (shard, names) in checkpoint.shards() {
        let name = shard.path().file_name().unwrap_or_default();
        let file = if is_single {
            SINGLE_FILE.to_owned()
        } else {
            name.to_string_lossy().into_owned()
        };
        shards.push((file, merger.shard(shard, &names, dtype)?));
    }
    let tensors = shards.iter().flat_map(|(_, tensors)| tensors);
    let total: u64 = tensors.map(|tensor| tensor.bytes() as u64).sum();
    let index = (!is_single).then(|| index(base, total, &shards));
    let index = index.transpose()?;

    let mut files = Vec::new();
    new_directory(out, |staged| {
        let mut done = 0;
        for (file, tensors) in shards {
            write_safetensors(&staged.join(file), tensors, &metadata, |tensor| {
                let bytes = match &tensor.source {
                    Source::Copy(bytes) => Cow::Borrowed(*bytes),
                    Source::Sum(base, dtype) => merger.sum(&tensor.name, base, *dtype)?,
                };
                done += bytes.len() as u64;
                progress(done, total);
                Ok(bytes)
            })?;
        }
        if let Some(index) = index {
            let path = staged.join(INDEX_FILE);
            on(&path, write_synced(&path, &index))?;
        }
        let path = staged.join(CONFIG_FILE);
        on(&path, write_synced(&path, &config_json(base, dtype)?))?;
        copy_others(base, staged)?;
        files = listed(staged)?;
        Ok(())
    })?;
    Ok(Merged {
        files,
        dtype: dtype.or_else(|| checkpoint.dtype()),
    })
}

impl<'a> Merger<'a> {
    /// The tensors of a file of the base, to be written.
    fn shard(
        &self,
        shard: &'a Shard,
        names: &[String],
        dtype: Option<TensorDtype>,
    ) -> Result<Vec<NewTensor<Source<'a>>>, ModelError> {
        let mut tensors = Vec::with_capacity(names.len());
        for name in names {
            let Some(info) = shard.info(name) else {
                continue;
            };
            let (dtype, source) = if self.parameters.contains(name) {
                let stored = shard.tensor(name, info)?;
                let dtype = dtype.unwrap_or(stored.dtype);
                (dtype.to_safetensors(), Source::Sum(stored, dtype))
            } else {
                (info.dtype, Source::Copy(shard.bytes(info)))
            };
            tensors.push(NewTensor {
                name: name.clone(),
                dtype,
                shape: info.shape.clone(),
                source,
            });
        }
        Ok(tensors)
    }
}

/// The base's index, with the new bytes of its tensors.
fn index(
    base: &Path,
    total: u64,
    shards: &[(String, Vec<NewTensor<Source<'_>>>)],
) -> Result<Vec<u8>, ModelError> {
    let path = base.join(INDEX_FILE);
    let mut index = object(&path)?;
    let places = shards.iter().flat_map(|(file, tensors)| {
        let place = |tensor: &NewTensor<_>| (tensor.name.clone(), Value::from(file.as_str()));
        tensors.iter().map(place)
    });
    index.insert("weight_map".to_owned(), places.collect());
    let metadata = index.entry("metadata").or_insert_with(|| Map::new().into());
    if let Value::Object(metadata) = metadata {
        metadata.insert("total_size".to_owned(), total.into());
    }
    written(&index)
}

/// `config.json` of the base with the new type of the weights, under one of two keys.
fn config_json(base: &Path, dtype: Option<TensorDtype>) -> Result<Vec<u8>, ModelError> {
    let path = base.join(CONFIG_FILE);
    let mut config = object(&path)?;
    let mut keys = vec!["dtype", "torch_dtype"];
    keys.retain(|key| config.contains_key(*key));
    if keys.is_empty() {
        // Versions 4 and 5 of transformers read this key.
        keys.push("torch_dtype");
    }
    match dtype.map(|dtype| Value::from(dtype.to_string())) {
        Some(dtype) if keys.iter().any(|key| config.get(*key) != Some(&dtype)) => {
            let keys = keys.into_iter().map(|key| (key.to_owned(), dtype.clone()));
            config.extend(keys);
            written(&config)
        }
        _ => Ok(read_text(&path)?.into_bytes()),
    }
}

fn object(path: &Path) -> Result<Map<String, Value>, ModelError> {
    let object = serde_json::from_str(&read_text(path)?);
    object.map_err(|error| ModelError::Json(error).in_file(path))
}

fn written(object: &Map<String, Value>) -> Result<Vec<u8>, ModelError> {
    let mut text = serde_json::to_vec_pretty(object).map_err(ModelError::Json)?;
    text.push(b'\n');
    Ok(text)
}

fn copy_others(base: &Path, to: &Path) -> Result<(), ModelError> {
    for entry in reading(base, fs::read_dir(base))? {
        let name = reading(base, entry)?.file_name();
        let lower = name.to_string_lossy().to_lowercase();
        let path = base.join(&name);
        if COPIED.iter().any(|begin| lower.starts_with(begin)) && path.is_file() {
            copy_file(&path, &to.join(&name))?;
        }
    }
    Ok(())
}

/// Names and bytes of the files in a directory, sorted.
fn listed(directory: &Path) -> Result<Vec<(String, u64)>, ModelError> {
    let mut files = Vec::new();
    for entry in reading(directory, fs::read_dir(directory))? {
        let entry = reading(directory, entry)?;
        let bytes = reading(&entry.path(), entry.metadata())?.len();
        files.push((entry.file_name().to_string_lossy().into_owned(), bytes));
    }
    files.sort();
    Ok(files)
}

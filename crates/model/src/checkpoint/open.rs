use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    ops::Bound,
    path::{Component, Path, PathBuf},
};

use safetensors::tensor::TensorInfo;
use serde::Deserialize;

use super::{
    dequantize,
    dtype::TensorDtype,
    nf4,
    parameters::{is_ignored, parameter_shapes},
    shard::Shard,
    tensor::HostTensor,
};
use crate::{
    config::LlamaConfig,
    error::ModelError,
    files::{read_text, reading},
};

pub(crate) const SINGLE_FILE: &str = "model.safetensors";
pub(crate) const INDEX_FILE: &str = "model.safetensors.index.json";

/// The weights of a model directory. Opening reads headers only; the data is memory-mapped and a
/// tensor's pages are touched when it is read.
#[derive(Debug)]
pub struct Checkpoint {
    directory: PathBuf,
    shards: Vec<Shard>,
    /// Index into `shards` of each tensor's file.
    places: BTreeMap<String, usize>,
}

impl Checkpoint {
    /// Opens `model.safetensors`, or the files named by `model.safetensors.index.json`, or the only
    /// `*.safetensors` in `directory`.
    ///
    /// # Errors
    /// If there are no such files, one is damaged or missing, or the index and the files disagree.
    pub fn open(directory: &Path) -> Result<Self, ModelError> {
        let single = directory.join(SINGLE_FILE);
        let index = directory.join(INDEX_FILE);
        if single.exists() {
            Self::from_file(directory, &single)
        } else if index.exists() {
            Self::from_index(directory, &read_index(&index)?).map_err(|error| error.in_file(index))
        } else {
            Self::from_file(directory, &only_safetensors(directory)?)
        }
    }

    fn from_file(directory: &Path, path: &Path) -> Result<Self, ModelError> {
        let shard = Shard::open(path)?;
        let places = shard.names().into_iter().map(|name| (name, 0)).collect();
        Ok(Self {
            directory: directory.into(),
            shards: vec![shard],
            places,
        })
    }

    fn from_index(directory: &Path, weight_map: &WeightMap) -> Result<Self, ModelError> {
        let files: BTreeSet<&str> = weight_map.values().map(String::as_str).collect();
        let files: Vec<&str> = files.into_iter().collect();
        let shards = files
            .iter()
            .map(|file| Shard::open(&directory.join(file)))
            .collect::<Result<Vec<_>, _>>()?;

        let mut places = BTreeMap::new();
        for (tensor, file) in weight_map {
            let shard = files.partition_point(|other| *other < file.as_str());
            if shards[shard].info(tensor).is_none() {
                let (tensor, path) = (tensor.clone(), shards[shard].path().to_owned());
                return Err(ModelError::NotInShard { tensor, path });
            }
            places.insert(tensor.clone(), shard);
        }
        // As transformers does, load tensors that the index does not mention.
        for (shard, file) in shards.iter().enumerate() {
            for tensor in file.names() {
                if weight_map.contains_key(&tensor) {
                    continue;
                }
                if let Some(first) = places.insert(tensor.clone(), shard) {
                    let first = shards[first].path().to_owned();
                    let second = file.path().to_owned();
                    return Err(ModelError::DuplicateTensor {
                        tensor,
                        first,
                        second,
                    });
                }
            }
        }
        Ok(Self {
            directory: directory.into(),
            shards,
            places,
        })
    }

    /// Names of all tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.places.keys().map(String::as_str)
    }

    /// The tensor `name`.
    ///
    /// # Errors
    /// If it does not exist or is not of a [`TensorDtype`].
    pub fn tensor(&self, name: &str) -> Result<HostTensor<'_>, ModelError> {
        let (shard, info) = self.found(name)?;
        shard.tensor(name, info)
    }

    /// The tensor `name`, which must have this shape.
    ///
    /// # Errors
    /// As [`tensor`](Self::tensor), or if the shape is another one.
    pub fn expect(&self, name: &str, shape: &[usize]) -> Result<HostTensor<'_>, ModelError> {
        let (shard, info) = self.found(name)?;
        if info.shape != shape {
            return Err(ModelError::TensorShape {
                tensor: name.to_owned(),
                path: shard.path().to_owned(),
                expected: shape.to_vec(),
                found: info.shape.clone(),
            });
        }
        shard.tensor(name, info)
    }

    /// The checkpoint's directory.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The files, each with the names of its tensors in the order of the file.
    pub(crate) fn shards(&self) -> impl Iterator<Item = (&Shard, Vec<String>)> {
        self.shards.iter().enumerate().map(|(index, shard)| {
            // A tensor of the same name in another file is not read.
            let is_here = |name: &String| self.places.get(name) == Some(&index);
            let names = shard.names().into_iter().filter(is_here);
            (shard, names.collect())
        })
    }

    /// The type of most elements, whatever `config.json` says; `None` if no tensor has a [`TensorDtype`].
    pub fn dtype(&self) -> Option<TensorDtype> {
        let dtypes = [
            TensorDtype::Float32,
            TensorDtype::Float16,
            TensorDtype::Bfloat16,
        ];
        let mut elements = [0; 3];
        let names = self.names().filter(|name| weight_of(name).is_none());
        for (_, info) in names.filter_map(|name| self.find(name)) {
            let dtype = TensorDtype::from_safetensors(info.dtype);
            if let Some(at) = dtypes.iter().position(|known| Some(*known) == dtype) {
                let (start, end) = info.data_offsets;
                elements[at] += (end - start) / dtypes[at].size();
            }
        }
        let sums = dtypes.into_iter().zip(elements);
        let most = sums.filter(|(_, sum)| *sum > 0).max_by_key(|(_, sum)| *sum);
        most.map(|(dtype, _)| dtype)
    }

    fn found(&self, name: &str) -> Result<(&Shard, &TensorInfo), ModelError> {
        let found = self.find(name);
        found.ok_or_else(|| self.missing(vec![name.to_owned()]))
    }

    /// Checks from the headers alone that every parameter of `config` exists with its shape and a readable type, and
    /// that all other tensors are known to be redundant.
    ///
    /// # Errors
    /// Names the tensors that are missing, unexpected or of another shape or type.
    pub fn verify(&self, config: &LlamaConfig) -> Result<(), ModelError> {
        let parameters = parameter_shapes(config);
        let parts: BTreeSet<String> = self.names().filter_map(weight_of).collect();
        let mut any_quantized = false;
        let names = parameters.iter().map(|(name, _)| name);
        let missing = names.filter(|name| self.find(name).is_none() && !parts.contains(*name));
        let missing: Vec<String> = missing.cloned().collect();
        if !missing.is_empty() {
            return Err(self.missing(missing));
        }
        for (name, shape) in &parameters {
            let is_nf4 = self.is_nf4(name, shape)?;
            let is_quantized = is_nf4 || self.is_dequantized(name, shape, config)?;
            any_quantized |= is_quantized;
            if !is_quantized {
                self.expect(name, shape)?;
            }
            let refused = |reason: &str| Err(self.refused(name, reason.to_owned()));
            match &config.stored {
                None if is_nf4 => return refused("`config.json` has no `quantization_config`"),
                Some(stored) if is_nf4 && !stored.is_nf4 => {
                    return refused("it is in NF4, and `quantization_config` says otherwise");
                }
                _ if !is_quantized && parts.contains(name) => {
                    return refused(
                        "it is in floating point, and there are parts of a quantised one",
                    );
                }
                _ => {}
            }
        }
        if let Some(stored) = config.stored.as_ref().filter(|_| !any_quantized) {
            return Err(ModelError::NotQuantized {
                directory: self.directory.clone(),
                format: stored.name,
            });
        }
        let head = "lm_head.weight";
        if config.tie_word_embeddings && parts.contains(head) {
            return Err(ModelError::NotTied(self.directory.clone()));
        }
        if config.tie_word_embeddings && self.find(head).is_some() {
            let (head, embedding) = (
                self.tensor(head)?,
                self.tensor("model.embed_tokens.weight")?,
            );
            if head.bytes != embedding.bytes && head.to_f32() != embedding.to_f32() {
                return Err(ModelError::NotTied(self.directory.clone()));
            }
        }
        let unexpected = self.unexpected(config);
        if unexpected.is_empty() {
            return Ok(());
        }
        Err(ModelError::UnexpectedTensors {
            directory: self.directory.clone(),
            names: unexpected.into_iter().map(str::to_owned).collect(),
        })
    }

    /// The tensors that a parameter is stored in, each with a line that describes it: one, but for quantised weights.
    ///
    /// # Errors
    /// If it does not exist, or is of another shape or type than the configuration says.
    pub fn stored_parts(
        &self,
        name: &str,
        shape: &[usize],
    ) -> Result<Vec<(String, &[u8])>, ModelError> {
        let is_beside = |part: &str| weight_of(part).as_deref() == Some(name);
        let module = name.strip_suffix("weight").unwrap_or(name);
        if !self.beginning(module).any(is_beside) {
            let tensor = self.expect(name, shape)?;
            let line = format!("{name} {} {shape:?}\n", tensor.dtype);
            return Ok(vec![(line, tensor.bytes)]);
        }
        let is_part = |part: &&str| *part == name || is_beside(part);
        let stored = |part| {
            let (info, bytes) = self.part(part)?;
            let line = format!("{part} {} {:?}\n", info.dtype, info.shape);
            Some((line, bytes))
        };
        Ok(self
            .beginning(module)
            .filter(is_part)
            .filter_map(stored)
            .collect())
    }

    /// Tensors that a model of `config` does not use, sorted; a biased projection read as an unbiased one
    /// would show here. Known redundant tensors are left out: rotary tables of old checkpoints, and
    /// `lm_head.weight` where it is tied to the embedding.
    pub fn unexpected(&self, config: &LlamaConfig) -> Vec<&str> {
        let parameters = parameter_shapes(config);
        let expected: BTreeSet<&str> = parameters.iter().map(|(name, _)| name.as_str()).collect();
        self.names()
            .filter(|name| {
                let weight = weight_of(name);
                !expected.contains(weight.as_deref().unwrap_or(name))
            })
            // AutoGPTQ writes biases of zeros.
            .filter(|name| config.stored.is_none() || !self.is_zero_bias(name))
            .filter(|name| !is_ignored(config, name))
            .collect()
    }

    fn find(&self, name: &str) -> Option<(&Shard, &TensorInfo)> {
        let shard = &self.shards[*self.places.get(name)?];
        Some((shard, shard.info(name)?))
    }

    fn is_zero_bias(&self, name: &str) -> bool {
        let found = self
            .part(name)
            .filter(|_| name.strip_suffix(".bias").is_some());
        found.is_some_and(|(_, bytes)| bytes.iter().all(|byte| *byte == 0))
    }

    /// The tensors whose names begin so.
    pub(super) fn beginning<'a>(&'a self, start: &'a str) -> impl Iterator<Item = &'a str> {
        let from = (Bound::Included(start), Bound::Unbounded);
        let names = self.places.range::<str, _>(from);
        let names = names.map(|(name, _)| name.as_str());
        names.take_while(move |name| name.starts_with(start))
    }

    /// A tensor of any type.
    pub(super) fn part(&self, name: &str) -> Option<(&TensorInfo, &[u8])> {
        let (shard, info) = self.find(name)?;
        Some((info, shard.bytes(info)))
    }

    /// The file of a tensor, or the directory.
    pub(super) fn path_of(&self, name: &str) -> PathBuf {
        let found = self.find(name).map(|(shard, _)| shard.path());
        found.unwrap_or(&self.directory).to_owned()
    }

    /// An error about a quantised weight.
    pub(super) fn refused(&self, name: &str, reason: String) -> ModelError {
        ModelError::QuantState {
            tensor: name.to_owned(),
            path: self.path_of(name),
            reason,
        }
    }

    fn missing(&self, names: Vec<String>) -> ModelError {
        ModelError::MissingTensors {
            directory: self.directory.clone(),
            names,
        }
    }
}

/// The weight that a tensor belongs to, if it is one of the tensors beside a quantised weight.
fn weight_of(name: &str) -> Option<String> {
    nf4::weight_of(name)
        .map(str::to_owned)
        .or_else(|| dequantize::weight_of(name))
}

/// Tensor names of a sharded checkpoint to the names of their files.
type WeightMap = BTreeMap<String, String>;

#[derive(Deserialize)]
struct Index {
    weight_map: WeightMap,
}

/// Reads `model.safetensors.index.json`.
fn read_index(path: &Path) -> Result<WeightMap, ModelError> {
    let text = read_text(path)?;
    let index: Index =
        serde_json::from_str(&text).map_err(|error| ModelError::Json(error).in_file(path))?;
    for (tensor, file) in &index.weight_map {
        if !is_file_name(file) {
            let (tensor, file) = (tensor.clone(), file.clone());
            return Err(ModelError::IndexFileName { tensor, file }.in_file(path));
        }
    }
    Ok(index.weight_map)
}

/// A plain name: an index must not reach outside its directory.
fn is_file_name(file: &str) -> bool {
    let mut components = Path::new(file).components();
    matches!(
        (components.next(), components.next()),
        (Some(Component::Normal(_)), None)
    )
}

/// The only safetensors file of a directory that has neither of the usual names.
fn only_safetensors(directory: &Path) -> Result<PathBuf, ModelError> {
    let names = fs::read_dir(directory).and_then(|entries| {
        let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
        let names = entries.map(|entry| entry.map(name));
        names.collect::<io::Result<Vec<String>>>()
    });
    let mut names = reading(directory, names)?;
    names.sort();
    let path = directory.to_owned();
    if names.iter().any(|name| name == "adapter_config.json") {
        return Err(ModelError::AdapterAsBase(path));
    }
    let is_a = |name: &str, wanted: &str| {
        let extension = Path::new(name).extension();
        extension.is_some_and(|extension| extension == wanted)
    };
    let (mut files, others): (Vec<_>, Vec<_>) =
        (names.into_iter()).partition(|name| is_a(name, "safetensors"));
    let mut others = others.into_iter();
    match files.len() {
        0 => Err(
            match others.find(|name| is_a(name, "bin") || is_a(name, "pth")) {
                Some(file) => ModelError::PickleOnly {
                    directory: path,
                    file,
                },
                None => ModelError::NoWeights(path),
            },
        ),
        1 => Ok(directory.join(files.remove(0))),
        _ => Err(ModelError::AmbiguousWeights {
            directory: path,
            files,
        }),
    }
}

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use half::{bf16, f16};

use super::{
    CONFIG_FILE, KEY_PREFIX, MAGNITUDE, WEIGHTS_FILE, adapter::PeftAdapter, config::PeftLoraConfig,
    factor_names, modules::ModuleRules, notes::PeftNotes, weights::LoraWeights,
};
use crate::{
    checkpoint::{Checkpoint, HostTensor, Shard, TensorDtype},
    error::ModelError,
    files::read_text,
    projection::Projection,
};

const PICKLE_FILE: &str = "adapter_model.bin";

impl PeftAdapter {
    /// Reads `adapter_config.json` and `adapter_model.safetensors` in `directory`.
    ///
    /// # Errors
    /// If the files are missing, damaged or inconsistent, the adapter is more than plain `LoRA`, or a weight is not
    /// finite.
    pub fn load(directory: &Path) -> Result<Self, ModelError> {
        let (config, shard) = open(directory)?;
        let modules = modules(&config, &shard)?;
        // Loading does not need the notes.
        let notes = PeftNotes::in_header(&shard).ok().flatten();
        Ok(Self {
            config,
            modules,
            base: notes.and_then(|notes| notes.base),
        })
    }

    /// Checks that `directory` has both files of an adapter with their full lengths; reads no weight.
    ///
    /// # Errors
    /// If a file is missing or cut off.
    pub fn check(directory: &Path) -> Result<(), ModelError> {
        open(directory).map(drop)
    }
}

impl PeftAdapter {
    /// Compares the base weights that PEFT saves with an adapter of the embedding or the output projection with those of
    /// the model in `base`: loading such an adapter replaces the model's in PEFT, but not here.
    ///
    /// # Errors
    /// [`ModelError::OtherCopy`], or if a file is missing or damaged.
    pub fn check_copies(directory: &Path, base: &Path) -> Result<(), ModelError> {
        let path = directory.join(WEIGHTS_FILE);
        let shard = Shard::read(&path)?;
        for name in shard.names() {
            let (true, Some(info)) = (is_copy_of_base(&name), shard.info(&name)) else {
                continue;
            };
            let copy = shard.tensor(&name, info)?;
            let checkpoint = Checkpoint::open(base)?;
            let own = name.trim_start_matches(KEY_PREFIX);
            let own = own.replace(".base_layer.weight", ".weight");
            let own = checkpoint
                .tensor(&own)
                .or_else(|_| checkpoint.tensor("model.embed_tokens.weight"))?;
            let rounded = |value: f32| match copy.dtype {
                TensorDtype::Float32 => value,
                TensorDtype::Float16 => f16::from_f32(value).to_f32(),
                TensorDtype::Bfloat16 => bf16::from_f32(value).to_f32(),
            };
            let own_values = own.to_f32().into_iter().map(rounded);
            if copy.shape != own.shape || !own_values.eq(copy.to_f32()) {
                let tensor = name;
                return Err(ModelError::OtherCopy { tensor, path });
            }
        }
        Ok(())
    }
}

/// Reads both files.
fn open(directory: &Path) -> Result<(PeftLoraConfig, Shard), ModelError> {
    if let Some(kept) = interrupted_save(directory) {
        return Err(ModelError::InterruptedSave {
            path: directory.into(),
            kept,
        });
    }
    let config_path = directory.join(CONFIG_FILE);
    let config = PeftLoraConfig::from_json(&read_text(&config_path)?)
        .map_err(|error| error.in_file(config_path))?;

    let path = directory.join(WEIGHTS_FILE);
    if !path.exists() && directory.join(PICKLE_FILE).exists() {
        let (directory, file) = (directory.into(), PICKLE_FILE.to_owned());
        return Err(ModelError::PickleOnly { directory, file });
    }
    Ok((config, Shard::read(&path)?))
}

/// The previous adapter of `directory`, left by a save that was cut off.
fn interrupted_save(directory: &Path) -> Option<PathBuf> {
    if directory.exists() {
        return None;
    }
    let prefix = format!("{}.old-", directory.file_name()?.to_str()?);
    let entries = std::fs::read_dir(directory.parent()?).ok()?;
    let left = entries.filter_map(|entry| {
        let entry = entry.ok()?;
        let name = entry.file_name();
        name.to_str()?.starts_with(&prefix).then(|| entry.path())
    });
    left.max()
}

fn modules(
    config: &PeftLoraConfig,
    shard: &Shard,
) -> Result<BTreeMap<String, LoraWeights>, ModelError> {
    let names = shard.names();
    // A, B and magnitude by module.
    let mut found: BTreeMap<&str, [Option<HostTensor<'_>>; 3]> = BTreeMap::new();
    let mut adapter_name = None;
    for name in &names {
        let unexpected = || ModelError::UnexpectedAdapterTensor {
            tensor: name.clone(),
            path: shard.path().to_owned(),
        };
        if is_copy_of_base(name) {
            continue;
        }
        let key = Key::parse(name).ok_or_else(unexpected)?;
        // A file with PEFT's adapter name in its keys has one adapter only.
        if *adapter_name.get_or_insert(key.adapter) != key.adapter {
            return Err(unexpected());
        }
        let info = shard.info(name).ok_or_else(unexpected)?;
        let factors = found.entry(key.module).or_default();
        factors[key.part as usize] = Some(shard.tensor(name, info)?);
    }
    if found.is_empty() {
        return Err(ModelError::EmptyAdapter(shard.path().to_owned()));
    }
    let rules = ModuleRules::new(config)
        .map_err(|error| error.in_file(shard.path().with_file_name(CONFIG_FILE)))?;
    found
        .into_iter()
        .map(|(module, [a, b, magnitude])| {
            let half = |missing| ModelError::HalfAdapter {
                module: module.to_owned(),
                missing,
                path: shard.path().to_owned(),
            };
            let [name_a, name_b] = factor_names(module);
            let a = a.ok_or_else(|| half(name_a))?;
            let b = b.ok_or_else(|| half(name_b))?;
            let weights = weights(config, &rules, module, [&a, &b], magnitude.as_ref());
            let weights = weights.map_err(|error| error.in_file(shard.path()))?;
            Ok((module.to_owned(), weights))
        })
        .collect()
}

fn weights(
    config: &PeftLoraConfig,
    rules: &ModuleRules<'_>,
    module: &str,
    [a, b]: [&HostTensor<'_>; 2],
    magnitude: Option<&HostTensor<'_>>,
) -> Result<LoraWeights, ModelError> {
    let name = || module.to_owned();
    if magnitude.is_some() != config.use_dora {
        return Err(ModelError::Magnitude {
            module: name(),
            use_dora: config.use_dora,
        });
    }
    if magnitude.is_some() && module == Projection::EmbedTokens.path() {
        return Err(ModelError::Dora {
            module: name(),
            problem: "is not supported for the embedding",
        });
    }
    let (r, d_in, d_out) = match (a.shape, b.shape) {
        (&[r, d_in], &[d_out, columns]) if columns == r && ![r, d_in, d_out].contains(&0) => {
            (r, d_in, d_out)
        }
        _ => {
            return Err(ModelError::AdapterFactors {
                module: name(),
                a: a.shape.to_vec(),
                b: b.shape.to_vec(),
            });
        }
    };
    if !rules.targets(module) {
        return Err(ModelError::NotTargeted(name()));
    }
    let expected = rules.rank(module);
    if r != expected {
        return Err(ModelError::AdapterRank {
            module: name(),
            expected,
            found: r,
        });
    }
    let lora_alpha = rules.alpha(module);
    let weights = LoraWeights {
        r,
        lora_alpha,
        scale: config.scale(r, lora_alpha),
        a: a.to_f32(),
        b: b.to_f32(),
        magnitude: magnitude.map(HostTensor::to_f32),
        d_in,
        d_out,
    };
    weights.check(module)?;
    Ok(weights)
}

/// True for the frozen weights that PEFT adds to an adapter of the embedding or the output projection.
fn is_copy_of_base(name: &str) -> bool {
    let module = name
        .strip_prefix(KEY_PREFIX)
        .and_then(|path| path.strip_suffix(".base_layer.weight"));
    module.is_some_and(|module| Projection::ENDS.iter().any(|end| end.path() == module))
}

/// The place of a tensor in its module.
#[derive(Clone, Copy)]
enum Part {
    A,
    B,
    Magnitude,
}

/// The parts of a tensor's name.
struct Key<'a> {
    module: &'a str,
    part: Part,
    /// PEFT's name of the adapter, which newer versions leave out.
    adapter: Option<&'a str>,
}

impl<'a> Key<'a> {
    /// From `base_model.model.<module>.lora_<A|B>[.<adapter>].weight`, or of the embedding
    /// `base_model.model.<module>.lora_embedding_<A|B>[.<adapter>]`, or of a magnitude
    /// `base_model.model.<module>.lora_magnitude_vector[.<adapter>.weight]`.
    fn parse(name: &'a str) -> Option<Self> {
        let path = name.strip_prefix(KEY_PREFIX)?;
        let (path, [a, b]) = match path.strip_suffix(".weight") {
            Some(path) => (path, [".lora_A", ".lora_B"]),
            None => (path, [".lora_embedding_A", ".lora_embedding_B"]),
        };
        let magnitude = format!(".{MAGNITUDE}");
        let names = [(a, Part::A), (b, Part::B), (&*magnitude, Part::Magnitude)];
        let mut names = names.into_iter();
        let (part, (module, rest)) =
            names.find_map(|(name, part)| Some((part, path.rsplit_once(name)?)))?;
        let adapter = match rest.strip_prefix('.') {
            None if rest.is_empty() => None,
            Some(adapter) if !adapter.is_empty() && !adapter.contains('.') => Some(adapter),
            _ => return None,
        };
        (!module.is_empty()).then_some(Self {
            module,
            part,
            adapter,
        })
    }
}

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use super::{
    CONFIG_FILE, KEY_PREFIX, WEIGHTS_FILE, adapter::PeftAdapter, config::PeftLoraConfig,
    modules::ModuleRules, weights::LoraWeights,
};
use crate::{
    checkpoint::{HostTensor, Shard},
    error::ModelError,
    files::read_text,
};

const PICKLE_FILE: &str = "adapter_model.bin";

pub(super) fn load(directory: &Path) -> Result<PeftAdapter, ModelError> {
    let (config, shard) = open(directory)?;
    let modules = modules(&config, &shard)?;
    Ok(PeftAdapter { config, modules })
}

/// Opens both files without reading weights.
pub(super) fn open(directory: &Path) -> Result<(PeftLoraConfig, Shard), ModelError> {
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
    Ok((config, Shard::open(&path)?))
}

/// The previous adapter of `directory`, left by a save that was cut off.
fn interrupted_save(directory: &Path) -> Option<PathBuf> {
    if directory.exists() {
        return None;
    }
    let prefix = format!("{}.old-", directory.file_name()?.to_str()?);
    let entries = std::fs::read_dir(directory.parent()?).ok()?;
    let mut kept: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            path.file_name()
                .and_then(|n| n.to_str())
                .is_some_and(|n| n.starts_with(&prefix))
        })
        .collect();
    kept.sort();
    kept.pop()
}

/// The tensors of one module found so far.
#[derive(Default)]
struct Factors<'a> {
    a: Option<HostTensor<'a>>,
    b: Option<HostTensor<'a>>,
}

fn modules(
    config: &PeftLoraConfig,
    shard: &Shard,
) -> Result<BTreeMap<String, LoraWeights>, ModelError> {
    let names = shard.names();
    let mut found: BTreeMap<&str, Factors<'_>> = BTreeMap::new();
    let mut adapter_name = None;
    for name in &names {
        let unexpected = || ModelError::UnexpectedAdapterTensor {
            tensor: name.clone(),
            path: shard.path().to_owned(),
        };
        let key = Key::parse(name).ok_or_else(unexpected)?;
        // A file that keeps PEFT's name of the adapter in its keys has one adapter only.
        if *adapter_name.get_or_insert(key.adapter) != key.adapter {
            return Err(unexpected());
        }
        let info = shard.info(name).ok_or_else(unexpected)?;
        let factors = found.entry(key.module).or_default();
        let factor = if key.is_a {
            &mut factors.a
        } else {
            &mut factors.b
        };
        *factor = Some(shard.tensor(name, info)?);
    }
    if found.is_empty() {
        return Err(ModelError::EmptyAdapter {
            path: shard.path().to_owned(),
        });
    }
    let rules = ModuleRules::new(config)?;
    found
        .into_iter()
        .map(|(module, factors)| {
            let half = |missing| ModelError::HalfAdapter {
                module: module.to_owned(),
                missing,
                path: shard.path().to_owned(),
            };
            let a = factors.a.ok_or_else(|| half("lora_A"))?;
            let b = factors.b.ok_or_else(|| half("lora_B"))?;
            Ok((module.to_owned(), weights(config, &rules, module, &a, &b)?))
        })
        .collect()
}

fn weights(
    config: &PeftLoraConfig,
    rules: &ModuleRules<'_>,
    module: &str,
    a: &HostTensor<'_>,
    b: &HostTensor<'_>,
) -> Result<LoraWeights, ModelError> {
    let (&[r, d_in], &[d_out, columns]) = (a.shape, b.shape) else {
        return Err(shapes_error(module, a, b));
    };
    if columns != r || r == 0 || d_in == 0 || d_out == 0 {
        return Err(shapes_error(module, a, b));
    }
    if !rules.targets(module) {
        return Err(ModelError::NotTargeted {
            module: module.to_owned(),
        });
    }
    let expected = rules.rank(module);
    if r != expected {
        return Err(ModelError::AdapterRank {
            module: module.to_owned(),
            expected,
            found: r,
        });
    }
    let lora_alpha = rules.alpha(module);
    let scale = config.scale(r, lora_alpha);
    let weights = LoraWeights {
        r,
        lora_alpha,
        scale,
        a: a.to_f32(),
        b: b.to_f32(),
        d_in,
        d_out,
    };
    weights.check(module)?;
    Ok(weights)
}

fn shapes_error(module: &str, a: &HostTensor<'_>, b: &HostTensor<'_>) -> ModelError {
    ModelError::AdapterFactors {
        module: module.to_owned(),
        a: a.shape.to_vec(),
        b: b.shape.to_vec(),
    }
}

/// The parts of a tensor's name.
struct Key<'a> {
    module: &'a str,
    is_a: bool,
    /// PEFT's name of the adapter, which newer versions leave out.
    adapter: Option<&'a str>,
}

impl<'a> Key<'a> {
    /// From `base_model.model.<module>.lora_<A|B>[.<adapter>].weight`.
    fn parse(name: &'a str) -> Option<Self> {
        let path = name.strip_prefix(KEY_PREFIX)?.strip_suffix(".weight")?;
        let (module, is_a, rest) = match path.rsplit_once(".lora_A") {
            Some((module, rest)) => (module, true, rest),
            None => path
                .rsplit_once(".lora_B")
                .map(|(module, rest)| (module, false, rest))?,
        };
        let adapter = match rest.strip_prefix('.') {
            None if rest.is_empty() => None,
            Some(adapter) if !adapter.is_empty() && !adapter.contains('.') => Some(adapter),
            _ => return None,
        };
        (!module.is_empty()).then_some(Self {
            module,
            is_a,
            adapter,
        })
    }
}

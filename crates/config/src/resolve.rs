//! From what the file says to what the run is: defaults filled in, names and paths resolved.

use std::{collections::BTreeMap, path::PathBuf};

use crate::{
    AdapterConfig, ConfigError, DatasetConfig, DtypeChoice, EvalSettings, LoraSettings, RunConfig,
    SaveSettings, TrainSettings, Validation,
    file::{
        AdapterFile, DatasetFile, DefaultsFile, EvalFile, LoraFile, RunFile, SaveFile, TrainFile,
    },
    pipeline,
    place::Source,
    scheduler,
    suggest::Candidates,
    sweep::{self, Expansion},
    tree::Node,
    validate::{ALL_LINEAR, TARGET_MODULES},
};

/// Fills in what the file leaves open. Ranges are not checked here, those of
/// `pipeline`, `scheduler` and `sweep` apart.
///
/// # Errors
///
/// A pipeline, scheduler or sweep that cannot be; an adapter that names no dataset where there are several, or one that
/// does not exist.
pub(crate) fn resolve(
    file: RunFile,
    expansion: &Expansion,
    tree: &Node,
    source: &Source<'_>,
) -> Result<RunConfig, ConfigError> {
    let (device, pipeline) = pipeline::resolve(file.pipeline, file.device, tree, source)?;
    let scheduler = scheduler::resolve(file.scheduler, tree, source)?;
    let seed = file.seed.unwrap_or(0);
    let defaults = file.defaults.unwrap_or_default();
    let datasets: BTreeMap<String, DatasetConfig> = file
        .datasets
        .into_iter()
        .map(|(name, written)| (name, dataset(written)))
        .collect();
    let adapters = file
        .adapters
        .into_iter()
        .enumerate()
        .map(|(index, written)| {
            let chosen = Chosen {
                index,
                expansion,
                tree,
                source,
                datasets: &datasets,
            };
            let dataset = chosen.dataset(written.dataset.as_ref().or(defaults.dataset.as_ref()))?;
            Ok(adapter(written, &defaults, dataset, seed))
        })
        .collect::<Result<_, ConfigError>>()?;
    let mut config = RunConfig {
        model: file.model.into(),
        output_dir: file.output_dir.unwrap_or_default().into(),
        device,
        dtype: file.dtype.unwrap_or(DtypeChoice::Auto),
        seed,
        gradient_checkpointing: file.gradient_checkpointing.unwrap_or(false),
        pipeline,
        scheduler,
        datasets,
        adapters,
        sweep: Vec::new(),
    };
    let sweeps = file.sweep.unwrap_or_default();
    config.sweep = sweep::resolve(sweeps, &config, expansion, tree, source)?;
    Ok(config)
}

fn dataset(written: DatasetFile) -> DatasetConfig {
    let validation = written.validation.unwrap_or(Validation::Fraction(0.0));
    DatasetConfig {
        path: written.path.items().iter().map(PathBuf::from).collect(),
        columns: written.columns,
        template: written.template,
        validation,
    }
}

/// Finds the dataset of one adapter.
struct Chosen<'a> {
    index: usize,
    expansion: &'a Expansion,
    tree: &'a Node,
    source: &'a Source<'a>,
    datasets: &'a BTreeMap<String, DatasetConfig>,
}

impl Chosen<'_> {
    fn dataset(&self, named: Option<&String>) -> Result<String, ConfigError> {
        let (location, key) = self.expansion.locate(self.tree, self.index, "dataset");
        let mut names = self.datasets.keys();
        match (named, names.next(), names.next()) {
            (Some(name), ..) if self.datasets.contains_key(name) => Ok(name.clone()),
            (None, Some(only), None) => Ok(only.clone()),
            (None, ..) => Err(ConfigError::MissingKey {
                place: self.source.place(location),
                key,
            }),
            (Some(name), ..) => Err(ConfigError::UnknownName {
                place: self.source.place(location),
                key,
                what: "dataset",
                name: name.clone(),
                valid: Candidates::of(name, self.datasets.keys().map(String::as_str)),
            }),
        }
    }
}

fn adapter(own: AdapterFile, shared: &DefaultsFile, dataset: String, seed: u64) -> AdapterConfig {
    AdapterConfig {
        name: own.name,
        dataset,
        priority: own.priority.or(shared.priority).unwrap_or(0),
        tenant: own
            .tenant
            .or_else(|| shared.tenant.clone())
            .unwrap_or_else(|| "default".to_owned()),
        init_from: own.init_from.map(PathBuf::from),
        seed: own.seed.or(shared.seed).unwrap_or(seed),
        lora: lora(&[own.lora.as_ref(), shared.lora.as_ref()]),
        train: train(&[own.train.as_ref(), shared.train.as_ref()]),
        eval: eval(&[own.eval.as_ref(), shared.eval.as_ref()]),
        save: save(&[own.save.as_ref(), shared.save.as_ref()]),
    }
}

/// The first of the layers that sets the field.
fn first<L, T: Clone>(layers: &[Option<&L>; 2], field: fn(&L) -> &Option<T>) -> Option<T> {
    layers
        .iter()
        .flatten()
        .find_map(|&layer| field(layer).clone())
}

fn lora(layers: &[Option<&LoraFile>; 2]) -> LoraSettings {
    let base = LoraSettings::default();
    LoraSettings {
        r: first(layers, |l| &l.r).unwrap_or(base.r),
        lora_alpha: first(layers, |l| &l.lora_alpha).unwrap_or(base.lora_alpha),
        lora_dropout: first(layers, |l| &l.lora_dropout).unwrap_or(base.lora_dropout),
        target_modules: first(layers, |l| &l.target_modules)
            .map_or(base.target_modules, |modules| {
                named_modules(modules.items())
            }),
        use_rslora: first(layers, |l| &l.use_rslora).unwrap_or(base.use_rslora),
    }
}

/// The modules behind the names: `all-linear` is every one.
fn named_modules(names: &[String]) -> Vec<String> {
    if names == [ALL_LINEAR] {
        TARGET_MODULES.map(str::to_owned).to_vec()
    } else {
        names.to_vec()
    }
}

fn train(layers: &[Option<&TrainFile>; 2]) -> TrainSettings {
    let base = TrainSettings::default();
    TrainSettings {
        batch_size: first(layers, |t| &t.batch_size).unwrap_or(base.batch_size),
        gradient_accumulation_steps: first(layers, |t| &t.gradient_accumulation_steps)
            .unwrap_or(base.gradient_accumulation_steps),
        max_seq_len: first(layers, |t| &t.max_seq_len).unwrap_or(base.max_seq_len),
        num_epochs: first(layers, |t| &t.num_epochs).unwrap_or(base.num_epochs),
        max_steps: first(layers, |t| &t.max_steps).unwrap_or(base.max_steps),
        learning_rate: first(layers, |t| &t.learning_rate).unwrap_or(base.learning_rate),
        lr_scheduler_type: first(layers, |t| &t.lr_scheduler_type)
            .unwrap_or(base.lr_scheduler_type),
        warmup_steps: first(layers, |t| &t.warmup_steps).unwrap_or(base.warmup_steps),
        warmup_ratio: first(layers, |t| &t.warmup_ratio).unwrap_or(base.warmup_ratio),
        weight_decay: first(layers, |t| &t.weight_decay).unwrap_or(base.weight_decay),
        adam_beta1: first(layers, |t| &t.adam_beta1).unwrap_or(base.adam_beta1),
        adam_beta2: first(layers, |t| &t.adam_beta2).unwrap_or(base.adam_beta2),
        adam_epsilon: first(layers, |t| &t.adam_epsilon).unwrap_or(base.adam_epsilon),
        max_grad_norm: first(layers, |t| &t.max_grad_norm).unwrap_or(base.max_grad_norm),
        shuffle: first(layers, |t| &t.shuffle).unwrap_or(base.shuffle),
        train_on_prompt: first(layers, |t| &t.train_on_prompt).unwrap_or(base.train_on_prompt),
    }
}

fn eval(layers: &[Option<&EvalFile>; 2]) -> EvalSettings {
    let base = EvalSettings::default();
    EvalSettings {
        steps: first(layers, |e| &e.steps).unwrap_or(base.steps),
        patience: first(layers, |e| &e.patience).unwrap_or(base.patience),
    }
}

fn save(layers: &[Option<&SaveFile>; 2]) -> SaveSettings {
    let base = SaveSettings::default();
    SaveSettings {
        steps: first(layers, |s| &s.steps).unwrap_or(base.steps),
        keep: first(layers, |s| &s.keep).unwrap_or(base.keep),
    }
}

//! From what the file says to what the run is: defaults filled in, names and paths resolved.

use std::{collections::BTreeMap, path::PathBuf};

use crate::{
    ConfigError, DatasetConfig, DtypeChoice, RunConfig, Validation,
    file::{DatasetFile, RunFile},
    pipeline,
    place::Source,
    scheduler,
    suggest::Candidates,
    sweep::{self, Expansion},
    tree::Node,
};

/// Fills in what the file leaves open. Ranges are not checked here, those of
/// `pipeline`, `scheduler` and `sweep` apart.
///
/// # Errors
///
/// A pipeline, scheduler or sweep that cannot be; an adapter that names no dataset where there are
/// several, or one that does not exist.
pub(crate) fn resolve(
    file: RunFile,
    expansion: &Expansion,
    tree: &Node,
    source: &Source<'_>,
) -> Result<RunConfig, ConfigError> {
    let (device, pipeline) = pipeline::resolve(file.pipeline, file.device, tree, source)?;
    scheduler::check(&file.scheduler, tree, source)?;
    let datasets: BTreeMap<String, DatasetConfig> = file
        .datasets
        .into_iter()
        .map(|(name, written)| (name, dataset(written)))
        .collect();
    let mut adapters = file.adapters;
    for (index, adapter) in adapters.iter_mut().enumerate() {
        let chosen = Chosen {
            index,
            expansion,
            tree,
            source,
            datasets: &datasets,
        };
        adapter.dataset = chosen.dataset(&adapter.dataset)?;
    }
    let mut config = RunConfig {
        model: file.model.into(),
        output_dir: file.output_dir.unwrap_or_default().into(),
        device,
        dtype: file.dtype.unwrap_or(DtypeChoice::Auto),
        seed: file.seed.unwrap_or(0),
        gradient_checkpointing: file.gradient_checkpointing.unwrap_or(false),
        pipeline,
        scheduler: file.scheduler,
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
    /// `named` is empty where none is.
    fn dataset(&self, named: &str) -> Result<String, ConfigError> {
        let (location, key) = self.expansion.locate(self.tree, self.index, "dataset");
        let mut names = self.datasets.keys();
        match (named, names.next(), names.next()) {
            (name, ..) if self.datasets.contains_key(name) => Ok(name.to_owned()),
            ("", Some(only), None) => Ok(only.clone()),
            ("", ..) => Err(ConfigError::MissingKey {
                place: self.source.place(location),
                key,
            }),
            (name, ..) => Err(ConfigError::UnknownName {
                place: self.source.place(location),
                key,
                what: "dataset",
                name: name.to_owned(),
                valid: Candidates::of(name, self.datasets.keys().map(String::as_str)),
            }),
        }
    }
}

//! A task's specification in the queue: a configuration of one adapter, with every default filled in and
//! every path absolute.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use loraloom_config::{
    AdapterConfig, ConfigError, DatasetConfig, EarlyStopping, LoadOptions, RunConfig, SweepConfig,
    Validation,
};
use serde::Serialize;

use crate::Result;

/// Name of the text in messages.
const NAME: &str = "the task's specification";

#[derive(Serialize)]
struct SpecFile<'a> {
    model: &'a Path,
    seed: u64,
    datasets: BTreeMap<&'a str, &'a DatasetConfig>,
    adapters: [&'a AdapterConfig; 1],
    sweep: Vec<SweepConfig>,
}

/// A task's specification.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Spec {
    pub(crate) adapter: AdapterConfig,
    pub(crate) dataset: DatasetConfig,
    /// Seed of the validation split.
    pub(crate) seed: u64,
    pub(crate) sweep: Option<(String, Option<EarlyStopping>)>,
}

impl Spec {
    /// The specification of an adapter in a configuration.
    pub(crate) fn of(config: &RunConfig, adapter: &AdapterConfig) -> Self {
        let dataset = config.datasets[&adapter.dataset].clone();
        let mut sweeps = config.sweep.iter();
        let sweep = sweeps.find(|sweep| sweep.adapters.contains(&adapter.name));
        Self {
            adapter: adapter.clone(),
            dataset,
            seed: config.seed,
            sweep: sweep.map(|sweep| (sweep.name.clone(), sweep.early_stopping.clone())),
        }
    }

    /// Writes YAML, for a server of this model.
    pub(crate) fn to_text(&self, model: &Path) -> Result<String, ConfigError> {
        let sweep = self.sweep.iter().map(|(name, stopping)| SweepConfig {
            name: name.clone(),
            adapters: vec![self.adapter.name.clone()],
            early_stopping: stopping.clone(),
        });
        let file = SpecFile {
            model,
            seed: self.seed,
            datasets: BTreeMap::from([(self.adapter.dataset.as_str(), &self.dataset)]),
            adapters: [&self.adapter],
            sweep: sweep.collect(),
        };
        serde_saphyr::to_string(&file).map_err(|error| ConfigError::Write(error.to_string()))
    }

    /// Reads YAML as a configuration, with overrides in the form `KEY=VALUE`; also returns warnings.
    pub(crate) fn configuration(
        text: &str,
        overrides: &[String],
    ) -> Result<(RunConfig, Vec<String>), ConfigError> {
        let options = LoadOptions {
            overrides: overrides.to_vec(),
            ..LoadOptions::default()
        };
        let loaded = RunConfig::load_yaml(text, Path::new(NAME), &options)?.complete()?;
        Ok((loaded.config, loaded.warnings))
    }

    /// Reads YAML.
    pub(crate) fn from_text(text: &str) -> Result<Self> {
        let (config, _) = Self::configuration(text, &[])?;
        Ok(Self::of(&config, &config.adapters[0]))
    }

    /// The files of its rows.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let mut files = self.dataset.path.clone();
        if let Validation::File(path) = &self.dataset.validation {
            files.push(path.clone());
        }
        files
    }
}

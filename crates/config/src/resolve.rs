//! Resolves the values of the file: fills in defaults, names and paths.

use std::{collections::BTreeMap, path::PathBuf};

use crate::{
    ConfigError, DatasetConfig, DtypeChoice, RunConfig, Validation,
    file::{DatasetFile, RunFile},
    pipeline, sweep,
    written_config::WrittenConfig,
};

/// Fills in the values that the file leaves open. Checks the ranges of `pipeline`, `scheduler` and
/// `sweep`, and no others.
///
/// # Errors
/// An invalid pipeline, scheduler or sweep; an adapter that names no dataset where there are
/// several, or one that does not exist.
pub(crate) fn resolve(file: RunFile, written: WrittenConfig<'_>) -> Result<RunConfig, ConfigError> {
    let (device, pipeline) = pipeline::resolve(file.pipeline, file.device, written)?;
    file.scheduler.check(written)?;
    let datasets: BTreeMap<String, DatasetConfig> = file
        .datasets
        .into_iter()
        .map(|(name, file)| (name, dataset(file)))
        .collect();
    let mut adapters = file.adapters;
    for (index, adapter) in adapters.iter_mut().enumerate() {
        adapter.dataset = dataset_of(index, &adapter.dataset, &datasets, written)?;
        adapter.fill_defaults();
    }
    let mut config = RunConfig {
        model: file.model.into(),
        output_dir: file.output_dir.unwrap_or_default().into(),
        device,
        dtype: file.dtype.unwrap_or(DtypeChoice::Auto),
        quantization: file.quantization,
        seed: file.seed.unwrap_or(0),
        gradient_checkpointing: file.gradient_checkpointing.unwrap_or(false),
        pipeline,
        scheduler: file.scheduler,
        datasets,
        adapters,
        sweep: Vec::new(),
    };
    config.sweep = sweep::resolve(file.sweep.unwrap_or_default(), &config, written)?;
    Ok(config)
}

fn dataset(file: DatasetFile) -> DatasetConfig {
    DatasetConfig {
        path: file.path.items().iter().map(PathBuf::from).collect(),
        columns: file.columns,
        template: file.template,
        validation: file.validation.unwrap_or(Validation::Fraction(0.0)),
    }
}

/// The dataset of an adapter; `named` is empty if the adapter names none.
fn dataset_of(
    adapter: usize,
    named: &str,
    datasets: &BTreeMap<String, DatasetConfig>,
    written: WrittenConfig<'_>,
) -> Result<String, ConfigError> {
    let (location, key) = written.of_adapter(adapter, "dataset");
    let mut names = datasets.keys();
    match (named, names.next(), names.next()) {
        (name, ..) if datasets.contains_key(name) => Ok(name.to_owned()),
        ("", Some(only), None) => Ok(only.clone()),
        ("", ..) => Err(written.source.missing(location, key)),
        (name, ..) => {
            let known = datasets.keys().map(String::as_str);
            Err(written
                .source
                .unknown_name(location, key, "dataset", name, known))
        }
    }
}

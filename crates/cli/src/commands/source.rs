//! Resolves the models and adapters of `--run`, `--model` and `--adapter`.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use loraloom_model::LlamaConfig;
use loraloom_trainer::{check_model, model_config};

use crate::{
    arguments::{AdapterArguments, QuantizationArgument, SourceArguments},
    failure::Failure,
    printer::Printer,
    run_directory,
};

/// The name of the model without an adapter, in text. No adapter of a run has a space in its name.
pub(super) const BASE: &str = "base model";

/// Warns of an adapter that was trained over another model: adapters work over any model of the same shape.
pub(super) fn say_another_base(adapter: &Path, model: &Path, printer: &Printer) {
    let (adapter, model) = (adapter.display(), model.display());
    printer.warning(&format!(
        "`{adapter}` was trained over another model than `{model}`: weights or config.json differ"
    ));
}

impl SourceArguments {
    /// Directory of the model.
    ///
    /// # Errors
    /// If there is no run, or `--model` is not the run's model.
    pub(super) fn model(&self) -> anyhow::Result<PathBuf> {
        let model = match (&self.model, &self.run) {
            (Some(model), _) => model.clone(),
            (None, Some(run)) => run_directory::config(run)?.model,
            (None, None) => return Err(Failure::usage("neither --model nor --run is given").into()),
        };
        if let Some(run) = &self.run {
            check_model(&model, run)?;
        }
        Ok(model)
    }

    /// The configuration of that model, as it is stored where a command computes: as in the run, unless `asked`.
    ///
    /// # Errors
    /// If there is no run, or the model cannot be read or cannot be stored so.
    pub(super) fn config(
        &self,
        model: &Path,
        asked: Option<QuantizationArgument>,
    ) -> anyhow::Result<LlamaConfig> {
        let of_run = match &self.run {
            Some(run) => run_directory::config(run)?.quantization,
            None => None,
        };
        let quantization = match asked {
            None => of_run,
            Some(QuantizationArgument::None) => None,
            Some(asked) => of_run.or(asked.settings()),
        };
        Ok(model_config(model, quantization.as_ref())?)
    }

    /// Directory of an adapter: a name in the run, or the directory itself.
    ///
    /// # Errors
    /// If the run has no such adapter and it is not an adapter's directory.
    pub(super) fn adapter(&self, spec: &str) -> Result<PathBuf, Failure> {
        let path = PathBuf::from(spec);
        let Some(run) = &self.run else {
            return Ok(path);
        };
        match run_directory::adapter(run, spec) {
            Err(_) if path.join("adapter_config.json").exists() => Ok(path),
            found => found,
        }
    }
}

impl AdapterArguments {
    /// Names and directories of adapters, each once: the named ones, or all of the run.
    ///
    /// # Errors
    /// As [`SourceArguments::adapter`].
    pub(super) fn adapters(&self) -> Result<Vec<(String, PathBuf)>, Failure> {
        let mut specs = self.adapters.clone();
        let mut seen = BTreeSet::new();
        specs.retain(|spec| seen.insert(spec.clone()));
        if let Some(run) = self.source.run.as_ref().filter(|_| specs.is_empty()) {
            specs = run_directory::adapters(run);
        }
        let found = specs.into_iter().map(|spec| {
            let directory = self.source.adapter(&spec)?;
            Ok((spec, directory))
        });
        found.collect()
    }
}

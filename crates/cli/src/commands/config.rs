//! `config show`, `config schema`, `config import`.

use std::path::Path;

use loraloom_config::{LoadOptions, Loaded, RunConfig, json_schema};

use crate::{
    arguments::{ConfigArguments, ConfigCommand},
    exit::Exit,
    failure::Failure,
    hub,
    printer::Printer,
};

pub(super) fn run(command: &ConfigCommand, printer: &Printer) -> anyhow::Result<Exit> {
    match command {
        ConfigCommand::Show { config, json } => {
            let loaded = RunConfig::load_with(&config.config, &options(config))?;
            let config = shown(loaded, printer);
            if *json {
                printer.json(&config.written()?)?;
            } else {
                printer.data(&config.to_yaml()?)?;
            }
        }
        ConfigCommand::Schema => printer.json(&json_schema())?,
        ConfigCommand::Import { path, base_model } => {
            let options = LoadOptions {
                base_model: base_model.clone(),
                ..LoadOptions::default()
            };
            let config = shown(RunConfig::load_with(path, &options)?, printer);
            printer.data(&config.to_yaml()?)?;
        }
    }
    Ok(Exit::Success)
}

/// A configuration that may be incomplete, after printing its warnings.
fn shown(loaded: Loaded, printer: &Printer) -> RunConfig {
    printer.warnings(&loaded.warnings);
    for absent in &loaded.absent {
        printer.warning(&absent.to_string());
        printer.hint(&absent.hint);
    }
    loaded.config
}

/// Load options of the command line.
pub(super) fn options(arguments: &ConfigArguments) -> LoadOptions {
    LoadOptions {
        overrides: arguments.overrides.clone(),
        base_model: arguments.base_model.clone(),
        ..LoadOptions::default()
    }
}

/// Loads a configuration whose models exist, and prints its warnings.
pub(super) fn load(
    options: &LoadOptions,
    arguments: &ConfigArguments,
    printer: &Printer,
) -> anyhow::Result<RunConfig> {
    let loaded = complete(&arguments.config, options, printer)?;
    printer.warnings(&loaded.warnings);
    Ok(loaded.config)
}

/// Loads a configuration, and downloads missing models and datasets.
pub(super) fn complete(
    path: &Path,
    options: &LoadOptions,
    printer: &Printer,
) -> anyhow::Result<Loaded> {
    hub::with_downloads(options, printer, || {
        Ok(RunConfig::load_with(path, options)?.complete()?)
    })
}

/// Refuses overrides of keys that a command does not use, with a reason.
pub(super) fn refuse_unused(
    overrides: &[String],
    keys: &[&str],
    reason: &str,
) -> Result<(), Failure> {
    let section = |text: &String| {
        let end = text.find(['.', '=']).unwrap_or(text.len());
        text[..end].trim().to_owned()
    };
    let mut overrides = overrides.iter();
    match overrides.find(|text| keys.contains(&section(text).as_str())) {
        Some(text) => Err(Failure::usage(format!(
            "--set {text}: it has no effect, since {reason}"
        ))),
        None => Ok(()),
    }
}

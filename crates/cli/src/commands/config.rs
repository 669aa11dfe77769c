//! `config show`, `config schema`, `config import`.

use loraloom_config::{LoadOptions, Loaded, RunConfig, json_schema};

use crate::{
    arguments::{ConfigArguments, ConfigCommand},
    exit::Exit,
    failure::Failure,
    printer::Printer,
};

pub(super) fn run(command: &ConfigCommand, printer: &Printer) -> anyhow::Result<Exit> {
    match command {
        ConfigCommand::Show { config, json } => {
            let config = load(&options(config), config, printer)?;
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
            let Loaded { config, warnings } = RunConfig::load_with(path, &options)?;
            printer.warnings(&warnings);
            printer.data(&config.to_yaml()?)?;
        }
    }
    Ok(Exit::Success)
}

/// Load options of the command line.
pub(super) fn options(arguments: &ConfigArguments) -> LoadOptions {
    LoadOptions {
        overrides: arguments.overrides.clone(),
        base_model: arguments.base_model.clone(),
        ..LoadOptions::default()
    }
}

/// Loads a configuration and prints its warnings.
pub(super) fn load(
    options: &LoadOptions,
    arguments: &ConfigArguments,
    printer: &Printer,
) -> anyhow::Result<RunConfig> {
    let Loaded { config, warnings } = RunConfig::load_with(&arguments.config, options)?;
    printer.warnings(&warnings);
    Ok(config)
}

/// Refuses overrides of keys that a command does not use, for a reason.
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
            "--set {text}: it does nothing, since {reason}"
        ))),
        None => Ok(()),
    }
}

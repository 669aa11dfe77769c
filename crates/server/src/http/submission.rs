//! A configuration in the body of a request.

use std::path::Path;

use loraloom_config::{LoadOptions, Loaded, RunConfig, Validation};

use super::error::HttpError;
use crate::{Client, ServerError};

/// Stands for the file in messages.
const NAME: &str = "body";

/// Loads JSON with the keys of a configuration file. Paths must be absolute: a body has no folder that relative ones
/// could start from.
///
/// # Errors
/// Those of the configuration; a relative path; a model or dataset of the Hub that is not on this machine.
pub(crate) fn load(text: &str, client: &Client) -> Result<Loaded, HttpError> {
    let options = LoadOptions {
        default_model: Some(client.model().to_owned()),
        ..LoadOptions::default()
    };
    let loaded = RunConfig::load_json(text, Path::new(NAME), &options);
    let loaded = loaded.and_then(Loaded::complete);
    let loaded = loaded.map_err(ServerError::from)?;
    match relative(&loaded.config, client.model()) {
        None => Ok(loaded),
        Some((key, path)) => {
            let path = path.display();
            let reason =
                format!("`{path}` is relative: write the whole path of a file of the server");
            Err(HttpError::field(key, reason))
        }
    }
}

/// A relative path and its key. That of the model may be the server's own.
fn relative<'a>(config: &'a RunConfig, model: &Path) -> Option<(String, &'a Path)> {
    let of_model = [("model".to_owned(), config.model.as_path())];
    let of_model = of_model.into_iter().filter(|(_, path)| *path != model);
    let data = config.datasets.iter().flat_map(|(name, dataset)| {
        let key = move |key: &str| format!("datasets.{name}.{key}");
        let validation = match &dataset.validation {
            Validation::File(path) => Some((key("validation"), path.as_path())),
            Validation::Fraction(_) => None,
        };
        let files = dataset.path.iter();
        let files = files.map(move |path| (key("path"), path.as_path()));
        files.chain(validation)
    });
    let begun = config.adapters.iter().filter_map(|adapter| {
        let key = format!("adapters.{}.init_from", adapter.name);
        Some((key, adapter.init_from.as_deref()?))
    });
    let mut paths = of_model.chain(data).chain(begun);
    paths.find(|(_, path)| path.is_relative())
}

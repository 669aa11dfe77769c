//! The way in: a file, overrides and a few options of the caller become a run.

use std::path::{Path, PathBuf};

use crate::{
    ConfigError, RunConfig,
    file::RunFile,
    mlora, overrides,
    place::Source,
    resolve::resolve,
    sweep,
    tree::{Node, Value, read_file, read_text},
    validate::validate,
};

/// What the caller adds to a configuration file.
#[derive(Debug, Clone, Default)]
pub struct LoadOptions {
    /// Overrides in the form `KEY=VALUE`, applied in order after the other options.
    pub overrides: Vec<String>,
    /// Replaces `model`; an mLoRA file has none of its own.
    pub base_model: Option<PathBuf>,
    /// Replaces `output_dir`.
    pub output_dir: Option<PathBuf>,
    /// What `model` is where the file names none.
    pub default_model: Option<PathBuf>,
    /// Whether there may be no adapters and no datasets, since they come later.
    pub without_adapters: bool,
}

/// A configuration and what is odd about it.
#[derive(Debug, Clone, PartialEq)]
pub struct Loaded {
    /// The resolved configuration.
    pub config: RunConfig,
    /// Settings that are legal but probably not meant, a sentence each.
    pub warnings: Vec<String>,
}

impl RunConfig {
    /// Loads a configuration file with overrides in the form `KEY=VALUE`.
    ///
    /// See [`RunConfig::load_with`].
    ///
    /// # Errors
    ///
    /// As [`RunConfig::load_with`].
    pub fn load(path: &Path, overrides: &[String]) -> Result<Loaded, ConfigError> {
        let options = LoadOptions {
            overrides: overrides.to_vec(),
            ..LoadOptions::default()
        };
        Self::load_with(path, &options)
    }

    /// Loads a configuration file: YAML, TOML or JSON by its extension. An mLoRA configuration is
    /// recognised by its keys and translated; overrides apply to the translation.
    ///
    /// Relative paths of models, data and adapters are looked up below the working directory,
    /// then below the file's directory. Whether they exist is not checked. `output_dir` stays
    /// relative to the working directory; its default is `runs/` and the file's stem.
    ///
    /// # Errors
    ///
    /// The first mistake found, with the key, its place and where possible the key meant.
    pub fn load_with(path: &Path, options: &LoadOptions) -> Result<Loaded, ConfigError> {
        let source = Source {
            path,
            overrides: &options.overrides,
        };
        let tree = read_file(&source)?;
        Self::from_tree(tree, &source, options)
    }

    /// Loads a configuration from YAML text, as [`load_with`](Self::load_with) does from a file; `name`
    /// stands for the file in messages, and relative paths are looked up below its directory.
    ///
    /// # Errors
    ///
    /// As [`RunConfig::load_with`].
    pub fn load_yaml(
        text: &str,
        name: &Path,
        options: &LoadOptions,
    ) -> Result<Loaded, ConfigError> {
        let source = Source {
            path: name,
            overrides: &options.overrides,
        };
        let tree = read_text(text, &source)?;
        Self::from_tree(tree, &source, options)
    }

    fn from_tree(
        mut tree: Node,
        source: &Source<'_>,
        options: &LoadOptions,
    ) -> Result<Loaded, ConfigError> {
        let is_mlora = mlora::is_mlora(&tree);
        let mut warnings = Vec::new();
        if is_mlora {
            tree = mlora::import(&tree, source, &mut warnings)?;
        }
        let given = [
            ("model", &options.base_model),
            ("output_dir", &options.output_dir),
        ];
        for (key, path) in given {
            if let Some(path) = path {
                tree.set(key, Node::string(path.to_string_lossy()));
            }
        }
        if let Some(model) = &options.default_model
            && tree.get("model").is_none()
        {
            tree.set("model", Node::string(model.to_string_lossy()));
        }
        let empty = [
            ("datasets", Value::Mapping(Vec::new())),
            ("adapters", Value::Sequence(Vec::new())),
        ];
        for (key, value) in empty {
            if options.without_adapters && tree.get(key).is_none() {
                tree.set(key, Node::new(value));
            }
        }
        sweep::flatten_grids(&mut tree);
        overrides::apply(&mut tree, source)?;
        sweep::flatten_grids(&mut tree);
        if is_mlora && tree.get("model").is_none() {
            return Err(ConfigError::MissingBaseModel {
                path: source.path.to_owned(),
            });
        }
        let expansion = sweep::expand(&mut tree, source)?;
        let file: RunFile = tree.deserialize(source, "")?;
        let config = resolve(file, &expansion, &tree, source)?;
        let empty = options.without_adapters && config.adapters.is_empty();
        warnings.extend(validate(&config, &expansion, &tree, source, empty)?);
        warnings.extend(sweep::warn(&config));
        Ok(Loaded { config, warnings })
    }

    /// The configuration as YAML that loads back to an equal one: every adapter with every field,
    /// nothing left to defaults.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Write`] if a path is not valid Unicode.
    pub fn to_yaml(&self) -> Result<String, ConfigError> {
        serde_saphyr::to_string(self).map_err(|error| ConfigError::Write(error.to_string()))
    }
}

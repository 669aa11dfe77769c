//! Loads a run from a file, overrides and a few options of the caller.

use std::path::{Path, PathBuf};

use loraloom_hub::Cache;

use crate::{
    Absent, ConfigError, RunConfig, Validation,
    file::{DefaultsFile, RunFile},
    merge::{is_null, merged, unset_nulls},
    mlora,
    objective::check_loss_types,
    overrides,
    paths::{self, Remarks},
    place::Source,
    resolve::resolve,
    sweep,
    tree::{Node, Value, read_file, read_json_text, read_text},
    validate::validate,
    written_config::WrittenConfig,
};

/// Options of the caller that change a configuration file.
#[derive(Debug, Clone, Default)]
pub struct LoadOptions {
    /// Overrides in the form `KEY=VALUE`, applied in order after the other options.
    pub overrides: Vec<String>,
    /// Replaces `model`; an mLoRA file has none of its own.
    pub base_model: Option<PathBuf>,
    /// Replaces `output_dir`.
    pub output_dir: Option<PathBuf>,
    /// `model` of a file that has none.
    pub default_model: Option<PathBuf>,
    /// Allows a configuration without adapters and datasets, for a server.
    pub without_adapters: bool,
    /// The cache of the Hugging Face Hub. By default the one that the environment names.
    pub hub_cache: Option<PathBuf>,
}

/// A configuration and warnings about it.
#[derive(Debug, Clone, PartialEq)]
pub struct Loaded {
    /// The resolved configuration.
    pub config: RunConfig,
    /// Legal but probably unintended settings, a sentence each.
    pub warnings: Vec<String>,
    /// Names of the Hugging Face Hub that neither the cache nor the file's folder has. Their values are paths below
    /// that folder.
    pub absent: Vec<Absent>,
}

impl Loaded {
    /// The same, if all its models exist.
    ///
    /// # Errors
    /// [`ConfigError::Absent`] for the first that is missing.
    pub fn complete(self) -> Result<Self, ConfigError> {
        match self.absent.into_iter().next() {
            Some(absent) => Err(ConfigError::Absent(Box::new(absent))),
            None => Ok(Self {
                absent: Vec::new(),
                ..self
            }),
        }
    }
}

/// Two keys at the top level that every configuration of another trainer has.
const OTHER_TRAINERS: [(&str, [&str; 2]); 2] = [
    ("Axolotl", ["base_model", "datasets"]),
    ("LLaMA-Factory", ["model_name_or_path", "dataset"]),
];

impl RunConfig {
    /// Loads a configuration file with overrides in the form `KEY=VALUE`.
    ///
    /// See [`RunConfig::load_with`].
    ///
    /// # Errors
    /// See [`RunConfig::load_with`].
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
    /// Relative paths in it start from the file's folder, those in overrides and options from the
    /// working directory; `~` and `$VAR` are expanded. Files of an mLoRA configuration are looked up
    /// below the working directory, then below the file's folder, and its run is in the former.
    /// A pattern of `datasets.NAME.path` becomes the files that match it, and a name of the Hugging
    /// Face Hub the folder or files in the cache. Does not check that files exist, but for patterns and
    /// datasets of the Hub. The default of `output_dir` is `runs/` and the file's stem.
    ///
    /// # Errors
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
    /// stands for the file in messages, and relative paths start from its folder.
    ///
    /// # Errors
    /// See [`RunConfig::load_with`].
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

    /// Loads a configuration from JSON text, as [`load_yaml`](Self::load_yaml) does from YAML.
    ///
    /// # Errors
    /// See [`RunConfig::load_with`].
    pub fn load_json(
        text: &str,
        name: &Path,
        options: &LoadOptions,
    ) -> Result<Loaded, ConfigError> {
        let source = Source {
            path: name,
            overrides: &options.overrides,
        };
        let tree = read_json_text(text, &source)?;
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
        let other = OTHER_TRAINERS.iter().find(|(_, keys)| {
            ["adapters", "sweep"]
                .iter()
                .all(|key| tree.get(key).is_none())
                && keys.iter().all(|key| tree.get(key).is_some())
        });
        if let Some((tool, [key, _])) = other {
            return Err(ConfigError::OtherTrainer {
                path: source.path.to_owned(),
                tool,
                key,
            });
        }
        let default_model = options
            .default_model
            .as_ref()
            .filter(|_| tree.get("model").is_none());
        for (key, path) in [
            ("model", options.base_model.as_ref().or(default_model)),
            ("output_dir", options.output_dir.as_ref()),
        ] {
            if let Some(path) = path {
                // The shell has already expanded it.
                let path = path.to_string_lossy().replace('$', "$$");
                tree.set(key, Node::string(path));
            }
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
        let cache = options.hub_cache.clone().map(|folder| Cache { folder });
        let cache = cache.or_else(Cache::of_environment);
        let mut absent = Vec::new();
        let remarks = Remarks {
            warnings: &mut warnings,
            absent: &mut absent,
        };
        paths::anchor(&mut tree, source, is_mlora, cache.as_ref(), remarks)?;
        if matches!(tree.value, Value::Mapping(_)) && tree.get("output_dir").is_none_or(is_null) {
            let stem = source.path.file_stem().unwrap_or(source.path.as_os_str());
            let folder = if is_mlora {
                Path::new("")
            } else {
                paths::folder(source.path)
            };
            let default = folder.join("runs").join(stem);
            tree.set("output_dir", Node::string(default.to_string_lossy()));
        }
        let expansion = sweep::expand(&mut tree, source)?;
        // Defaults are read before they are merged into adapters, so that an error names their own line.
        if let Some(defaults) = tree.get("defaults") {
            let mut defaults = defaults.clone();
            unset_nulls(&mut defaults);
            check_loss_types(&defaults, source, "defaults")?;
            defaults.deserialize::<Option<DefaultsFile>>(source, "defaults")?;
        }
        if let Some(seed) = tree.get("seed") {
            seed.deserialize::<Option<u64>>(source, "seed")?;
        }
        let merged = merged(&tree);
        for (index, adapter) in merged.list("adapters").iter().enumerate() {
            check_loss_types(adapter, source, &format!("adapters[{index}]"))?;
        }
        let file: RunFile = merged.deserialize(source, "")?;
        let written = WrittenConfig {
            tree: &tree,
            source,
            expansion: &expansion,
        };
        let mut config = resolve(file, written)?;
        let empty = options.without_adapters && config.adapters.is_empty();
        warnings.extend(validate(&config, written, empty)?);
        overrides::refuse_without_effect(&tree, source)?;
        sweep::take_bases(&mut config, &expansion);
        warnings.extend(sweep::warn(&config));
        Ok(Loaded {
            config,
            warnings,
            absent,
        })
    }

    /// The configuration as YAML that loads back to [the same](Self::absolute), wherever the file is:
    /// every adapter with every field, nothing left to defaults.
    ///
    /// # Errors
    /// [`ConfigError::Write`] if a path is not valid Unicode, or the working directory is unknown.
    pub fn to_yaml(&self) -> Result<String, ConfigError> {
        let written = serde_saphyr::to_string(&self.written()?);
        written.map_err(|error| ConfigError::Write(error.to_string()))
    }

    /// The configuration as files have it: every path absolute, and `$` written `$$`.
    ///
    /// # Errors
    /// See [`to_yaml`](Self::to_yaml).
    pub fn written(&self) -> Result<Self, ConfigError> {
        let mut config = self.absolute()?;
        for path in config.paths_mut() {
            let text = path.to_str().ok_or_else(|| {
                ConfigError::Write(format!("`{}` is not valid Unicode", path.display()))
            })?;
            *path = text.replace('$', "$$").into();
        }
        Ok(config)
    }

    /// The same configuration for processes with another working directory.
    ///
    /// # Errors
    /// [`ConfigError::Write`] if the working directory is unknown.
    pub fn absolute(&self) -> Result<Self, ConfigError> {
        let mut config = self.clone();
        for path in config.paths_mut() {
            *path = paths::absolute(path).map_err(|error| {
                ConfigError::Write(format!("the working directory is unknown: {error}"))
            })?;
        }
        Ok(config)
    }

    fn paths_mut(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        let outer = [&mut self.model, &mut self.output_dir].into_iter();
        let data = self.datasets.values_mut().flat_map(|dataset| {
            let validation = match &mut dataset.validation {
                Validation::File(path) => Some(path),
                Validation::Fraction(_) => None,
            };
            dataset.path.iter_mut().chain(validation)
        });
        let begun = self
            .adapters
            .iter_mut()
            .filter_map(|adapter| adapter.init_from.as_mut());
        outer
            .chain(self.pipeline.token_file.iter_mut())
            .chain(data)
            .chain(begun)
    }
}

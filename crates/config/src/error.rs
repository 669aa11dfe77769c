//! Errors of configurations.

use std::{io, path::PathBuf};

use crate::{Absent, Place, suggest::Candidates};

/// A mistake in a configuration, with its place.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// The file's extension is that of no known format.
    #[error("cannot tell the format of {}: its name must end in .yaml, .yml, .toml or .json", path.display())]
    UnknownFormat {
        /// Path of the file.
        path: PathBuf,
    },
    /// The text is not well-formed YAML, TOML or JSON.
    #[error("{place}: {problem}")]
    Syntax {
        /// Place at which parsing failed.
        place: Place,
        /// Message of the parser.
        problem: String,
    },
    /// An unknown key.
    #[error(
        "{place}: unknown key `{key}` {}{}",
        within(parent),
        did_you_mean(valid)
    )]
    UnknownKey {
        /// Place of the key.
        place: Place,
        /// Path of the key.
        key: String,
        /// Path of the mapping that holds it; empty at the top level.
        parent: String,
        /// The keys that are valid there.
        valid: Box<Candidates>,
    },
    /// A required key is absent.
    #[error("{place}: missing key `{key}`")]
    MissingKey {
        /// The mapping that lacks it.
        place: Place,
        /// Path of the key.
        key: String,
    },
    /// A value of the wrong type or out of its range.
    #[error("{place}: `{key}`: {problem}")]
    Invalid {
        /// Place of the value.
        place: Place,
        /// Path of the key.
        key: String,
        /// Description of the mistake.
        problem: String,
    },
    /// Files that a value names are not there.
    #[error(transparent)]
    Absent(Box<Absent>),
    /// An unknown word, such as a dataset's name, a module or an option.
    #[error("{place}: `{key}`: unknown {what} `{name}`{}", did_you_mean(valid))]
    UnknownName {
        /// Place of the word.
        place: Place,
        /// Path of the key.
        key: String,
        /// Kind of thing that the word should name.
        what: &'static str,
        /// The unknown word.
        name: String,
        /// The known words.
        valid: Box<Candidates>,
    },
    /// Two adapters would write to the same directory.
    #[error("{place}: adapter name `{name}` is already taken by {first}")]
    DuplicateAdapter {
        /// Place of the second name.
        place: Place,
        /// The second name.
        name: String,
        /// Place of the first name.
        first: Place,
    },
    /// A setting of mLoRA that is not supported.
    #[error("{place}: `{key}`: {reason}")]
    Unsupported {
        /// Place of the setting.
        place: Place,
        /// Path of the key.
        key: String,
        /// The unsupported setting and the supported ones.
        reason: String,
    },
    /// An override that is not `KEY=VALUE`, or whose key does not exist.
    #[error("--set {text}: {problem}")]
    Override {
        /// The override.
        text: String,
        /// Description of the mistake.
        problem: String,
    },
    /// An mLoRA file was given without a base model, which it cannot name itself.
    #[error("{}: an mLoRA configuration does not name a base model", path.display())]
    MissingBaseModel {
        /// Path of the file.
        path: PathBuf,
    },
    /// A configuration of another trainer.
    #[error("{}: a configuration of {tool}, which cannot be read: it has the key `{key}`", path.display())]
    OtherTrainer {
        /// Path of the file.
        path: PathBuf,
        /// Name of the trainer.
        tool: &'static str,
        /// A key that only its configurations have.
        key: &'static str,
    },
    /// A configuration could not be written as YAML.
    #[error("cannot write the configuration as YAML: {0}")]
    Write(String),
}

/// A text that is not a device, a stage, a worker's address or a size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ParseError(pub(crate) String);

impl ConfigError {
    /// Advice for the mistake, if known and not in the message.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::UnknownKey { valid, .. } if !valid.all.is_empty() => {
                Some(format!("valid keys here: {}", valid.all.join(", ")))
            }
            Self::UnknownName { valid, what, .. } if valid.all.is_empty() => {
                Some(format!("no {what} is defined"))
            }
            Self::UnknownName { valid, .. } => Some(format!("known: {}", valid.all.join(", "))),
            Self::Absent(absent) => Some(absent.hint.clone()),
            Self::MissingBaseModel { .. } => Some(
                "give the model directory with `--base-model DIR` or `--set model=DIR`".to_owned(),
            ),
            Self::OtherTrainer { .. } => Some(
                "docs/from-other-tools.md has the equivalents of its keys; `loraloom init` writes a configuration to \
                 begin with"
                    .to_owned(),
            ),
            Self::MissingKey { key, .. } if key == "model" => Some(
                "`model` is a directory with config.json, *.safetensors and tokenizer.json, or a name such as \
                 Qwen/Qwen3-0.6B in the Hugging Face cache"
                    .to_owned(),
            ),
            Self::MissingKey { key, .. } if key == "pipeline.token_file" => Some(
                "workers require a token: set it to a file with the token of the workers"
                    .to_owned(),
            ),
            Self::Override { .. } => Some(
                "keys are dotted paths, e.g. `--set defaults.train.learning_rate=1e-4` or \
                 `--set adapters.NAME.lora.r=8`"
                    .to_owned(),
            ),
            _ => None,
        }
    }
}

fn within(parent: &str) -> String {
    if parent.is_empty() {
        "at the top level".to_owned()
    } else {
        format!("in `{parent}`")
    }
}

fn did_you_mean(valid: &Candidates) -> String {
    valid
        .nearest
        .as_ref()
        .map_or_else(String::new, |word| format!("; did you mean `{word}`?"))
}

//! What can be wrong with a configuration.

use std::{io, path::PathBuf};

use crate::{Place, suggest::Candidates};

/// What is wrong with a configuration, and where.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file's name does not say what format it is in.
    #[error("cannot tell the format of {}: its name must end in .yaml, .yml, .toml or .json", path.display())]
    UnknownFormat {
        /// The file.
        path: PathBuf,
    },
    /// The text is not well-formed YAML, TOML or JSON.
    #[error("{place}: {problem}")]
    Syntax {
        /// Where the parser gave up.
        place: Place,
        /// What it found.
        problem: String,
    },
    /// A key that means nothing here.
    #[error(
        "{place}: unknown key `{key}` {}{}",
        within(parent),
        did_you_mean(valid)
    )]
    UnknownKey {
        /// Where the key is written.
        place: Place,
        /// The key.
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
        /// Where the value is written.
        place: Place,
        /// Path of the key.
        key: String,
        /// What is wrong with the value.
        problem: String,
    },
    /// A word that is not among the ones known there: a dataset's name, a module, an option.
    #[error("{place}: `{key}`: unknown {what} `{name}`{}", did_you_mean(valid))]
    UnknownName {
        /// Where the word is written.
        place: Place,
        /// Path of the key.
        key: String,
        /// What the word should name.
        what: &'static str,
        /// The word.
        name: String,
        /// The known words.
        valid: Box<Candidates>,
    },
    /// Two adapters would write to the same directory.
    #[error("{place}: adapter name `{name}` is already taken by {first}")]
    DuplicateAdapter {
        /// Where the second name is written.
        place: Place,
        /// The second name.
        name: String,
        /// Where the first is written.
        first: Place,
    },
    /// Something that has a meaning, but not in this version.
    #[error("{place}: `{key}`: {reason}")]
    Unsupported {
        /// Where it is written.
        place: Place,
        /// Path of the key.
        key: String,
        /// What is not supported, and what is.
        reason: String,
    },
    /// An override that is not `KEY=VALUE`, or whose key leads nowhere.
    #[error("--set {text}: {problem}")]
    Override {
        /// The override.
        text: String,
        /// What is wrong with it.
        problem: String,
    },
    /// An mLoRA file was given without a base model, which it cannot name itself.
    #[error("{}: an mLoRA configuration names no base model", path.display())]
    MissingBaseModel {
        /// The file.
        path: PathBuf,
    },
    /// A configuration could not be written as YAML.
    #[error("cannot write the configuration as YAML: {0}")]
    Write(String),
}

impl ConfigError {
    /// What to do about it, where that is known and not in the message already.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::UnknownKey { valid, .. } if !valid.all.is_empty() => {
                Some(format!("valid keys here: {}", valid.all.join(", ")))
            }
            Self::UnknownName { valid, what, .. } if valid.all.is_empty() => {
                Some(format!("no {what} is defined"))
            }
            Self::UnknownName { valid, .. } => Some(format!("known: {}", valid.all.join(", "))),
            Self::MissingBaseModel { .. } => Some(
                "give the model directory with `--base-model DIR` or `--set model=DIR`".to_owned(),
            ),
            Self::MissingKey { key, .. } if key == "model" => Some(
                "`model` is a directory with config.json, *.safetensors and tokenizer.json"
                    .to_owned(),
            ),
            Self::MissingKey { key, .. } if key == "pipeline.token_file" => Some(
                "a worker lets in who has its token: name a file that holds what it was started \
                 with"
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

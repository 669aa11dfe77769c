//! Files of a configuration that are missing on this machine.

use loraloom_hub::{HubFiles, Repository, is_model_file};

use crate::{Place, paths};

/// Files that a value names, and that are not there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: `{key}`: {problem}")]
pub struct Absent {
    /// Place of the value.
    pub place: Place,
    /// Path of the key.
    pub key: String,
    /// Where they were looked for.
    pub problem: String,
    /// How to get or name them.
    pub hint: String,
    /// What the Hugging Face Hub may have of it.
    pub on_hub: Option<OnHub>,
}

/// Something on the Hugging Face Hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OnHub {
    /// A model, or an adapter.
    Model(Repository),
    /// Files of a dataset.
    Files(HubFiles),
}

impl OnHub {
    /// The repository.
    pub fn repository(&self) -> &Repository {
        match self {
            Self::Model(repository) => repository,
            Self::Files(files) => &files.repository,
        }
    }

    /// True of a file of the repository that is meant.
    pub fn is_wanted(&self, file: &str) -> bool {
        match self {
            Self::Model(_) => is_model_file(file),
            Self::Files(files) => files.path == file || paths::is_match(&files.path, file),
        }
    }
}

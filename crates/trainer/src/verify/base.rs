use std::path::{Path, PathBuf};

use loraloom_model::{Checkpoint, LlamaConfig};

use super::CheckResults;
use crate::error::Result;

/// The base model for comparisons.
#[derive(Debug)]
pub(super) struct Base {
    pub(super) path: PathBuf,
    pub(super) config: LlamaConfig,
    pub(super) checkpoint: Checkpoint,
    pub(super) digest: String,
}

impl Base {
    /// Opens `given`, which the user named, or else `recorded`, which files name and which may be missing.
    ///
    /// # Errors
    /// If `given` cannot be read.
    pub(super) fn find(
        given: Option<&Path>,
        recorded: Option<&Path>,
        results: &mut CheckResults,
    ) -> Result<Option<Self>> {
        if let Some(given) = given {
            return Self::open(given).map(Some);
        }
        let Some(recorded) = recorded else {
            let message = "the base model is unknown; give it with `--model`";
            results.unchecked("base", message.to_owned());
            return Ok(None);
        };
        if !recorded.is_dir() {
            let path = recorded.display();
            let message = format!("`{path}` is not a directory here; give the base with `--model`");
            results.unchecked("base", message);
            return Ok(None);
        }
        match Self::open(recorded) {
            Ok(base) => Ok(Some(base)),
            Err(error) => {
                results.unchecked("base", error.to_string());
                Ok(None)
            }
        }
    }

    pub(super) fn open(path: &Path) -> Result<Self> {
        let config = LlamaConfig::from_directory(path)?;
        let checkpoint = Checkpoint::open(path)?;
        checkpoint.verify(&config)?;
        Ok(Self {
            path: path.to_owned(),
            digest: checkpoint.digest(&config)?,
            config,
            checkpoint,
        })
    }
}

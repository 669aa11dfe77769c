use std::path::{Path, absolute};

use serde::{Deserialize, Serialize};

use super::MergePart;
use crate::{checkpoint::Checkpoint, config::LlamaConfig, error::ModelError, peft::METADATA_KEY};

/// Origin of a merged model, stored in the header of its weights.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MergeRecord {
    /// [`Checkpoint::digest`] of the base.
    pub base: String,
    /// Path of the base.
    pub base_path: String,
    /// The adapters.
    pub adapters: Vec<MergedPart>,
}

/// An adapter of a merged model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MergedPart {
    /// [`PeftAdapter::digest`](crate::PeftAdapter::digest) of it.
    pub digest: String,
    /// Its path.
    pub path: String,
    /// Its [`MergePart::weight`].
    pub weight: f64,
}

impl MergeRecord {
    /// The record in a model's weights; `None` if loraloom did not merge it.
    ///
    /// # Errors
    /// If the record cannot be read.
    pub fn of(model: &Checkpoint) -> Result<Option<Self>, ModelError> {
        for (shard, _) in model.shards() {
            if let Some(note) = shard.note(METADATA_KEY) {
                let record = serde_json::from_str(note).map(Some);
                return record.map_err(|error| ModelError::Json(error).in_file(shard.path()));
            }
        }
        Ok(None)
    }

    pub(super) fn new(
        base: &Checkpoint,
        config: &LlamaConfig,
        parts: &[MergePart],
    ) -> Result<Self, ModelError> {
        let part = |part: &MergePart| MergedPart {
            digest: part.adapter.digest(),
            path: full(&part.directory),
            weight: part.weight,
        };
        Ok(Self {
            base: base.digest(config)?,
            base_path: full(base.directory()),
            adapters: parts.iter().map(part).collect(),
        })
    }
}

/// The absolute form of a path.
fn full(path: &Path) -> String {
    let full = absolute(path).unwrap_or_else(|_| path.to_owned());
    full.display().to_string()
}

//! Digests in the header of `adapter_model.safetensors`, to detect later changes of the files.

use std::{borrow::Cow, collections::BTreeMap, path::Path};

use safetensors::View;
use serde::{Deserialize, Serialize};

use super::{WEIGHTS_FILE, adapter::PeftAdapter, weights::LoraWeights};
use crate::{checkpoint::Shard, error::ModelError, matrix_view::MatrixView};

/// loraloom's key in the header's metadata; the value is JSON. Readers of the format ignore unknown keys.
pub(crate) const METADATA_KEY: &str = "loraloom";
/// Hexadecimal digits kept of a module's digest: 64 bits, against mistakes and not against forgery.
const DIGITS: usize = 16;

/// The notes of an adapter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PeftNotes {
    /// [`Checkpoint::digest`](crate::Checkpoint::digest) of the model that it was trained over, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// Notes by module path.
    pub modules: BTreeMap<String, ModuleNote>,
}

/// The note of one module.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModuleNote {
    /// The first digits of a BLAKE3 over shape and values of A, B and a magnitude. It excludes the module's path, so that factors
    /// of another module are recognised.
    pub factors: String,
    /// Factor of the product.
    pub scale: f64,
}

impl PeftNotes {
    /// The notes to store for an adapter.
    pub fn of(adapter: &PeftAdapter) -> Self {
        let modules = adapter.modules.iter();
        let modules = modules.map(|(module, weights)| (module.clone(), ModuleNote::of(weights)));
        Self {
            base: adapter.base.clone(),
            modules: modules.collect(),
        }
    }

    /// The notes of the adapter in `directory`; `None` if another program wrote it.
    ///
    /// # Errors
    /// If the weights file is missing or damaged, or the notes cannot be read.
    pub fn read(directory: &Path) -> Result<Option<Self>, ModelError> {
        Self::in_header(&Shard::read(&directory.join(WEIGHTS_FILE))?)
    }

    pub(super) fn in_header(shard: &Shard) -> Result<Option<Self>, ModelError> {
        let notes = shard.note(METADATA_KEY).map(serde_json::from_str);
        let notes = notes.transpose().map_err(ModelError::Json);
        notes.map_err(|error| error.in_file(shard.path()))
    }
}

impl ModuleNote {
    fn of(weights: &LoraWeights) -> Self {
        let mut hasher = blake3::Hasher::new();
        for size in [weights.r, weights.d_in, weights.d_out] {
            hasher.update(&(size as u64).to_le_bytes());
        }
        for values in [&weights.a, &weights.b]
            .into_iter()
            .chain(&weights.magnitude)
        {
            let values = MatrixView {
                shape: [1, values.len()],
                values: Cow::Borrowed(values),
            };
            hasher.update(&values.data());
        }
        Self {
            factors: hasher.finalize().to_hex()[..DIGITS].to_owned(),
            scale: weights.scale,
        }
    }

    /// True if a scale equals the noted one, except for the rounding of its text.
    pub fn has_scale(&self, scale: f64) -> bool {
        (self.scale - scale).abs() <= 1e-9 * self.scale.abs()
    }
}

impl PeftAdapter {
    /// BLAKE3 over paths, factors and scales of all modules: the same for adapters that compute the same, for any
    /// file name and configuration.
    pub fn digest(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        for (module, ModuleNote { factors, scale }) in PeftNotes::of(self).modules {
            hasher.update(format!("{module} {factors} {scale}\n").as_bytes());
        }
        hasher.finalize().to_hex().to_string()
    }
}

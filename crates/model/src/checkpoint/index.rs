use std::{
    collections::BTreeMap,
    path::{Component, Path},
};

use serde::Deserialize;

use crate::{error::ModelError, files::read_text};

/// Tensor names of a sharded checkpoint to the names of their files.
pub(super) type WeightMap = BTreeMap<String, String>;

#[derive(Deserialize)]
struct Index {
    weight_map: WeightMap,
}

/// Reads `model.safetensors.index.json`.
pub(super) fn read(path: &Path) -> Result<WeightMap, ModelError> {
    let text = read_text(path)?;
    let index: Index =
        serde_json::from_str(&text).map_err(|error| ModelError::Json(error).in_file(path))?;
    for (tensor, file) in &index.weight_map {
        if !is_file_name(file) {
            let (tensor, file) = (tensor.clone(), file.clone());
            return Err(ModelError::IndexFileName { tensor, file }.in_file(path));
        }
    }
    Ok(index.weight_map)
}

/// A plain name: an index must not reach outside its directory.
fn is_file_name(file: &str) -> bool {
    let mut components = Path::new(file).components();
    matches!(
        (components.next(), components.next()),
        (Some(Component::Normal(_)), None)
    )
}

use std::path::{Path, PathBuf};

use crate::error::ModelError;

/// The only safetensors file of a directory that has neither of the usual names.
pub(super) fn only_safetensors(directory: &Path) -> Result<PathBuf, ModelError> {
    let read_error = |error| ModelError::Read {
        path: directory.into(),
        error,
    };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(read_error)? {
        names.push(
            entry
                .map_err(read_error)?
                .file_name()
                .to_string_lossy()
                .into_owned(),
        );
    }
    names.sort();
    if names.iter().any(|name| name == "adapter_config.json") {
        return Err(ModelError::AdapterAsBase {
            directory: directory.into(),
        });
    }
    let has_extension = |name: &str, wanted: &str| {
        Path::new(name)
            .extension()
            .is_some_and(|extension| extension == wanted)
    };
    let files: Vec<String> = names
        .iter()
        .filter(|name| has_extension(name, "safetensors"))
        .cloned()
        .collect();
    match files.as_slice() {
        [only] => Ok(directory.join(only)),
        [] => Err(
            match names
                .into_iter()
                .find(|n| has_extension(n, "bin") || has_extension(n, "pth"))
            {
                Some(file) => ModelError::PickleOnly {
                    directory: directory.into(),
                    file,
                },
                None => ModelError::NoWeights {
                    directory: directory.into(),
                },
            },
        ),
        _ => Err(ModelError::AmbiguousWeights {
            directory: directory.into(),
            files,
        }),
    }
}

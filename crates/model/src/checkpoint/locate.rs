use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::{error::ModelError, files::reading};

/// The only safetensors file of a directory that has neither of the usual names.
pub(super) fn only_safetensors(directory: &Path) -> Result<PathBuf, ModelError> {
    let names = fs::read_dir(directory).and_then(|entries| {
        let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
        let names = entries.map(|entry| entry.map(name));
        names.collect::<io::Result<Vec<String>>>()
    });
    let mut names = reading(directory, names)?;
    names.sort();
    let path = directory.to_owned();
    if names.iter().any(|name| name == "adapter_config.json") {
        return Err(ModelError::AdapterAsBase(path));
    }
    let is_a = |name: &str, wanted: &str| {
        let extension = Path::new(name).extension();
        extension.is_some_and(|extension| extension == wanted)
    };
    let (mut files, others): (Vec<_>, Vec<_>) =
        (names.into_iter()).partition(|name| is_a(name, "safetensors"));
    let mut others = others.into_iter();
    match files.len() {
        0 => Err(
            match others.find(|name| is_a(name, "bin") || is_a(name, "pth")) {
                Some(file) => ModelError::PickleOnly {
                    directory: path,
                    file,
                },
                None => ModelError::NoWeights(path),
            },
        ),
        1 => Ok(directory.join(files.remove(0))),
        _ => Err(ModelError::AmbiguousWeights {
            directory: path,
            files,
        }),
    }
}

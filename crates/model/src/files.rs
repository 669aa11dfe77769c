//! Reading small text files, with an error for each mistake that is common in model directories.

use std::{fs, io, path::Path};

use crate::error::ModelError;

/// The first bytes of every Git LFS pointer file.
const LFS_POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";

/// Whole text of `path`.
pub(crate) fn read_text(path: &Path) -> Result<String, ModelError> {
    let text = reading(path, fs::read_to_string(path))?;
    refuse_lfs_pointer(path, text.as_bytes())?;
    Ok(text)
}

/// The result of reading `path`.
pub(crate) fn reading<T>(path: &Path, result: io::Result<T>) -> Result<T, ModelError> {
    result.map_err(|error| ModelError::Read {
        path: path.into(),
        error,
    })
}

/// Refuses `contents` that are a Git LFS pointer.
pub(crate) fn refuse_lfs_pointer(path: &Path, contents: &[u8]) -> Result<(), ModelError> {
    if contents.starts_with(LFS_POINTER) {
        return Err(ModelError::LfsPointer(path.into()));
    }
    Ok(())
}

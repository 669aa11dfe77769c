//! Replacing a directory as one step, so that a reader finds the old files or the new ones.

use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use crate::{
    durable::{create_directory, sync_directory, write_synced},
    error::ModelError,
};

/// Makes `directory` hold `files`; other entries it already has stay.
pub(super) fn replace_directory(
    directory: &Path,
    files: &[(&str, &[u8])],
) -> Result<(), ModelError> {
    // A link's target is replaced, not the link.
    let directory = &fs::canonicalize(directory).unwrap_or_else(|_| directory.to_owned());
    let (parent, name) = match (directory.parent(), directory.file_name()) {
        (Some(parent), Some(name)) if parent.as_os_str().is_empty() => (Path::new("."), name),
        (Some(parent), Some(name)) => (parent, name),
        _ => return Err(write_error(directory, ErrorKind::InvalidFilename.into())),
    };
    let sibling = |kind: &str| {
        let mut sibling = name.to_owned();
        sibling.push(format!(".{kind}-{}", std::process::id()));
        parent.join(sibling)
    };
    let (staged, old) = (sibling("tmp"), sibling("old"));

    if directory.exists() && !directory.is_dir() {
        return Err(write_error(directory, ErrorKind::NotADirectory.into()));
    }
    on(parent, create_directory(parent))?;
    // Left by a process with the same id that ended early.
    remove_directory(&staged)?;
    on(&staged, fs::create_dir(&staged))?;
    for (name, contents) in files {
        let path = staged.join(name);
        on(&path, write_synced(&path, contents))?;
    }
    on(&staged, sync_directory(&staged))?;
    if directory.exists() {
        if old.exists() {
            keep_others(&old, directory)?;
            remove_directory(&old)?;
        }
        swap(&staged, directory, &old)?;
        keep_others(&old, directory)?;
        on(directory, sync_directory(directory))?;
        // On NFS a reader may prevent this. The next save or the next `--resume` removes it.
        let _ = remove_directory(&old);
    } else {
        on(directory, fs::rename(&staged, directory))?;
    }
    on(parent, sync_directory(parent))
}

/// Moves `directory` away to `old` and `staged` in; undoes the first where the second fails.
fn swap(staged: &Path, directory: &Path, old: &Path) -> Result<(), ModelError> {
    on(directory, fs::rename(directory, old))?;
    if let Err(error) = fs::rename(staged, directory) {
        on(old, fs::rename(old, directory))?;
        return Err(write_error(directory, error));
    }
    Ok(())
}

/// Moves files that `old`, the directory that a save replaces, has and `directory` has not: files that were
/// put beside an adapter.
///
/// # Errors
/// If a file cannot be moved.
pub fn keep_others(old: &Path, directory: &Path) -> Result<(), ModelError> {
    for entry in on(old, fs::read_dir(old))? {
        let entry = on(old, entry)?;
        let kept = directory.join(entry.file_name());
        if !kept.exists() {
            on(&kept, fs::rename(entry.path(), &kept))?;
        }
    }
    Ok(())
}

fn remove_directory(path: &Path) -> Result<(), ModelError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        result => on(path, result),
    }
}

fn on<T>(path: &Path, result: std::io::Result<T>) -> Result<T, ModelError> {
    result.map_err(|error| write_error(path, error))
}

fn write_error(path: &Path, error: std::io::Error) -> ModelError {
    ModelError::Write {
        path: PathBuf::from(path),
        error,
    }
}

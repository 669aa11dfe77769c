//! Replacing a directory as one step, so that a reader finds the old files or the new ones.

use std::{
    fs::{self, File},
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
};

use crate::error::ModelError;

/// Makes `directory` hold `files`; other entries it already has stay.
pub(super) fn replace_directory(
    directory: &Path,
    files: &[(&str, &[u8])],
) -> Result<(), ModelError> {
    // What a link points to is replaced, not the link.
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
    on(parent, fs::create_dir_all(parent))?;
    // Left by a process of the same number that ended in the middle.
    remove_directory(&staged)?;
    on(&staged, fs::create_dir(&staged))?;
    for (name, contents) in files {
        write_synced(&staged.join(name), contents)?;
    }
    sync_directory(&staged)?;
    if directory.exists() {
        swap(&staged, directory, &old)?;
        keep_others(&old, directory)?;
        remove_directory(&old)?;
    } else {
        on(directory, fs::rename(&staged, directory))?;
    }
    sync_directory(parent)
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

/// Moves what `old` has and `directory` has not.
fn keep_others(old: &Path, directory: &Path) -> Result<(), ModelError> {
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

fn write_synced(path: &Path, contents: &[u8]) -> Result<(), ModelError> {
    let write = || {
        let mut file = File::create_new(path)?;
        file.write_all(contents)?;
        file.sync_all()
    };
    on(path, write())
}

/// Makes the entries of a directory durable, where the system has a notion of that.
fn sync_directory(path: &Path) -> Result<(), ModelError> {
    if cfg!(unix) {
        on(path, File::open(path).and_then(|file| file.sync_all()))
    } else {
        Ok(())
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

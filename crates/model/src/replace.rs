//! Replaces a directory in one step, so that a reader finds the old files or the new ones.

use std::{
    fs::{self, File},
    io::ErrorKind,
    path::Path,
};

use crate::{
    durable::{create_directories, create_directory, sync_directory},
    error::{ModelError, on},
    files::reading,
};

/// Replaces the contents of `directory` by the files that `fill` writes and syncs in the directory that it receives;
/// other existing entries stay.
pub(crate) fn replace_directory(
    directory: &Path,
    fill: impl FnOnce(&Path) -> Result<(), ModelError>,
) -> Result<(), ModelError> {
    // Replace a link's target, not the link.
    let directory = &fs::canonicalize(directory).unwrap_or_else(|_| directory.to_owned());
    let (parent, name) = match (directory.parent(), directory.file_name()) {
        (Some(parent), Some(name)) if parent.as_os_str().is_empty() => (Path::new("."), name),
        (Some(parent), Some(name)) => (parent, name),
        _ => return on(directory, Err(ErrorKind::InvalidFilename.into())),
    };
    let sibling = |kind: &str| {
        let mut sibling = name.to_owned();
        sibling.push(format!(".{kind}-{}", std::process::id()));
        parent.join(sibling)
    };
    let (staged, old) = (sibling("tmp"), sibling("old"));

    if directory.exists() && !directory.is_dir() {
        return on(directory, Err(ErrorKind::NotADirectory.into()));
    }
    on(parent, create_directory(parent))?;
    // Left by a killed process with the same id.
    remove_directory(&staged)?;
    on(&staged, fs::create_dir(&staged))?;
    fill(&staged).inspect_err(|_| {
        // A merged model is large.
        let _ = remove_directory(&staged);
    })?;
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

/// Creates a new directory and its parents, as [`replace_directory`].
///
/// # Errors
/// [`ModelError::OutputExists`] if the path exists, unless it is an empty directory.
pub(crate) fn new_directory(
    directory: &Path,
    fill: impl FnOnce(&Path) -> Result<(), ModelError>,
) -> Result<(), ModelError> {
    let is_free = match fs::read_dir(directory) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == ErrorKind::NotFound && !directory.is_symlink(),
    };
    if !is_free {
        return Err(ModelError::OutputExists(directory.to_owned()));
    }
    if let Some(parent) = directory.parent() {
        on(parent, create_directories(parent))?;
    }
    replace_directory(directory, fill)
}

/// Copies a file's contents; they are on the disk when this returns.
pub(crate) fn copy_file(from: &Path, to: &Path) -> Result<(), ModelError> {
    let mut source = reading(from, File::open(from))?;
    let mut copy = on(to, File::create_new(to))?;
    on(to, std::io::copy(&mut source, &mut copy))?;
    on(to, copy.sync_all())
}

/// Renames `directory` to `old` and `staged` to `directory`; undoes the first if the second fails.
fn swap(staged: &Path, directory: &Path, old: &Path) -> Result<(), ModelError> {
    on(directory, fs::rename(directory, old))?;
    if let Err(error) = fs::rename(staged, directory) {
        on(old, fs::rename(old, directory))?;
        return on(directory, Err(error));
    }
    Ok(())
}

/// Moves files that only `old`, the directory that a save replaces, has into `directory`: files that others added
/// beside an adapter.
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

//! Writes a checkpoint directory atomically.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, ErrorKind},
    path::{Path, PathBuf},
};

use loraloom_model::{create_directory, sync_directory, write_synced};

use super::{
    FORMAT, MANIFEST,
    generation::{FileDigest, Manifest, generations},
};
use crate::error::{Result, on};

/// A directory that is written under a temporary name, and removed if it is dropped without a
/// [`commit`](Self::commit).
#[derive(Debug)]
pub(crate) struct Staged {
    path: PathBuf,
    /// The directory of all checkpoints.
    pub(super) parent: PathBuf,
    /// Iteration of the run.
    pub(super) number: u64,
    files: BTreeMap<String, FileDigest>,
    committed: bool,
}

impl Staged {
    /// Begins checkpoint `number` in `parent`, which must exist.
    ///
    /// # Errors
    /// If the directory cannot be made.
    pub(crate) fn create(parent: &Path, number: u64) -> Result<Self> {
        let path = parent.join(format!(".{number}.tmp-{}", std::process::id()));
        // Left by a killed process with the same id.
        on(&path, remove(&path))?;
        on(&path, fs::create_dir(&path))?;
        Ok(Self {
            path,
            parent: parent.to_owned(),
            number,
            files: BTreeMap::new(),
            committed: false,
        })
    }

    /// Writes a file, `name` relative to the checkpoint, and waits until it is on the disk.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) fn write(&mut self, name: &str, contents: &[u8]) -> Result<()> {
        let path = self.path.join(name);
        if let Some(directory) = path.parent() {
            on(directory, create_directory(directory))?;
        }
        let digest = FileDigest {
            bytes: contents.len() as u64,
            blake3: blake3::hash(contents).to_hex().to_string(),
        };
        self.files.insert(name.to_owned(), digest);
        on(&path, write_synced(&path, contents))
    }

    /// Renames the checkpoint to its final name. An older one of the same number stays beside it until then.
    ///
    /// # Errors
    /// If the disk fails; what was there before still is then, perhaps under the other name.
    pub(crate) fn commit(mut self) -> Result<PathBuf> {
        let manifest = serde_json::to_vec_pretty(&Manifest {
            format: FORMAT,
            files: std::mem::take(&mut self.files),
        });
        let manifest = on(&self.path, manifest.map_err(Into::into))?;
        self.write(MANIFEST, &manifest)?;
        for entry in on(&self.path, fs::read_dir(&self.path))? {
            let path = on(&self.path, entry)?.path();
            if path.is_dir() {
                on(&path, sync_directory(&path))?;
            }
        }
        on(&self.path, sync_directory(&self.path))?;

        let path = self.parent.join(self.number.to_string());
        let old = self.parent.join(format!("{}.old", self.number));
        if path.exists() {
            on(&old, remove(&old))?;
            on(&path, fs::rename(&path, &old))?;
        }
        on(&path, fs::rename(&self.path, &path))?;
        self.committed = true;
        on(&self.parent, sync_directory(&self.parent))?;
        on(&old, remove(&old))?;
        Ok(path)
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.committed {
            // The next run removes it if this fails.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Removes all but the newest `keep` checkpoints in `parent`, of which `number` was committed last. Higher numbers
/// are of iterations that were undone when memory ran out.
///
/// # Errors
/// If one cannot be removed.
pub(crate) fn prune(parent: &Path, number: u64, keep: usize) -> Result<()> {
    let (undone, kept): (Vec<_>, Vec<_>) = on(parent, generations(parent))?
        .into_iter()
        .partition(|generation| generation.number > number);
    for generation in undone.into_iter().chain(kept.into_iter().skip(keep)) {
        on(&generation.path, remove(&generation.path))?;
    }
    Ok(())
}

/// Removes the unfinished saves of killed processes from `parent`. No process may be saving there.
///
/// # Errors
/// If it cannot be removed.
pub(crate) fn remove_stale(parent: &Path) -> Result<()> {
    let Ok(entries) = fs::read_dir(parent) else {
        return Ok(());
    };
    for entry in entries {
        let path = on(parent, entry)?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        if name.is_some_and(|name| name.starts_with('.') && name.contains(".tmp-")) {
            on(&path, remove(&path))?;
        }
    }
    Ok(())
}

pub(super) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

//! The cache of `huggingface_hub` on this machine: `models--org--name` with `refs`, `snapshots` and
//! `blobs`.

use std::{
    env, fmt, fs,
    path::{Path, PathBuf},
};

use crate::{Kind, Repository};

/// A cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cache {
    /// The folder that holds a folder of each repository.
    pub folder: PathBuf,
}

/// The reason why the cache does not have a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotCached {
    /// The cache has no revision of it.
    Repository,
    /// The cache has only other revisions; these are their commits.
    Revision(Vec<String>),
    /// The folder of the commit has no configuration or no weights.
    Files(PathBuf),
}

impl Cache {
    /// The cache that `huggingface_hub` uses with this environment; `None` without a home directory.
    pub fn of_environment() -> Option<Self> {
        let folder = set("HF_HUB_CACHE").or_else(|| set("HUGGINGFACE_HUB_CACHE"));
        let folder = folder.or_else(|| Some(home()?.join("hub")))?;
        Some(Self { folder })
    }

    /// The folder with the files of a repository at its revision, or links to them.
    ///
    /// # Errors
    /// If the cache does not have it.
    pub fn snapshot(&self, repository: &Repository) -> Result<PathBuf, NotCached> {
        let folder = self.folder.join(repository.folder());
        let snapshots = folder.join("snapshots");
        let reference = fs::read_to_string(folder.join("refs").join(&repository.revision));
        let commit = reference
            .as_deref()
            .map_or(&*repository.revision, str::trim);
        let snapshot = snapshots.join(commit);
        // A commit is one folder: neither the empty name nor one that leads elsewhere.
        if !commit.is_empty() && !commit.contains(['/', '\\']) && snapshot.is_dir() {
            return Ok(snapshot);
        }
        let commits = names(&snapshots);
        Err(if commits.is_empty() {
            NotCached::Repository
        } else {
            NotCached::Revision(commits)
        })
    }

    /// The folder of a model or an adapter with its configuration and weights.
    ///
    /// # Errors
    /// If the cache does not have it, or only other files of it.
    pub fn model(&self, repository: &Repository) -> Result<PathBuf, NotCached> {
        let snapshot = self.snapshot(repository)?;
        let is_there = |name: &str| snapshot.join(name).exists();
        let is_described = is_there("config.json") || is_there("adapter_config.json");
        let mut weights = names(&snapshot).into_iter();
        if is_described && weights.any(|name| name.ends_with(".safetensors") && is_there(&name)) {
            Ok(snapshot)
        } else {
            Err(NotCached::Files(snapshot))
        }
    }

    /// Names of the repositories of a kind that the cache has.
    pub fn repositories(&self, kind: Kind) -> Vec<String> {
        let start = format!("{}--", kind.plural());
        let names = names(&self.folder);
        let of_kind = names.iter().filter_map(|name| name.strip_prefix(&start));
        of_kind.map(|name| name.replacen("--", "/", 1)).collect()
    }
}

/// A path in the environment.
fn set(name: &str) -> Option<PathBuf> {
    let text = env::var(name).ok().filter(|text| !text.is_empty())?;
    let expanded = shellexpand::full(&text).map_or_else(|_| text.clone(), Into::into);
    Some(PathBuf::from(expanded))
}

/// The folder of Hugging Face's libraries.
pub(crate) fn home() -> Option<PathBuf> {
    let cache = || set("XDG_CACHE_HOME").or_else(|| Some(env::home_dir()?.join(".cache")));
    set("HF_HOME").or_else(|| Some(cache()?.join("huggingface")))
}

impl fmt::Display for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.folder.display().fmt(f)
    }
}

/// Names in a folder, sorted; empty if it cannot be read.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

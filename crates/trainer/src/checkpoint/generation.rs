//! Lists checkpoints and verifies them.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{MANIFEST, record::FORMAT};

/// A committed checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Generation {
    /// Iteration of the run.
    pub(super) number: u64,
    pub(super) path: PathBuf,
}

/// `manifest.json`: the files of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    pub(super) format: u32,
    pub(super) files: BTreeMap<String, FileDigest>,
}

/// Length and digest of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileDigest {
    pub(super) bytes: u64,
    pub(super) blake3: String,
}

/// The checkpoints in `parent`, the newest first. One that was being replaced by another of the same number follows
/// that one. Empty if `parent` does not exist.
///
/// # Errors
/// If `parent` exists and cannot be listed.
pub(super) fn generations(parent: &Path) -> io::Result<Vec<Generation>> {
    let entries = match fs::read_dir(parent) {
        Ok(entries) => entries.collect::<io::Result<Vec<_>>>()?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error),
    };
    let mut found: Vec<(bool, Generation)> = entries
        .into_iter()
        .filter_map(|entry| {
            let path = entry.path();
            let name = path.file_name()?.to_str()?;
            let replaced = name.strip_suffix(".old");
            let number = replaced.unwrap_or(name).parse().ok()?;
            Some((replaced.is_none(), Generation { number, path }))
        })
        .collect();
    found.sort_by_key(|(current, generation)| (generation.number, *current));
    Ok(found.into_iter().rev().map(|(_, found)| found).collect())
}

impl Manifest {
    /// Reads the manifest of the checkpoint in `path` and every file that it names.
    ///
    /// # Errors
    /// A message with the problem.
    pub(super) fn verify(path: &Path) -> Result<Self, String> {
        let text = fs::read(path.join(MANIFEST)).map_err(|error| of(MANIFEST, error))?;
        let manifest: Self = serde_json::from_slice(&text).map_err(|error| of(MANIFEST, error))?;
        if manifest.format != FORMAT {
            let format = manifest.format;
            let problem = format!(
                "another version of loraloom wrote it, in format {format}; this one reads {FORMAT}"
            );
            return Err(of(MANIFEST, problem));
        }
        for name in manifest.files.keys() {
            manifest.read(path, name)?;
        }
        Ok(manifest)
    }

    /// The contents of a file, if they are unchanged.
    ///
    /// # Errors
    /// A message with the problem.
    pub(super) fn read(&self, path: &Path, name: &str) -> Result<Vec<u8>, String> {
        let digest = self.files.get(name);
        let digest = digest.ok_or_else(|| of(name, "the manifest does not name it"))?;
        let contents = fs::read(path.join(name)).map_err(|error| of(name, error))?;
        if contents.len() as u64 != digest.bytes {
            let (found, bytes) = (contents.len(), digest.bytes);
            return Err(of(name, format!("it has {found} bytes instead of {bytes}")));
        }
        let found = blake3::hash(&contents).to_hex();
        if found.as_str() != digest.blake3 {
            let expected = &digest.blake3;
            let problem = format!("its BLAKE3 is {found} instead of {expected}");
            return Err(of(name, problem));
        }
        Ok(contents)
    }
}

fn of(name: &str, problem: impl std::fmt::Display) -> String {
    format!("{name}: {problem}")
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::{Manifest, generations};
    use crate::checkpoint::{
        MANIFEST,
        staged::{Staged, prune, remove_stale},
    };

    fn commit(parent: &Path, number: u64, contents: &[u8]) {
        let mut staged = Staged::create(parent, number).expect("a directory");
        staged.write("run.json", b"{}").expect("written");
        staged
            .write("tasks/a.safetensors", contents)
            .expect("written");
        staged.commit().expect("committed");
    }

    fn numbers(parent: &Path) -> Vec<u64> {
        let found = generations(parent).expect("a list").into_iter();
        found.map(|generation| generation.number).collect()
    }

    #[test]
    fn what_is_committed_is_whole_and_what_is_not_is_nowhere() {
        let directory = tempfile::tempdir().expect("a directory");
        let parent = directory.path().join("checkpoints");
        assert_eq!(generations(&parent).expect("a list"), []);
        fs::create_dir(&parent).expect("a directory");
        commit(&parent, 9, b"nine");
        commit(&parent, 10, b"ten");
        let mut dropped = Staged::create(&parent, 11).expect("a directory");
        dropped.write("run.json", b"{}").expect("written");
        assert_eq!(numbers(&parent), [10, 9]);
        drop(dropped);
        assert_eq!(fs::read_dir(&parent).expect("entries").count(), 2);
        // A killed process drops nothing.
        fs::create_dir(parent.join(".11.tmp-1")).expect("a directory");
        assert_eq!(numbers(&parent), [10, 9]);
        remove_stale(&parent).expect("removed");
        assert_eq!(fs::read_dir(&parent).expect("entries").count(), 2);

        let manifest = Manifest::verify(&parent.join("10")).expect("a whole checkpoint");
        let read = |name| manifest.read(&parent.join("10"), name);
        assert_eq!(read("tasks/a.safetensors").as_deref(), Ok(&b"ten"[..]));
        assert!(read("tasks/b.safetensors").is_err());
    }

    #[test]
    fn a_directory_that_is_gone_is_not_made_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let parent = directory.path().join("checkpoints");
        assert!(Staged::create(&parent, 9).is_err());
        fs::create_dir(&parent).expect("a directory");
        let mut staged = Staged::create(&parent, 9).expect("a directory");
        fs::remove_dir_all(&parent).expect("removed");
        assert!(staged.write("tasks/a.safetensors", b"a").is_err());
        drop(staged);
        assert!(!parent.exists());
    }

    #[test]
    fn one_of_the_same_number_is_replaced_and_never_missing() {
        let directory = tempfile::tempdir().expect("a directory");
        let parent = directory.path();
        commit(parent, 3, b"first");
        commit(parent, 3, b"second");
        assert_eq!(numbers(parent), [3]);
        let manifest = Manifest::verify(&parent.join("3")).expect("a whole checkpoint");
        let read = manifest.read(&parent.join("3"), "tasks/a.safetensors");
        assert_eq!(read.as_deref(), Ok(&b"second"[..]));
        // Between the two renames the old one has another name.
        fs::rename(parent.join("3"), parent.join("3.old")).expect("renamed");
        let left = generations(parent).expect("a list");
        assert_eq!(left[0].path, parent.join("3.old"));
        commit(parent, 3, b"third");
        assert_eq!(generations(parent).expect("a list").len(), 1);
        // Nothing that an earlier process left is in the way.
        fs::create_dir(parent.join("3.old")).expect("a directory");
        fs::write(parent.join("3.old/run.json"), "{}").expect("written");
        commit(parent, 3, b"fourth");
        assert_eq!(generations(parent).expect("a list").len(), 1);
    }

    #[test]
    fn the_newest_are_kept() {
        let directory = tempfile::tempdir().expect("a directory");
        for number in [5, 100, 20, 9] {
            commit(directory.path(), number, b"");
        }
        prune(directory.path(), 100, 2).expect("pruned");
        assert_eq!(numbers(directory.path()), [100, 20]);
        // The run went back to 10.
        commit(directory.path(), 11, b"");
        prune(directory.path(), 11, 2).expect("pruned");
        assert_eq!(numbers(directory.path()), [11]);
    }

    /// Every truncation and every bit of every file.
    #[test]
    fn no_damage_goes_unnoticed() {
        let directory = tempfile::tempdir().expect("a directory");
        let parent = directory.path();
        let contents: Vec<u8> = (0..60_u32).map(|value| (value * 7) as u8).collect();
        commit(parent, 1, &contents);
        let path = parent.join("1");
        let whole = Manifest::verify(&path).expect("a whole checkpoint");
        for name in ["run.json", "tasks/a.safetensors", MANIFEST] {
            let file = path.join(name);
            let before = fs::read(&file).expect("a file");
            for length in 0..before.len() {
                fs::write(&file, &before[..length]).expect("written");
                assert!(Manifest::verify(&path).is_err(), "{name} cut to {length}");
            }
            for bit in 0..8 * before.len() {
                let mut flipped = before.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                fs::write(&file, &flipped).expect("written");
                // White space between the words of the manifest means nothing.
                let verified = Manifest::verify(&path);
                assert!(
                    verified.is_err() || verified.as_ref() == Ok(&whole),
                    "bit {bit} of {name}"
                );
            }
            fs::write(&file, &before).expect("written");
            fs::remove_file(&file).expect("removed");
            assert!(Manifest::verify(&path).is_err(), "{name} is gone");
            fs::write(&file, &before).expect("written");
        }
        assert_eq!(Manifest::verify(&path), Ok(whole));
    }
}

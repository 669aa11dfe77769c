use std::{
    fs, io,
    path::{Path, PathBuf},
};

use loraloom_model::keep_others;

use super::staged::remove_stale;
use crate::{
    error::{Result, on},
    run_directory::{ADAPTERS, CHECKPOINTS},
};

/// Removes the leftovers of a killed process from a run directory. An adapter that was moved away and not replaced is
/// put back; of a replaced one, files that others added are kept.
///
/// # Errors
/// If the directory cannot be written.
pub(crate) fn tidy(directory: &Path) -> Result<()> {
    remove_stale(&directory.join(CHECKPOINTS))?;
    for adapter in entries(&directory.join(ADAPTERS)) {
        for path in entries(&adapter) {
            let name = path.file_name().and_then(|name| name.to_str());
            let Some((kept, rest)) = name.and_then(|name| name.split_once('.')) else {
                continue;
            };
            let place = adapter.join(kept);
            if rest.starts_with("old-") && !place.exists() {
                on(&place, fs::rename(&path, &place))?;
            } else if rest.starts_with("old-") || rest.starts_with("tmp-") {
                if rest.starts_with("old-") {
                    keep_others(&path, &place)?;
                }
                on(&path, fs::remove_dir_all(&path))?;
            }
        }
    }
    Ok(())
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let entries: io::Result<_> = fs::read_dir(directory);
    let entries = entries.into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::tidy;

    #[test]
    fn leftovers_go_and_what_was_moved_away_comes_back() {
        let run = tempfile::tempdir().expect("a directory");
        let make = |path: &str| {
            let path = run.path().join(path);
            fs::create_dir_all(&path).expect("a directory");
            fs::write(path.join("file"), path.to_str().expect("text")).expect("written");
        };
        for path in [
            "adapters/a/last",
            "adapters/a/last.tmp-7",
            "adapters/a/last.old-7",
            "adapters/a/best.old-8",
            "checkpoints/3",
            "checkpoints/.4.tmp-7",
        ] {
            make(path);
        }
        let notes = run.path().join("adapters/a/last.old-7/notes.txt");
        fs::write(notes, "of a user").expect("written");
        tidy(run.path()).expect("tidied");
        let there = |path: &str| run.path().join(path).join("file").exists();
        let notes = run.path().join("adapters/a/last/notes.txt");
        assert_eq!(fs::read_to_string(notes).expect("kept"), "of a user");
        for path in ["adapters/a/last", "adapters/a/best", "checkpoints/3"] {
            assert!(there(path), "{path}");
        }
        let count = |path: &str| {
            let entries = fs::read_dir(run.path().join(path)).expect("entries");
            entries.count()
        };
        assert_eq!((count("adapters/a"), count("checkpoints")), (2, 1));
        for (path, from) in [("best", "best.old-8"), ("last", "last")] {
            let path = run.path().join("adapters/a").join(path).join("file");
            assert!(fs::read_to_string(path).expect("text").ends_with(from));
        }
    }
}

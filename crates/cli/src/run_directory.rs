//! The configuration and adapters of a run directory, for commands.

use std::{
    ffi::OsStr,
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use loraloom_config::{LoadOptions, RunConfig};
use loraloom_server::{Client, queue};
use loraloom_trainer::{ADAPTERS, CHECKPOINTS, CONFIG_FILE, EVENTS_FILE, quoted};

use crate::{
    exit::Exit,
    failure::{self, Failure},
};

/// Saved states of an adapter, the preferred one first.
const KEPT: [&str; 2] = ["best", "last"];

/// Longest name in common file systems, in bytes.
const LONGEST_NAME: usize = 255;
/// Longest path of a run directory, in bytes: Linux allows 4096, and a run creates paths below its own.
const LONGEST_PATH: usize = 3800;

/// Refuses a directory that no run can be written to: it belongs to a run, a server or another program, its name is
/// too long, or it or one of its parents is a file or not writable.
///
/// # Errors
/// If the directory is unusable.
pub(crate) fn refuse_unusable(directory: &Path) -> Result<(), Failure> {
    refuse_used(directory)?;
    if is_something_else(directory) {
        let message = format!(
            "`{}` is not empty and contains files that no run wrote",
            directory.display()
        );
        return Err(Failure::usage(message).hint("choose another `output_dir`, or empty it"));
    }
    let bytes = |name: &OsStr| name.as_encoded_bytes().len();
    let longest = directory.iter().map(bytes).max().unwrap_or(0);
    let all = bytes(directory.as_os_str());
    let failure = if longest > LONGEST_NAME || all > LONGEST_PATH {
        Failure::usage(format!(
            "a path of {all} bytes, with a name of {longest}: the limits are {LONGEST_PATH} and \
             {LONGEST_NAME}"
        ))
    } else if let Err(error) = writable(directory) {
        let exit = if failure::is_full(&error) {
            Exit::Lost
        } else {
            Exit::Usage
        };
        let problem = format!("cannot write to `{}`: {error}", directory.display());
        Failure::new(exit, problem)
    } else {
        return Ok(());
    };
    Err(failure.hint("choose another `output_dir`"))
}

/// True if a directory has files that no run has left. Hidden files and `lost+found`, which are in the root of a
/// fresh volume, do not count.
fn is_something_else(directory: &Path) -> bool {
    let of_runs = [EVENTS_FILE, CONFIG_FILE, CHECKPOINTS, ADAPTERS];
    if of_runs.iter().any(|name| directory.join(name).exists()) {
        return false;
    }
    let mut names = fs::read_dir(directory)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.file_name()));
    names.any(|name| !name.as_encoded_bytes().starts_with(b".") && name != "lost+found")
}

/// Refuses to overwrite a file that the run in `directory` needs.
///
/// # Errors
/// If `path` is such a file.
pub(crate) fn refuse_own_file(path: &Path, directory: &Path) -> Result<(), Failure> {
    let full = (fs::canonicalize(path), fs::canonicalize(directory));
    let (Ok(file), Ok(directory)) = full else {
        return Ok(());
    };
    let Ok(inside) = file.strip_prefix(directory) else {
        return Ok(());
    };
    let first = inside.iter().next().unwrap_or_default();
    let own = [
        ADAPTERS,
        CHECKPOINTS,
        CONFIG_FILE,
        EVENTS_FILE,
        queue::FILE_NAME,
    ];
    if own.iter().any(|own| first == *own) {
        let message = format!("`{}` is a file of the run", path.display());
        return Err(Failure::usage(message).hint("choose another file"));
    }
    Ok(())
}

/// Creates and removes a file in `directory` or, if that does not exist, in its nearest existing
/// parent.
pub(crate) fn writable(directory: &Path) -> std::io::Result<()> {
    let here = Path::new(".");
    let existing = directory
        .ancestors()
        .map(|path| {
            Some(path)
                .filter(|path| *path != Path::new(""))
                .unwrap_or(here)
        })
        .find_map(|path| match path.symlink_metadata() {
            Ok(_) => Some(Ok(path)),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            // A name is too long, or a directory is not accessible.
            Err(error) => Some(Err(error)),
        })
        .unwrap_or(Ok(here))?;
    let probe = existing.join(format!(".loraloom-{}", std::process::id()));
    // A process with the same id, killed or on another machine, may have left the file or may remove it.
    fs::File::create(&probe)?;
    match fs::remove_file(probe) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Refuses a directory that already holds a run or a server.
///
/// # Errors
/// If it holds one.
pub(crate) fn refuse_used(directory: &Path) -> Result<(), Failure> {
    refuse_served(directory)?;
    if loraloom_trainer::holds_run(directory) {
        let message = format!("`{}` already holds a run", directory.display());
        let hint = "continue it with `--resume`, choose another `output_dir`, or move it away";
        return Err(Failure::usage(message).hint(hint));
    }
    Ok(())
}

/// Refuses the run directory of a server, whose tasks are in a queue.
///
/// # Errors
/// If it is a server's.
pub(crate) fn refuse_served(directory: &Path) -> Result<(), Failure> {
    if !directory.join(queue::FILE_NAME).exists() {
        return Ok(());
    }
    let message = format!("`{}` is the run directory of a server", directory.display());
    let run = quoted(directory);
    Err(Failure::usage(message).hint(format!("continue it with `loraloom serve {run}`")))
}

/// The configuration of the run in `directory`.
///
/// # Errors
/// If there is no run or its configuration does not load.
pub(crate) fn config(directory: &Path) -> anyhow::Result<RunConfig> {
    let path = directory.join(CONFIG_FILE);
    if !path.exists() {
        return Err(without_config(directory).into());
    }
    // A server's configuration names no adapters, since tasks come and go.
    let options = LoadOptions {
        without_adapters: true,
        ..LoadOptions::default()
    };
    Ok(RunConfig::load_with(&path, &options)?.config)
}

/// The configurations that the adapters of the run in `directory` are trained with: the run's, or the server's
/// followed by those of its tasks.
///
/// # Errors
/// As [`config`], or if the server's queue cannot be read.
pub(crate) fn configs(directory: &Path) -> anyhow::Result<Vec<RunConfig>> {
    let mut configs = vec![config(directory)?];
    if directory.join(queue::FILE_NAME).exists() {
        // If tasks share a name, the latest one has the adapter.
        let tasks = Client::open(directory)?.configurations()?.into_iter();
        configs.extend(tasks.rev().map(|(_, config)| config));
    }
    Ok(configs)
}

/// The error about a directory without a run's configuration.
fn without_config(directory: &Path) -> Failure {
    let run = directory.display();
    let message = if directory.exists() {
        format!("`{run}` is not a run directory: it has no {CONFIG_FILE}")
    } else {
        format!("there is no directory `{run}`")
    };
    let saved = adapters(directory)
        .first()
        .map(|name| adapter(directory, name));
    let hint = match saved {
        Some(Ok(adapter)) => format!(
            "restore the file; without it, name the model and adapters by their directories: `--model DIR \
             --adapter {}`",
            quoted(adapter)
        ),
        _ => "give the `output_dir` of a run that `loraloom train` wrote".to_owned(),
    };
    Failure::usage(message).hint(hint)
}

/// Names of the adapters that the run in `directory` has saved, sorted.
pub(crate) fn adapters(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory.join(ADAPTERS));
    let mut names: Vec<String> = entries
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| {
            KEPT.iter()
                .any(|kept| saved(directory, name, kept).is_some())
        })
        .collect();
    names.sort();
    names
}

/// The directory of the adapter that `spec` names: `name` is its best state, or its last if it was
/// never evaluated; `name@best` and `name@last` are those.
///
/// # Errors
/// If the run has no such adapter.
pub(crate) fn adapter(directory: &Path, spec: &str) -> Result<PathBuf, Failure> {
    let (name, kept) = match spec.rsplit_once('@') {
        Some((name, kept)) if KEPT.contains(&kept) => (name, &[kept][..]),
        _ => (spec, &KEPT[..]),
    };
    kept.iter()
        .find_map(|kept| saved(directory, name, kept))
        .ok_or_else(|| {
            let known = adapters(directory);
            let hint = if known.is_empty() {
                "the run has saved no adapter yet".to_owned()
            } else {
                format!("saved adapters: {}", known.join(", "))
            };
            Failure::usage(format!("no adapter `{spec}` in `{}`", directory.display())).hint(hint)
        })
}

fn saved(directory: &Path, name: &str, kept: &str) -> Option<PathBuf> {
    let path = directory.join(ADAPTERS).join(name).join(kept);
    path.join("adapter_config.json").exists().then_some(path)
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::{adapter, adapters, refuse_unusable, refuse_used};

    fn save(run: &Path, path: &str) {
        let directory = run.join("adapters").join(path);
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("adapter_config.json"), "{}").unwrap();
    }

    /// The remains of a run that was killed before its first checkpoint are taken over.
    #[test]
    fn a_directory_with_other_files_is_refused() {
        for (names, is_usable) in [
            (&[][..], true),
            (&[".lock", ".DS_Store", "lost+found"], true),
            (&["events.jsonl", "notes.txt"], true),
            (&["config.resolved.yaml"], true),
            (&["notes.txt"], false),
            (&["loraloom.yaml", "rows.jsonl"], false),
        ] {
            let directory = tempfile::tempdir().unwrap();
            for name in names {
                fs::write(directory.path().join(name), "").unwrap();
            }
            let usable = refuse_unusable(directory.path());
            assert_eq!(usable.is_ok(), is_usable, "{names:?}: {usable:?}");
        }
        assert!(refuse_unusable(Path::new("/")).is_err());
    }

    #[test]
    fn best_is_preferred_and_both_can_be_named() {
        let run = tempfile::tempdir().unwrap();
        assert!(refuse_used(run.path()).is_ok());
        save(run.path(), "a/best");
        save(run.path(), "a/last");
        save(run.path(), "b/last");
        fs::create_dir_all(run.path().join("adapters/unsaved/last")).unwrap();
        assert!(refuse_used(run.path()).is_err());
        assert_eq!(adapters(run.path()), ["a", "b"]);

        let found = |spec| {
            adapter(run.path(), spec).map(|path| {
                let path = path.strip_prefix(run.path().join("adapters")).unwrap();
                path.to_str().unwrap().to_owned()
            })
        };
        assert_eq!(found("a").unwrap(), "a/best");
        assert_eq!(found("a@last").unwrap(), "a/last");
        assert_eq!(found("b").unwrap(), "b/last");
        for absent in ["b@best", "unsaved", "c", "c@last", "a@first"] {
            assert!(found(absent).is_err(), "{absent}");
        }
    }
}

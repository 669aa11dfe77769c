//! Loading configurations from text.

use std::{
    fs,
    path::{Path, PathBuf},
};

use loraloom_config::{ConfigError, LoadOptions, Loaded, RunConfig};

/// A configuration with nothing wrong.
pub(crate) const GOOD: &str = "\
model: base
datasets:
  rows: {path: rows.jsonl}
  more: {path: more.jsonl}
defaults:
  dataset: rows
  train:
    batch_size: 8
adapters:
  - name: a
  - name: b
    lora:
      r: 8
";

/// A file of this crate's fixtures.
pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
}

/// Loads text as the file `run.yaml` of an otherwise empty directory.
pub(crate) fn load(text: &str, overrides: &[&str]) -> Result<Loaded, ConfigError> {
    load_named("run.yaml", text, overrides)
}

/// Loads text as a file of that name.
pub(crate) fn load_named(
    name: &str,
    text: &str,
    overrides: &[&str],
) -> Result<Loaded, ConfigError> {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join(name);
    fs::write(&path, text).expect("a writable directory");
    let overrides: Vec<String> = overrides.iter().map(|&text| text.to_owned()).collect();
    let options = LoadOptions {
        overrides,
        ..LoadOptions::default()
    };
    RunConfig::load_with(&path, &options)
}

/// The message of an error without the directory of the file.
pub(crate) fn plain(error: &ConfigError) -> String {
    let text = error.to_string();
    text.split_whitespace()
        .map(|word| match word.rsplit_once('/') {
            Some((_, file)) if word.starts_with('/') => file,
            _ => word,
        })
        .collect::<Vec<_>>()
        .join(" ")
}

/// One line per mistake: the edit of [`GOOD`] that makes it, the message, the hint.
pub(crate) fn report(edits: &[(&str, &str)]) -> String {
    let mut lines = Vec::new();
    for (from, to) in edits {
        assert!(GOOD.contains(from), "{from:?} is not in the configuration");
        let text = GOOD.replacen(from, to, 1);
        let error = match load(&text, &[]) {
            Ok(loaded) => panic!("accepted {to:?}: {loaded:?}"),
            Err(error) => error,
        };
        lines.push(format!("{to:?}\n  error: {}", plain(&error)));
        lines.extend(error.hint().map(|hint| format!("  hint: {hint}")));
    }
    lines.join("\n")
}

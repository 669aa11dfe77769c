//! Patterns of paths to data.

use std::{fs, path::PathBuf};

use loraloom_config::{ConfigError, LoadOptions, Loaded, RunConfig, Validation};
use tempfile::TempDir;

fn folder(files: &[&str]) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    for file in files {
        let path = directory.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }
    directory
}

fn load(directory: &TempDir, dataset: &str) -> Result<Loaded, ConfigError> {
    let text = format!("model: m\ndatasets:\n  rows: {{{dataset}}}\nadapters: [{{name: a}}]\n");
    let path = directory.path().join("run.yaml");
    fs::write(&path, text).unwrap();
    RunConfig::load_with(&path, &LoadOptions::default())
}

fn paths(directory: &TempDir, dataset: &str) -> Vec<String> {
    let config = load(directory, dataset).unwrap().config;
    let from = |path: &PathBuf| {
        let path = path.strip_prefix(directory.path()).unwrap();
        path.to_string_lossy().replace('\\', "/")
    };
    config.datasets["rows"].path.iter().map(from).collect()
}

#[test]
fn a_pattern_stands_for_its_files_in_order() {
    let files = [
        "d/b.jsonl",
        "d/a.jsonl",
        "d/c.jsonl.gz",
        "d/.hidden.jsonl",
        "d/e.jsonl/f.jsonl",
        "d/g/h.jsonl",
        "x.csv",
    ];
    let here = folder(&files);
    for (path, expected) in [
        ("'d/*.jsonl'", vec!["d/a.jsonl", "d/b.jsonl"]),
        (
            "'d/?.jsonl*'",
            vec!["d/a.jsonl", "d/b.jsonl", "d/c.jsonl.gz"],
        ),
        ("'d/[!a].jsonl'", vec!["d/b.jsonl"]),
        ("'d/*/*.jsonl'", vec!["d/e.jsonl/f.jsonl", "d/g/h.jsonl"]),
        (
            "'**/*.jsonl'",
            vec!["d/a.jsonl", "d/b.jsonl", "d/e.jsonl/f.jsonl", "d/g/h.jsonl"],
        ),
        ("'./d/../*.csv'", vec!["x.csv"]),
        // A list keeps its order, and a path need not exist.
        (
            "[x.csv, 'd/[ab].jsonl', y.csv]",
            vec!["x.csv", "d/a.jsonl", "d/b.jsonl", "y.csv"],
        ),
    ] {
        assert_eq!(paths(&here, &format!("path: {path}")), expected, "{path}");
    }
}

#[test]
fn names_with_characters_of_patterns_are_paths_if_they_exist() {
    let here = folder(&[
        "a[1].jsonl",
        "a1.jsonl",
        "[x]/b1.jsonl",
        "[x]/b2.jsonl",
        "x/b3.jsonl",
    ]);
    assert_eq!(paths(&here, "path: 'a[1].jsonl'"), ["a[1].jsonl"]);
    assert_eq!(paths(&here, "path: 'a[12].jsonl'"), ["a1.jsonl"]);
    // The folder of the file is no pattern.
    let text = "model: m\ndatasets: {rows: {path: 'b*.jsonl'}}\nadapters: [{name: a}]\n";
    let path = here.path().join("[x]/run.yaml");
    fs::write(&path, text).unwrap();
    let config = RunConfig::load_with(&path, &LoadOptions::default())
        .unwrap()
        .config;
    let expected = ["[x]/b1.jsonl", "[x]/b2.jsonl"].map(|name| here.path().join(name));
    assert_eq!(config.datasets["rows"].path, expected);
}

#[test]
fn a_written_configuration_has_the_files_of_its_time() {
    let here = folder(&["d/a.jsonl", "d/b[1].jsonl"]);
    let before = load(&here, "path: 'd/*'").unwrap().config;
    fs::write(here.path().join("d/c.jsonl"), "").unwrap();
    let path = here.path().join("config.resolved.yaml");
    fs::write(&path, before.to_yaml().unwrap()).unwrap();
    let after = RunConfig::load_with(&path, &LoadOptions::default())
        .unwrap()
        .config;
    assert_eq!(after, before);
    assert_eq!(after.datasets["rows"].path.len(), 2);
}

#[test]
fn validation_takes_a_pattern_of_one_file() {
    let here = folder(&["a.jsonl", "v-1.jsonl", "w-1.jsonl", "w-2.jsonl"]);
    let config = load(&here, "path: a.jsonl, validation: 'v-*.jsonl'")
        .unwrap()
        .config;
    let expected = Validation::File(here.path().join("v-1.jsonl"));
    assert_eq!(config.datasets["rows"].validation, expected);
    let error = load(&here, "path: a.jsonl, validation: 'w-*.jsonl'").unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("`w-*.jsonl` matches 2 files: name one"),
        "{error}"
    );
}

#[test]
fn patterns_without_files_say_where_and_what_is_there() {
    let here = folder(&["d/a.json", "d/b.json", "d/.c.jsonl", "e/f/g.jsonl"]);
    let mut all = String::new();
    for dataset in [
        "path: 'd/*.jsonl'",
        "path: [d/a.json, 'd/c*']",
        "path: 'e/*'",
        "path: 'd/**'",
        "path: 'no/*.jsonl'",
        "path: '*.jsonl'",
        "path: 'd\\*.json'",
        "path: 'd/[.json'",
        "path: 'd/***'",
        "path: d/a.json, validation: 'd/*.csv'",
    ] {
        let error = load(&here, dataset).unwrap_err();
        let hint = error
            .hint()
            .map_or_else(String::new, |hint| format!("\n  hint: {hint}"));
        all.extend([error.to_string(), hint, "\n".to_owned()]);
    }
    let all = all.replace(&*here.path().to_string_lossy(), "HERE");
    insta::assert_snapshot!(all);
}

//! Names of the Hugging Face Hub, in a cache as `huggingface_hub` lays it out.

use std::{
    fs,
    path::{Path, PathBuf},
};

use loraloom_config::{ConfigError, LoadOptions, Loaded, OnHub, RunConfig};
use tempfile::TempDir;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const OTHER: &str = "89abcdef0123456789abcdef0123456789abcdef";

const MODEL: [&str; 2] = ["config.json", "model.safetensors"];

/// A folder with a configuration and a cache beside it.
struct Here(TempDir);

impl Here {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    /// Files of a snapshot, as links to blobs where there are links.
    fn cached(&self, repository: &str, commit: &str, files: &[&str]) -> PathBuf {
        let snapshot = self.path(&format!("hub/{repository}/snapshots/{commit}"));
        for (index, file) in files.iter().enumerate() {
            let blob = self.write(&format!("hub/{repository}/blobs/{commit}{index}"), "{}");
            let path = snapshot.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            #[cfg(unix)]
            std::os::unix::fs::symlink(&blob, &path).unwrap();
            #[cfg(not(unix))]
            fs::copy(&blob, &path).unwrap();
        }
        snapshot
    }

    fn refer(&self, repository: &str, name: &str, commit: &str) {
        self.write(&format!("hub/{repository}/refs/{name}"), commit);
    }

    fn load(&self, model: &str, data: &str) -> Result<Loaded, ConfigError> {
        let text = format!(
            "model: {model}\ndatasets: {{rows: {{path: {data}}}}}\nadapters: [{{name: a}}]\n"
        );
        let options = LoadOptions {
            hub_cache: Some(self.path("hub")),
            ..LoadOptions::default()
        };
        RunConfig::load_with(&self.write("run.yaml", &text), &options)
    }

    /// The model, or why there is none.
    fn model(&self, model: &str) -> Result<PathBuf, String> {
        let loaded = self.load(model, "a.jsonl").unwrap();
        match loaded.absent.as_slice() {
            [] => Ok(loaded.config.model),
            [absent] => {
                assert!(matches!(absent.on_hub, Some(OnHub::Model(_))));
                Err(self.plain(&absent.to_string(), &absent.hint))
            }
            several => panic!("{several:?}"),
        }
    }

    /// The files of the dataset, or why there are none.
    fn data(&self, data: &str) -> Result<Vec<PathBuf>, String> {
        match self.load("m", data) {
            Ok(mut loaded) => Ok(loaded.config.datasets.remove("rows").unwrap().path),
            Err(error) => Err(self.plain(&error.to_string(), &error.hint().unwrap_or_default())),
        }
    }

    fn plain(&self, error: &str, hint: &str) -> String {
        let here = self.0.path().to_string_lossy().into_owned();
        format!("{error}\n  hint: {hint}\n").replace(&here, "HERE")
    }
}

#[test]
fn a_model_is_a_directory_or_in_the_cache_at_a_revision() {
    let here = Here::new();
    let name = "models--org--name";
    let newest = here.cached(name, COMMIT, &MODEL);
    let older = here.cached(name, OTHER, &MODEL);
    here.refer(name, "main", &format!("{COMMIT}\n"));
    here.refer(name, "v1", OTHER);
    here.refer(name, "refs/pr/3", OTHER);
    for (text, snapshot) in [
        ("org/name", &newest),
        ("org/name@main", &newest),
        ("hf://org/name", &newest),
        ("org/name@v1", &older),
        ("org/name@refs/pr/3", &older),
        (&format!("org/name@{OTHER}"), &older),
    ] {
        assert_eq!(here.model(text).unwrap(), *snapshot, "{text}");
    }
    let local = here.path("org/name");
    fs::create_dir_all(&local).unwrap();
    assert_eq!(here.model("org/name").unwrap(), local);
    assert_eq!(here.model("org/name@v1").unwrap(), older);
    // A path needs no cache.
    assert_eq!(here.model("./other/name").unwrap(), here.path("other/name"));
    assert_eq!(here.model("a/b/c").unwrap(), here.path("a/b/c"));
}

#[test]
fn an_adapter_may_begin_with_one_of_the_cache() {
    let here = Here::new();
    let snapshot = here.cached(
        "models--org--adapter",
        COMMIT,
        &["adapter_config.json", "adapter_model.safetensors"],
    );
    here.refer("models--org--adapter", "main", COMMIT);
    let text = "model: m\ndatasets: {rows: {path: a.jsonl}}\n\
                adapters: [{name: a, init_from: org/adapter}]\n";
    let options = LoadOptions {
        hub_cache: Some(here.path("hub")),
        ..LoadOptions::default()
    };
    let loaded = RunConfig::load_with(&here.write("run.yaml", text), &options).unwrap();
    assert_eq!(loaded.config.adapters[0].init_from, Some(snapshot));
    // What was found is kept, not the name: a branch that goes on does not change a run.
    here.refer("models--org--adapter", "main", OTHER);
    let again = here.write("again.yaml", &loaded.config.to_yaml().unwrap());
    let again = RunConfig::load_with(&again, &options).unwrap();
    assert_eq!(
        again.config.adapters[0].init_from,
        loaded.config.adapters[0].init_from
    );
}

#[test]
fn models_that_the_cache_does_not_have_are_said_to_be_absent() {
    let here = Here::new();
    here.cached("models--org--name", COMMIT, &MODEL);
    here.cached("models--org--gone", COMMIT, &MODEL);
    here.refer("models--org--gone", "main", OTHER);
    here.refer(
        "models--org--evil",
        "main",
        "../../models--org--name/snapshots/x",
    );
    here.refer("models--org--empty", "main", "");
    fs::create_dir_all(here.path("hub/models--org--empty/snapshots")).unwrap();
    here.cached(
        "models--org--part",
        COMMIT,
        &["config.json", "tokenizer.json"],
    );
    here.refer("models--org--part", "main", COMMIT);
    let mut all = String::new();
    for model in [
        "org/part",
        "org/nothing",
        "org/nmae",
        "org/name",
        "org/name@v2",
        "org/gone",
        "org/evil",
        "org/empty",
        "data/foo",
    ] {
        all += &here.model(model).unwrap_err();
    }
    let error = here.load("hf://datasets/org/name", "a.jsonl").unwrap_err();
    all += &here.plain(&error.to_string(), "");
    insta::assert_snapshot!(all);
}

#[test]
fn files_of_datasets_are_found_at_their_revision() {
    let here = Here::new();
    let name = "datasets--org--rows";
    let files = [
        "data/b.jsonl",
        "data/a.jsonl.gz",
        "data/deep/c.jsonl",
        "README.md",
    ];
    let newest = here.cached(name, COMMIT, &files);
    let older = here.cached(name, OTHER, &["data/a.jsonl"]);
    here.refer(name, "main", COMMIT);
    here.refer(name, "v1", OTHER);
    let start = "hf://datasets/org/rows";
    for (data, snapshot, files) in [
        (
            format!("{start}/data/b.jsonl"),
            &newest,
            vec!["data/b.jsonl"],
        ),
        (
            format!("{start}/data/*.jsonl*"),
            &newest,
            vec!["data/a.jsonl.gz", "data/b.jsonl"],
        ),
        (
            format!("{start}/**/*.jsonl"),
            &newest,
            vec!["data/b.jsonl", "data/deep/c.jsonl"],
        ),
        (format!("{start}@v1/data/*"), &older, vec!["data/a.jsonl"]),
        (
            format!("[{start}@{OTHER}/data/a.jsonl, {start}/data/b.jsonl]"),
            &older,
            vec![
                "data/a.jsonl",
                "../0123456789abcdef0123456789abcdef01234567/data/b.jsonl",
            ],
        ),
    ] {
        let found = here.data(&data).unwrap();
        let real = |path: &Path| path.canonicalize().unwrap();
        let expected: Vec<PathBuf> = files
            .iter()
            .map(|file| real(&snapshot.join(file)))
            .collect();
        assert_eq!(
            found.iter().map(|path| real(path)).collect::<Vec<_>>(),
            expected,
            "{data}"
        );
    }
    // A name in the cache has the extension; a blob has none.
    let found = here.data(&format!("{start}/data/b.jsonl")).unwrap();
    assert_eq!(found, [newest.join("data/b.jsonl")]);
    let warnings = here.load("m", &format!("{start}/data/*")).unwrap().warnings;
    assert!(
        warnings[0].contains("matches only downloaded files"),
        "{warnings:?}"
    );
}

#[test]
fn files_of_datasets_that_are_not_there_are_named() {
    let here = Here::new();
    let name = "datasets--org--rows";
    let snapshot = here.cached(name, COMMIT, &["a.jsonl"]);
    here.refer(name, "main", COMMIT);
    #[cfg(unix)]
    std::os::unix::fs::symlink("../../blobs/gone", snapshot.join("broken.jsonl")).unwrap();
    drop(snapshot);
    let mut all = String::new();
    for data in [
        "hf://datasets/org/rows/b.jsonl",
        "hf://datasets/org/rows/broken.jsonl",
        "hf://datasets/org/rows/*.csv",
        "hf://datasets/org/rows@v1/a.jsonl",
        "hf://datasets/org/row/a.jsonl",
        "hf://datasets/org/rows/../../../a.jsonl",
        "hf://org/rows/a.jsonl",
        "hf://datasets/org/rows",
    ] {
        all += &here.data(data).unwrap_err();
    }
    insta::assert_snapshot!(all);
}

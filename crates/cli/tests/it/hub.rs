//! Models and datasets in the cache of the Hugging Face Hub.

use std::{fs, path::Path};

use crate::support::{Run, Workspace};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

const CONFIG: &str = "model: org/tiny
output_dir: run
datasets: {rows: {path: ['hf://datasets/org/rows/p*.jsonl', 'more/*.jsonl.gz'], validation: 0.1}}
defaults: {train: {max_steps: 2, batch_size: 2, max_seq_len: 64}}
adapters: [{name: a}]
";

/// Puts files into the cache of a workspace, as the newest commit of a repository.
fn cache(here: &Workspace, repository: &str, files: &[(&str, &Path)]) {
    for (name, from) in files {
        let to = format!("cache/{repository}/snapshots/{COMMIT}/{name}");
        here.write(&to, fs::read(from).unwrap());
    }
    here.write(&format!("cache/{repository}/refs/main"), COMMIT);
}

fn run(here: &Workspace, arguments: &[&str]) -> Run {
    let mut command = here.command(arguments);
    command.env("HF_HUB_CACHE", here.path("cache"));
    here.finish(&mut command)
}

#[test]
fn a_run_over_the_cache_keeps_what_it_found() {
    let here = Workspace::new();
    let model = [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ];
    let paths = model.map(|name| (name, here.path(&format!("tiny-llama/{name}"))));
    let files: Vec<(&str, &Path)> = paths.iter().map(|(name, path)| (*name, &**path)).collect();
    cache(&here, "models--org--tiny", &files);
    let data = here.path("data/shout.jsonl");
    cache(
        &here,
        "datasets--org--rows",
        &[("p1.jsonl", &data), ("p2.jsonl", &data), ("q.csv", &data)],
    );
    fs::create_dir(here.path("more")).unwrap();
    let zipped = std::process::Command::new("gzip")
        .arg("-c")
        .arg(&data)
        .output()
        .unwrap();
    here.write("more/a.jsonl.gz", zipped.stdout);
    here.write("run.yaml", CONFIG);

    let trained = run(&here, &["train", "run.yaml", "--device", "cpu"]);
    assert_eq!(trained.code, 0, "{}", trained.all());
    assert!(
        trained
            .stderr
            .contains("the files in the cache are read, 2"),
        "{}",
        trained.stderr
    );
    let eval = ["eval", "--run", "run", "--dataset", "rows", "--json"];
    let before = run(&here, &eval);
    assert_eq!(before.code, 0, "{}", before.all());

    // The branch moves on and files come: the run is that of the files it began with.
    here.write("cache/models--org--tiny/refs/main", "f".repeat(40));
    here.write(
        &format!("cache/datasets--org--rows/snapshots/{COMMIT}/p3.jsonl"),
        fs::read(&data).unwrap(),
    );
    here.write("more/b.jsonl.gz", "no archive");
    let after = run(&here, &eval);
    assert_eq!(after.json(), before.json());
    let resumed = run(&here, &["train", "--resume", "run"]);
    assert_eq!(resumed.code, 0, "{}", resumed.all());
    let anew = run(&here, &["check", "run.yaml"]);
    assert_eq!(anew.code, 3, "{}", anew.all());
    assert!(
        anew.stdout.contains("but not its revision `main`"),
        "{}",
        anew.all()
    );
}

#[test]
fn what_is_nowhere_ends_as_missing_files_do() {
    let here = Workspace::new();
    let data = here.path("data/shout.jsonl");
    cache(&here, "datasets--org--rows", &[("p1.jsonl", &data)]);
    here.write("run.yaml", CONFIG);
    for (arguments, said) in [
        (
            &["train", "run.yaml"][..],
            "no file matches `*.jsonl.gz` in `more`",
        ),
        (
            &[
                "train",
                "run.yaml",
                "--set",
                "datasets.rows.path=data/shout.jsonl",
            ],
            "has no model `org/tiny`",
        ),
        (
            &[
                "plan",
                "run.yaml",
                "--set",
                "datasets.rows.path=data/shout.jsonl",
            ],
            "hint: `hf download org/tiny`",
        ),
        (
            &[
                "check",
                "run.yaml",
                "--set",
                "datasets.rows.path=hf://datasets/org/x/a",
            ],
            "has no dataset `org/x`",
        ),
        (
            &[
                "serve",
                "queue",
                "--config",
                "run.yaml",
                "--set",
                "datasets.rows.path=data/shout.jsonl",
            ],
            "has no model `org/tiny`",
        ),
    ] {
        let run = run(&here, arguments);
        assert_eq!(run.code, 3, "{}", run.all());
        assert!(run.all().contains(said), "{arguments:?} {}", run.all());
    }
    // It can be shown all the same, and says what is missing.
    let set = "datasets.rows.path=data/shout.jsonl";
    let shown = run(&here, &["config", "show", "run.yaml", "--set", set]);
    assert_eq!(shown.code, 0, "{}", shown.all());
    assert!(
        shown.stderr.contains("has no model `org/tiny`"),
        "{}",
        shown.stderr
    );
}

//! Models and datasets in the cache of the Hugging Face Hub.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::TcpListener,
    path::Path,
    thread,
};

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

/// Runs a command with the cache of a workspace, and with a Hub unless it is to stay offline.
fn run_with(here: &Workspace, endpoint: Option<&str>, arguments: &[&str]) -> Run {
    let mut command = here.command(arguments);
    command
        .env("HF_HUB_CACHE", here.path("cache"))
        .env("HF_ENDPOINT", endpoint.unwrap_or("http://127.0.0.1:1"))
        .env("HF_HUB_OFFLINE", if endpoint.is_some() { "0" } else { "1" });
    here.finish(&mut command)
}

fn run(here: &Workspace, arguments: &[&str]) -> Run {
    run_with(here, None, arguments)
}

/// Serves the files of `hub/models/ORG/NAME` and `hub/datasets/ORG/NAME` until the process ends.
fn serve(here: &Workspace) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let root = here.path("hub");
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut lines = BufReader::new(&stream).lines().map_while(Result::ok);
            let first = lines.next().unwrap();
            let _head = lines.take_while(|line| !line.is_empty()).count();
            let (headers, body) = answer(&root, first.split(' ').nth(1).unwrap());
            let head = format!(
                "HTTP/1.1 {headers}\r\nContent-Length: {}\r\n\r\n",
                body.len()
            );
            let _ = stream.write_all(head.as_bytes());
            if first.starts_with("GET") {
                let _ = stream.write_all(&body);
            }
        }
    });
    endpoint
}

fn answer(root: &Path, path: &str) -> (String, Vec<u8>) {
    let missing = ("404 Not Found".to_owned(), Vec::new());
    if let Some(repository) = path.strip_prefix("/api/") {
        let folder = root.join(repository.trim_end_matches("/revision/main"));
        let Ok(entries) = fs::read_dir(folder) else {
            return missing;
        };
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let names: Vec<_> = names
            .map(|name| serde_json::json!({"rfilename": name}))
            .collect();
        let info = serde_json::json!({"sha": COMMIT, "siblings": names});
        return ("200 OK".to_owned(), info.to_string().into_bytes());
    }
    let path = path.replace(&format!("/resolve/{COMMIT}"), "");
    let path = match path.strip_prefix("/datasets/") {
        Some(path) => root.join("datasets").join(path),
        None => root.join("models").join(&path[1..]),
    };
    match fs::read(&path) {
        Ok(body) => {
            let name = path
                .file_name()
                .unwrap()
                .to_str()
                .unwrap()
                .replace('.', "-");
            (format!("200 OK\r\nETag: \"{name}\""), body)
        }
        Err(_) => missing,
    }
}

#[test]
fn what_the_cache_does_not_have_is_downloaded() {
    let here = Workspace::new();
    for entry in fs::read_dir(here.path("tiny-llama")).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        here.write(
            &format!("hub/models/org/tiny/{name}"),
            fs::read(entry.path()).unwrap(),
        );
    }
    here.write("hub/models/org/tiny/model.onnx", "of no use");
    let data = fs::read(here.path("data/shout.jsonl")).unwrap();
    for name in ["p1.jsonl", "p2.jsonl", "q.csv"] {
        here.write(&format!("hub/datasets/org/rows/{name}"), &data);
    }
    here.write("run.yaml", CONFIG.replace(", 'more/*.jsonl.gz'", ""));
    let endpoint = serve(&here);
    let trained = run_with(
        &here,
        Some(&endpoint),
        &["train", "run.yaml", "--device", "cpu"],
    );
    assert_eq!(trained.code, 0, "{}", trained.all());
    for said in [
        "downloads model `org/tiny` to `[DIR]/cache`",
        "  p2.jsonl: ",
        "  model.safetensors: ",
    ] {
        assert!(trained.stderr.contains(said), "{}", trained.stderr);
    }
    for (repository, unwanted) in [
        ("models--org--tiny", "model-onnx"),
        ("datasets--org--rows", "q-csv"),
    ] {
        let blobs = here.path(&format!("cache/{repository}/blobs"));
        assert!(blobs.is_dir() && !blobs.join(unwanted).exists());
    }
    // Then it is there for good.
    let again = ["check", "run.yaml", "--set", "output_dir=again"];
    let again = run(&here, &again);
    assert_eq!(again.code, 0, "{}", again.all());
    // The answer of the Hub explains a file that it lacks, too.
    let set = ["plan", "run.yaml", "--set", "model=org/other"];
    let refused = run_with(&here, Some(&endpoint), &set);
    assert_eq!(refused.code, 3, "{}", refused.all());
    for said in [
        "has no model `org/other`; ",
        "/api/models/org/other/revision/main returned 404",
    ] {
        assert!(refused.stderr.contains(said), "{}", refused.stderr);
    }
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
        trained.stderr.contains("matches only downloaded files, 2"),
        "{}",
        trained.stderr
    );
    let eval = ["eval", "--run", "run", "--dataset", "rows", "--json"];
    let before = run(&here, &eval);
    assert_eq!(before.code, 0, "{}", before.all());

    let of_model = |model| {
        run(
            &here,
            &[
                "eval",
                "--model",
                model,
                "--compare-base",
                "--dataset",
                "data/shout.jsonl",
            ],
        )
    };
    let named = of_model("org/tiny");
    assert_eq!(named.code, 0, "{}", named.all());
    let nowhere = of_model("org/none");
    assert_eq!(nowhere.code, 2, "{}", nowhere.all());
    assert!(
        nowhere.stderr.contains("`hf download org/none`"),
        "{}",
        nowhere.stderr
    );

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
            "download it with `hf download org/tiny`",
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

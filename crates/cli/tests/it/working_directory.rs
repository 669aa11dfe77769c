//! Runs belong to no working directory, and to one model.

use std::fs;

use crate::{
    server::{Server, served, until},
    support::{Run, Workspace},
};

const FEW: [&str; 4] = ["--set", "defaults.train.max_steps=2", "--device", "cpu"];

/// What a command said, if it ended well.
fn ok(run: Run) -> Run {
    assert_eq!(run.code, 0, "{}", run.all());
    run
}

fn weights(here: &Workspace, run: &str) -> Vec<u8> {
    let file = format!("{run}/adapters/shout-r4/last/adapter_model.safetensors");
    fs::read(here.path(&file)).unwrap()
}

#[test]
fn a_configuration_means_the_same_from_everywhere() {
    let here = Workspace::empty();
    ok(here.run(&["init", "my-run"]));
    let checked = ok(here.run(&["check", "my-run/loraloom.yaml"])).stdout;
    assert!(checked.contains("my-run/runs/first"), "{checked}");
    ok(here.run(&[&["train", "my-run/loraloom.yaml"], &FEW[..]].concat()));
    let from_above = weights(&here, "my-run/runs/first");
    fs::rename(here.path("my-run/runs"), here.path("my-run/above")).unwrap();
    ok(here.run_in("my-run", &[&["train", "loraloom.yaml"], &FEW[..]].concat()));
    assert!(weights(&here, "my-run/runs/first") == from_above);
    for (folder, entries) in [("", 1), ("my-run", 5)] {
        let found = fs::read_dir(here.path(folder)).unwrap().count();
        assert_eq!(found, entries, "{folder}");
    }
}

#[test]
fn every_command_on_a_run_works_from_everywhere() {
    let here = Workspace::empty();
    ok(here.run(&["init", "a"]));
    fs::create_dir(here.path("b")).unwrap();
    let train = [
        &["train", "loraloom.yaml", "--output-dir", "../runs/x"],
        &FEW[..],
    ]
    .concat();
    ok(here.run_in("a", &train));
    let kept = fs::read_to_string(here.path("runs/x/config.resolved.yaml")).unwrap();
    let shown = ok(here.run_in("a", &["config", "show", "loraloom.yaml"])).stdout;
    for text in [
        kept.replace(here.path("").to_str().unwrap(), "[DIR]/"),
        shown,
    ] {
        assert!(text.contains("model: [DIR]/a/tiny-llama\n"), "{text}");
        assert!(text.contains("- [DIR]/a/data/shout.jsonl\n"), "{text}");
    }
    let adapter = here.path("runs/x/adapters/shout-r4/last/adapter_config.json");
    let adapter: serde_json::Value = serde_json::from_slice(&fs::read(adapter).unwrap()).unwrap();
    let base = here.path("a/tiny-llama");
    assert_eq!(adapter["base_model_name_or_path"], base.to_str().unwrap());

    ok(here.run_in("b", &["train", "--resume", "../runs/x"]));
    ok(here.run_in("b", &["plan", "../runs/x/config.resolved.yaml"]));
    let asked = [
        "generate",
        "--run",
        "../runs/x",
        "--adapter",
        "shout-r4",
        "hi",
    ];
    ok(here.run_in("b", &asked));

    // A run goes on where it was moved to.
    fs::rename(here.path("runs/x"), here.path("b/moved")).unwrap();
    ok(here.run_in("b", &["train", "--resume", "moved"]));
    assert!(!here.path("runs/x").exists());

    let server = "model: tiny-llama\ndevice: cpu\n";
    here.write("a/server.yaml", server);
    ok(here.run_in(
        "a",
        &["serve", "../run", "--config", "server.yaml", "--drain"],
    ));
    ok(here.run_in(
        "a",
        &[&["submit", "../run", "loraloom.yaml"], &FEW[..2]].concat(),
    ));
    ok(here.run_in(
        "b",
        &[
            "clone", "../run", "shout-r4", "--name", "again", "--set", "lora.r=2",
        ],
    ));
    ok(here.run_in("b", &["serve", "../run", "--drain"]));
    let status = ok(here.run_in("b", &["status", "../run", "--json"])).json();
    let tasks = status["tasks"].as_array().unwrap();
    assert_eq!(tasks.len(), 7);
    assert!(tasks.iter().all(|task| task["state"] == "done"), "{status}");
}

#[test]
fn another_model_in_the_place_of_a_runs_is_refused() {
    let here = Workspace::new();
    here.write("server.yaml", "model: tiny-llama\ndevice: cpu\n");
    ok(here.run(&[&["train", "loraloom.yaml", "--output-dir", "x"], &FEW[..]].concat()));
    let server = Server::start(&here, &["--config", "server.yaml"]);
    served(&here);
    let task = "datasets: {d: {path: data/shout.jsonl}}\nadapters: [{name: task}]\n";
    here.write(
        "task.yaml",
        format!("{task}defaults: {{train: {{max_steps: 2}}}}\n"),
    );
    ok(here.run(&["submit", "run", "task.yaml"]));
    until("checkpoint", || {
        here.path("run/adapters/task/last").exists()
    });
    drop(server);

    // The same shapes and other weights.
    let path = here.path("tiny-llama/model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.len() - 64;
    bytes[at..].fill(0);
    ok(here.run(&["init", "same"]));
    fs::write(&path, bytes).unwrap();
    let generate = ["generate", "--run", "x", "--adapter", "shout-r4", "hi"];
    let clone = ["clone", "run", "task", "--name", "b"];
    for command in [
        &generate[..],
        &["submit", "run", "task.yaml"],
        &clone,
        // A server that takes the model ends, too.
        &["serve", "run", "--drain"],
    ] {
        let run = here.run(command);
        assert_eq!(run.code, 2, "{command:?}: {}", run.all());
        assert!(run.stderr.contains("weights"), "{}", run.stderr);
    }
    // The run's model at another place, and any model for an adapter by itself.
    ok(here.run(&[&generate[..], &["--model", "same/tiny-llama"]].concat()));
    let own = [
        "--model",
        "tiny-llama",
        "--adapter",
        "x/adapters/shout-r4/last",
        "hi",
    ];
    ok(here.run(&[&["generate"], &own[..]].concat()));
}

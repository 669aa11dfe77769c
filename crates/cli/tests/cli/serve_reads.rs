//! A large dataset comes to a server that trains.

use std::{fmt::Write, fs};

use crate::{
    serve::{Server, ok, served, step, until, wait_for_state, workspace},
    support::Workspace,
};

const ROWS: usize = 60_000;

const LARGE: &str = "\
model: tiny-llama
datasets:
  large: {path: data/large.jsonl}
defaults:
  train: {batch_size: 2, max_steps: 5, max_seq_len: 48}
adapters:
  - {name: NAME, dataset: large, lora: {r: 2}}
";

/// Submits an adapter with a dataset that takes a while to read, and waits until it is being read.
fn submit(here: &Workspace, name: &str) {
    here.write("large.yaml", LARGE.replace("NAME", name));
    ok(here, &["submit", "run", "large.yaml"]);
    until(&format!("reading for {name}"), || is_read(here, name));
}

fn is_read(here: &Workspace, name: &str) -> bool {
    let explained = ok(here, &["explain", "run", name]).stdout;
    explained.contains("its dataset is being read")
}

fn events(here: &Workspace, kind: &str) -> usize {
    let events = fs::read_to_string(here.path("run/events.jsonl")).unwrap();
    let kind = format!("\"event\":\"{kind}\"");
    events.lines().filter(|line| line.contains(&kind)).count()
}

#[test]
fn others_train_while_a_large_dataset_is_read() {
    let here = workspace();
    let mut rows = String::new();
    for row in 0..ROWS {
        writeln!(
            rows,
            r#"{{"prompt": "number {row}", "completion": "{}"}}"#,
            row * 7
        )
        .unwrap();
    }
    here.write("data/large.jsonl", rows);
    let _server = Server::start(&here, &["--config", "server.yaml"]);
    served(&here);
    let endless = [
        "submit",
        "run",
        "tasks.yaml",
        "--set",
        "adapters.shout-r2.train.max_steps=100000",
    ];
    ok(&here, &endless);
    wait_for_state(&here, "shout-r3", "done");
    until("a place", || step(&here, "shout-r2") > 0);

    submit(&here, "read");
    let before = events(&here, "step");
    until("rows", || !is_read(&here, "read"));
    let after = events(&here, "step");
    assert!(after > before + 1, "{before} steps before, {after} after");
    wait_for_state(&here, "read", "done");

    // What its owner asks meanwhile holds when the rows are there.
    submit(&here, "held");
    ok(&here, &["pause", "run", "held"]);
    submit(&here, "unwanted");
    ok(&here, &["cancel", "run", "unwanted"]);
    submit(&here, "last");
    wait_for_state(&here, "last", "done");
    wait_for_state(&here, "held", "paused");
    wait_for_state(&here, "unwanted", "cancelled");
    assert_eq!((step(&here, "held"), step(&here, "unwanted")), (0, 0));
    ok(&here, &["resume", "run", "held"]);
    wait_for_state(&here, "held", "done");
}

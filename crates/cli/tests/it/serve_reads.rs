//! Datasets whose rows let wait for them come to a server that trains.

use std::{fs, process::Command, thread};

use crate::{
    server::{Server, ok, served, step, until, wait_for_state, workspace},
    support::Workspace,
};

const TASK: &str = "\
model: tiny-llama
datasets:
  slow: {path: data/NAME.csv}
defaults:
  train: {batch_size: 2, max_steps: 5, max_seq_len: 48}
adapters:
  - {name: NAME, dataset: slow, lora: {r: 2}}
";

/// Submits an adapter whose dataset is a pipe.
fn submit(here: &Workspace, name: &str) {
    let pipe = here.path(&format!("data/{name}.csv"));
    let made = Command::new("mkfifo").arg(pipe).status().unwrap();
    assert!(made.success(), "no pipe for {name}");
    let config = format!("{name}.yaml");
    here.write(&config, TASK.replace("NAME", name));
    // It reads the rows to say what is wrong with them.
    give_rows(here, name);
    ok(here, &["submit", "run", &config]);
    until(&format!("reading for {name}"), || is_read(here, name));
}

/// Gives the rows to whoever reads the adapter's dataset next.
fn give_rows(here: &Workspace, name: &str) {
    let pipe = here.path(&format!("data/{name}.csv"));
    let rows = (0..20).map(|row| format!("number {row},{}\n", row * 7));
    let rows: String = std::iter::once("prompt,completion\n".to_owned())
        .chain(rows)
        .collect();
    thread::spawn(move || fs::write(pipe, rows).unwrap());
}

fn is_read(here: &Workspace, name: &str) -> bool {
    let explained = ok(here, &["explain", "run", name]).stdout;
    explained.contains("its dataset is being read")
}

#[test]
fn others_train_while_a_dataset_is_read() {
    let here = workspace();
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
    let before = step(&here, "shout-r2");
    until("steps", || step(&here, "shout-r2") > before + 5);
    assert!(is_read(&here, "read"));
    give_rows(&here, "read");
    wait_for_state(&here, "read", "done");

    // What its owner asks meanwhile holds when the rows are there.
    for name in ["held", "unwanted", "last"] {
        submit(&here, name);
    }
    ok(&here, &["pause", "run", "held"]);
    ok(&here, &["cancel", "run", "unwanted"]);
    wait_for_state(&here, "unwanted", "cancelled");
    for name in ["held", "unwanted", "last"] {
        give_rows(&here, name);
    }
    wait_for_state(&here, "last", "done");
    wait_for_state(&here, "held", "paused");
    wait_for_state(&here, "unwanted", "cancelled");
    assert_eq!((step(&here, "held"), step(&here, "unwanted")), (0, 0));
    ok(&here, &["resume", "run", "held"]);
    wait_for_state(&here, "held", "done");
}

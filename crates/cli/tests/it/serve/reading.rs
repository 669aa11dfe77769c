//! Datasets that are slow to read, submitted to a server that trains.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use crate::{
    server::{Server, ok, served, step, task, until, wait_for_state, workspace},
    support::Workspace,
};

/// A task whose template loops as often as a row says, without output.
const TASK: &str = "\
model: tiny-llama
datasets:
  slow:
    path: data/NAME.jsonl
    template: '{% for a in range(loops) %}{% for b in range(8000) %}{% endfor %}{% endfor %}{{ text }}'
defaults:
  train: {batch_size: 2, max_steps: 5, max_seq_len: 48}
adapters:
  - {name: NAME, dataset: slow, lora: {r: 2}}
";

/// 96 rows, always with the same text, that take a while to render if there are loops.
fn write_rows(here: &Workspace, name: &str, loops: usize) {
    here.write(&format!("data/{name}.jsonl"), rows(loops));
}

fn rows(loops: usize) -> String {
    let rows = (0..96).map(|row| format!("{{\"text\": \"number {row}\", \"loops\": {loops}}}\n"));
    rows.collect()
}

/// Rows that take an hour.
fn write_endless_rows(here: &Workspace, name: &str) {
    here.write(&format!("data/{name}.jsonl"), rows(300).repeat(400));
}

/// Sends SIGTERM and waits, but not as long as reading takes.
fn stops_within_seconds(mut server: Server) {
    let begun = Instant::now();
    server.signal("-TERM");
    assert!(server.ends().is_some());
    assert!(begun.elapsed() < Duration::from_secs(20), "{begun:?}");
}

fn submit(here: &Workspace, name: &str) {
    write_rows(here, name, 0);
    let config = format!("{name}.yaml");
    here.write(&config, TASK.replace("NAME", name));
    ok(here, &["submit", "run", &config]);
}

fn is_read(here: &Workspace, name: &str) -> bool {
    let explained = ok(here, &["explain", "run", name]).stdout;
    explained.contains("its dataset is being read")
}

/// A checkpoint is made only once what an earlier process has trained is in it again.
#[test]
fn a_task_whose_rows_are_read_slowly_goes_on_where_it_was() {
    let here = workspace();
    let server = Server::start(&here, &["--config", "server.yaml"]);
    served(&here);
    for name in ["quick", "slow"] {
        write_rows(&here, name, 0);
        let task = TASK
            .replace("NAME", name)
            .replace("max_steps: 5,", "max_steps: 100000,")
            .replace("48}", "48}\n  save: {steps: 3}");
        here.write("task.yaml", task);
        ok(&here, &["submit", "run", "task.yaml"]);
    }
    let saved = || task(&here, "slow")["saved_step"].as_u64() > Some(9);
    until("checkpoints", saved);
    server.kill();

    let text = || std::fs::read_to_string(here.path("run/events.jsonl")).unwrap();
    write_endless_rows(&here, "slow");
    let resumed = || text().matches(r#""event":"resume""#).count();
    let before = resumed();
    let server = Server::start(&here, &[]);
    until("a server that reads", || resumed() > before);
    sleep(Duration::from_secs(2));
    stops_within_seconds(server);

    write_rows(&here, "slow", 100);
    let checkpoints = || text().matches(r#""event":"run_checkpoint""#).count();
    let before = checkpoints();
    let server = Server::start(&here, &[]);
    until("checkpoints of the next process", || {
        checkpoints() > before + 3
    });
    server.kill();
    write_rows(&here, "slow", 0);
    let steps = text().matches(r#""event":"step""#).count();
    let _server = Server::start(&here, &[]);
    until("steps", || {
        text().matches(r#""event":"step""#).count() > steps + 10
    });
    let text = text();
    let first = text.lines().filter(|line| {
        line.contains(r#""event":"step""#) && line.contains(r#""adapter":"slow","step":1,"#)
    });
    assert_eq!(first.count(), 1, "it started over");
}

#[test]
fn a_server_that_reads_a_dataset_stops_within_seconds() {
    let here = workspace();
    let server = Server::start(&here, &["--config", "server.yaml"]);
    served(&here);
    server.kill();
    submit(&here, "slow");
    write_endless_rows(&here, "slow");
    let server = Server::start(&here, &[]);
    until("a server that reads", || is_read(&here, "slow"));
    sleep(Duration::from_secs(2));
    stops_within_seconds(server);
}

#[test]
fn others_train_while_a_dataset_is_read() {
    let here = workspace();
    Server::start(&here, &["--config", "server.yaml"]).kill_once_served(&here);
    let endless = [
        "submit",
        "run",
        "tasks.yaml",
        "--set",
        "adapters.shout-r2.train.max_steps=100000",
    ];
    ok(&here, &endless);
    for name in ["slow", "held", "unwanted", "last"] {
        submit(&here, name);
    }
    // Longer than the steps and commands below take on a busy machine.
    write_rows(&here, "slow", 100);
    let _server = Server::start(&here, &[]);
    served(&here);
    until("a place", || step(&here, "shout-r2") > 0);
    let before = step(&here, "shout-r2");
    until("steps", || step(&here, "shout-r2") > before + 5);
    assert!(is_read(&here, "slow"));

    // What its owner asks meanwhile holds when the rows are there.
    ok(&here, &["pause", "run", "held"]);
    ok(&here, &["cancel", "run", "unwanted"]);
    wait_for_state(&here, "unwanted", "cancelled");
    assert!(is_read(&here, "slow") && is_read(&here, "last"));
    wait_for_state(&here, "slow", "done");
    wait_for_state(&here, "last", "done");
    wait_for_state(&here, "held", "paused");
    wait_for_state(&here, "unwanted", "cancelled");
    assert_eq!((step(&here, "held"), step(&here, "unwanted")), (0, 0));
    ok(&here, &["resume", "run", "held"]);
    wait_for_state(&here, "held", "done");
}

//! A server whose disk is full for a while.

use std::{fs, path::Path, process::Command};

use crate::support::Workspace;

const TASKS: &str = "\
model: tiny-llama
output_dir: alone
device: cpu
scheduler: {max_adapters: 1}
datasets:
  shout: {path: data/shout.jsonl}
  number: {path: data/number.jsonl}
defaults:
  lora: {lora_dropout: 0.1}
  train: {batch_size: 2, max_steps: 60, max_seq_len: 48, learning_rate: 1.0e-2}
  save: {steps: 5}
adapters:
  - {name: shout, dataset: shout, lora: {r: 2}}
  - {name: number, dataset: number, lora: {r: 4}}
";

/// The run directory `run` is a small file system that only this script sees. Once the event that it is
/// given has come, a file takes all that is left of it, and goes when the server has ended. The server stands
/// still while the file grows, for it would else be done before on a busy machine.
const SCRIPT: &str = r#"
mount -t tmpfs -o size=16m none run
"$1" serve run --config tasks.yaml --drain --no-progress 2>first.log & server=$!
until grep -qs '"event":"'$2'"' run/events.jsonl; do sleep 0.01; done
kill -STOP $server
cat /dev/zero >run/ballast 2>/dev/null || true
kill -CONT $server
code=0; wait $server || code=$?
echo $code >code
rm run/ballast
"$1" serve run --drain --no-progress 2>second.log
"$1" status run --json >status.json
cp -r run/adapters saved
cp run/events.jsonl events.jsonl
"#;

/// Runs a script where file systems can be mounted, if there is such a place.
fn in_a_mount_namespace(here: &Path, script: &str, arguments: [&str; 2]) -> Option<bool> {
    let unshare = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["-U", "-r", "-m", "sh", "-e", "-c", script, "sh"]);
        command.args(arguments).current_dir(here);
        command
    };
    let probe = unshare("mount -t tmpfs none run").output();
    if !probe.is_ok_and(|output| output.status.success()) {
        return None;
    }
    Some(unshare(script).status().unwrap().success())
}

/// What is written first finds the disk full: mostly the queue after an `admit`, an adapter's file after
/// a `step`.
#[expect(clippy::print_stdout, reason = "a test that is skipped says so")]
fn a_full_disk_loses_nothing(event: &str) {
    let here = Workspace::new();
    here.write("tasks.yaml", TASKS);
    fs::create_dir(here.path("run")).unwrap();
    let program = assert_cmd::cargo::cargo_bin!("loraloom");
    let arguments = [program.to_str().unwrap(), event];
    let Some(went_well) = in_a_mount_namespace(&here.path(""), SCRIPT, arguments) else {
        println!("skipped: no file system can be mounted here");
        return;
    };
    let log = |name: &str| fs::read_to_string(here.path(name)).unwrap_or_default();
    assert!(went_well, "{}\n{}", log("first.log"), log("second.log"));
    let first = log("first.log");
    assert!(first.to_lowercase().contains("no space left"), "{first}");
    assert_eq!(log("code").trim(), "75", "{first}");

    // What was half written is cut off.
    for line in log("events.jsonl").lines() {
        let event: Result<serde_json::Value, _> = serde_json::from_str(line);
        assert!(event.is_ok(), "{line}");
    }
    let alone = here.run(&["train", "tasks.yaml", "--no-progress"]);
    assert_eq!(alone.code, 0, "{}", alone.all());
    for name in ["shout", "number"] {
        let weights = |directory: &str| {
            let file = format!("{directory}/{name}/last/adapter_model.safetensors");
            fs::read(here.path(&file)).unwrap()
        };
        assert!(weights("saved") == weights("alone/adapters"), "{name}");
    }
    let status: serde_json::Value = serde_json::from_str(&log("status.json")).unwrap();
    let tasks = status["tasks"].as_array().unwrap();
    assert!(
        tasks.len() == 2 && tasks.iter().all(|task| task["state"] == "done"),
        "{status}"
    );
}

#[test]
fn a_disk_that_is_full_before_the_first_step_ends_a_server_and_loses_nothing() {
    a_full_disk_loses_nothing("admit");
}

#[test]
fn a_disk_that_is_full_after_a_step_ends_a_server_and_loses_nothing() {
    a_full_disk_loses_nothing("step");
}

/// Neither a run nor a server can begin on a full disk; both do once there is room.
const AT_THE_START: &str = r#"
mount -t tmpfs -o size=16m none run
cat /dev/zero >run/ballast 2>/dev/null || true
for what in "train tasks.yaml --output-dir run/trained" "serve run/served --config tasks.yaml --drain"; do
    code=0; "$1" $what --no-progress 2>>first.log || code=$?
    echo $code >>code
    rm run/ballast
    "$1" $what --no-progress 2>>second.log
    rm -rf run/trained
    cat /dev/zero >run/ballast 2>/dev/null || true
done
"#;

#[test]
fn nothing_is_left_in_the_way_of_a_run_that_could_not_begin() {
    let here = Workspace::new();
    here.write("tasks.yaml", TASKS.replace("max_steps: 60", "max_steps: 2"));
    fs::create_dir(here.path("run")).unwrap();
    let program = assert_cmd::cargo::cargo_bin!("loraloom");
    let arguments = [program.to_str().unwrap(), ""];
    let log = |name: &str| fs::read_to_string(here.path(name)).unwrap_or_default();
    match in_a_mount_namespace(&here.path(""), AT_THE_START, arguments) {
        None => println!("skipped: no file system can be mounted here"),
        Some(went_well) => {
            assert!(went_well, "{}\n{}", log("first.log"), log("second.log"));
            assert_eq!(log("code"), "75\n75\n", "{}", log("first.log"));
        }
    }
}

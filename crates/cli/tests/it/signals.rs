//! Runs and servers react to signals.

use std::{
    fs,
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    server::{Server, ok, served, step, until, wait_for_state, workspace},
    support::{Workspace, signal},
};

/// Two adapters of which one waits, far from their ends and from any save.
const CONFIG: &str = "\
model: tiny-llama
output_dir: run
device: cpu
scheduler: {max_adapters: 1}
datasets: {number: {path: data/number.jsonl}}
defaults:
  train: {batch_size: 2, max_steps: 100000, max_seq_len: 48, learning_rate: 1.0e-3}
  save: {steps: 100000}
adapters:
  - {name: first, dataset: number}
  - {name: second, dataset: number}
";

/// A process that is killed when a test ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    fn start(mut command: Command) -> Self {
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().unwrap())
    }

    fn signal(&self, name: &str) {
        signal(&self.0, name);
    }
}

fn events(here: &Workspace, kind: &str) -> Vec<Value> {
    let text = fs::read_to_string(here.path("run/events.jsonl")).unwrap_or_default();
    // The last line may not be whole yet.
    let events = text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    events
        .filter(|event: &Value| event["event"] == kind)
        .collect()
}

fn iterations(here: &Workspace) -> u64 {
    let events = events(here, "iteration");
    let last = events.last().map(|event| &event["iteration"]);
    last.and_then(Value::as_u64).unwrap_or(0)
}

fn more_iterations(here: &Workspace) {
    let before = iterations(here);
    until("iteration", || iterations(here) > before + 5);
}

fn saved(here: &Workspace, adapter: &str) -> bool {
    let path = format!("run/adapters/{adapter}/last/adapter_model.safetensors");
    here.path(&path).exists()
}

/// Tells if these tests ignore SIGHUP, as under nohup. Their child processes then ignore it, too.
fn hangups_are_ignored() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & 1 == 1)
}

#[test]
fn a_hangup_stops_a_run_as_a_termination_does() {
    for signal in ["-HUP", "-TERM"] {
        if signal == "-HUP" && hangups_are_ignored() {
            println!("skipped: SIGHUP is ignored here");
            continue;
        }
        let here = Workspace::new();
        here.write("config.yaml", CONFIG);
        let mut run = Running::start(here.command(&["train", "config.yaml", "--no-progress"]));
        more_iterations(&here);
        run.signal(signal);
        assert_eq!(run.0.wait().unwrap().code(), Some(130), "{signal}");
        assert!(saved(&here, "first"), "{signal}");
    }
}

/// Both signals come while the process is halted, so that nothing can be saved between them.
#[test]
fn a_second_signal_ends_a_run_at_once() {
    let here = Workspace::new();
    here.write("config.yaml", CONFIG);
    let mut run = Running::start(here.command(&["train", "config.yaml", "--no-progress"]));
    more_iterations(&here);
    for signal in ["-STOP", "-INT", "-TERM", "-CONT"] {
        run.signal(signal);
    }
    assert_eq!(run.0.wait().unwrap().code(), Some(130));
    assert!(!saved(&here, "first"));
}

/// The first step takes minutes: it is over 60,000 rows.
#[test]
fn a_signal_inside_a_long_step_ends_a_run_or_server_within_ten_seconds() {
    let here = Workspace::new();
    let rows = fs::read_to_string(here.path("data/number.jsonl")).unwrap();
    here.write("data/number.jsonl", rows.repeat(200));
    let long = "train: {batch_size: 2, gradient_accumulation_steps: 30000,";
    here.write(
        "config.yaml",
        CONFIG.replace("train: {batch_size: 2,", long),
    );
    let start = |arguments: &[&str], said: &str| {
        let mut command = here.command(arguments);
        let stderr = fs::File::create(here.path(said)).unwrap();
        Running(
            command
                .stdout(Stdio::null())
                .stderr(stderr)
                .spawn()
                .unwrap(),
        )
    };
    let mut run = start(
        &["train", "config.yaml", "--no-progress", "--samples", "0"],
        "train.log",
    );
    let mut server = start(
        &[
            "serve",
            "served",
            "--config",
            "config.yaml",
            "--no-progress",
        ],
        "serve.log",
    );
    until("checkpoint", || !events(&here, "run_checkpoint").is_empty());
    let admitted = || fs::read_to_string(here.path("served/events.jsonl")).unwrap_or_default();
    until("admission", || admitted().contains("\"event\":\"admit\""));
    sleep(Duration::from_secs(1));
    let begun = Instant::now();
    for process in [&run, &server] {
        process.signal("-TERM");
    }
    assert_eq!(run.0.wait().unwrap().code(), Some(130));
    assert_eq!(server.0.wait().unwrap().code(), Some(130));
    let seconds = begun.elapsed().as_secs_f64();
    assert!((5.0..10.0).contains(&seconds), "{seconds} seconds");
    let dropped =
        "the current step takes more than 5 seconds: it is dropped, and repeated on resume\n";
    let way_back = "hint: continue from the last checkpoint with `loraloom train --resume run`\n";
    for (said, end) in [
        ("train.log", format!("{dropped}{way_back}")),
        ("serve.log", dropped.to_owned()),
    ] {
        let text = fs::read_to_string(here.path(said)).unwrap();
        assert!(text.ends_with(&end), "{text}");
    }
}

/// A task that its owner holds is in the checkpoint of a stop with all its steps. `resume` says who goes
/// on with one that a server trains, or trained.
#[test]
fn a_server_that_is_stopped_saves_paused_tasks() {
    let here = workspace();
    here.write("config.yaml", CONFIG);
    let server = Server::start(&here, &["--config", "server.yaml"]);
    served(&here);
    ok(&here, &["submit", "run", "config.yaml"]);
    let refused = |why: &str| {
        let run = here.run(&["resume", "run", "first"]);
        assert_eq!(run.code, 2, "{}", run.all());
        assert!(run.stderr.contains(why), "{}", run.stderr);
    };
    until("step", || step(&here, "first") > 3);
    refused("cannot resume task 1 (`first`): it is running");
    server.kill();
    refused("`first` is not paused: it is interrupted, and no server runs");
    ok(&here, &["cancel", "run", "second"]);

    let mut server = Server::start(&here, &[]);
    until("step", || step(&here, "first") > 6);
    ok(&here, &["pause", "run", "first"]);
    wait_for_state(&here, "first", "paused");
    server.signal("-TERM");
    assert_eq!(server.ends(), Some(0));
    let newest = events(&here, "run_checkpoint").pop().unwrap();
    assert_eq!(newest["steps"]["first"], step(&here, "first"));
    assert!(step(&here, "first") > 6);
}

#[cfg(target_os = "linux")]
#[test]
fn a_run_under_nohup_outlives_its_terminal() {
    let here = Workspace::new();
    here.write("config.yaml", CONFIG);
    let train = here.command(&["train", "config.yaml", "--no-progress"]);
    // As nohup does.
    let mut command = Command::new("sh");
    command
        .args(["-c", "trap '' HUP; exec \"$@\"", "sh"])
        .arg(train.get_program())
        .args(train.get_args())
        .current_dir(here.path("."));
    let mut run = Running::start(command);
    more_iterations(&here);
    run.signal("-HUP");
    more_iterations(&here);
    assert!(run.0.try_wait().unwrap().is_none(), "it goes on");
    run.signal("-TERM");
    assert_eq!(run.0.wait().unwrap().code(), Some(130));
}

#[test]
fn a_run_saves_when_it_is_asked_to_and_goes_on() {
    let here = Workspace::new();
    here.write("config.yaml", CONFIG);
    let train =
        |more: &[&str]| Running::start(here.command(&[&["train", "--no-progress"], more].concat()));
    let mut run = train(&["config.yaml"]);
    // The first is from before the first step.
    let saves = || events(&here, "run_checkpoint").len() - 1;
    for times in 1..=2 {
        more_iterations(&here);
        assert_eq!(saves(), times - 1, "nothing else saves here");
        let before = iterations(&here);
        run.signal("-USR1");
        until("checkpoint", || saves() == times);
        let checkpoint = events(&here, "run_checkpoint").pop().unwrap();
        let path = here.path("run").join(checkpoint["path"].as_str().unwrap());
        assert!(path.join("manifest.json").exists(), "{checkpoint}");
        assert!(checkpoint["iteration"].as_u64() >= Some(before));
        assert!(saved(&here, "first") && !saved(&here, "second"));
        assert_eq!(events(&here, "checkpoint").len(), times);
    }
    more_iterations(&here);
    run.0.kill().unwrap();
    run.0.wait().unwrap();

    let newest = events(&here, "run_checkpoint").pop().unwrap();
    let _run = train(&["--resume", "run"]);
    until("run that goes on", || !events(&here, "resume").is_empty());
    assert_eq!(events(&here, "resume")[0]["iteration"], newest["iteration"]);
}

#[test]
fn a_server_saves_running_and_parked_tasks_when_it_is_asked_to() {
    let here = workspace();
    here.write("config.yaml", CONFIG);
    let server = Server::start(&here, &["--config", "server.yaml"]);
    served(&here);
    ok(&here, &["submit", "run", "config.yaml"]);
    let pause = |name: &str| {
        until("step", || step(&here, name) > 3);
        ok(&here, &["pause", "run", name]);
        wait_for_state(&here, name, "paused");
    };
    // The first is from before the first task.
    let saves = || events(&here, "run_checkpoint").len() - 1;
    pause("first");
    until("checkpoint of what is paused", || saves() == 1);
    let running = step(&here, "second");
    until("steps", || step(&here, "second") > running + 3);
    assert_eq!(saves(), 1, "nothing else saves here");
    server.signal("-USR1");
    until("checkpoint", || saves() == 2);
    assert!(saved(&here, "first") && saved(&here, "second"));

    let running = step(&here, "second");
    until("step", || step(&here, "second") > running);
    pause("second");
    until("checkpoint of what is paused", || saves() == 3);
    server.signal("-USR1");
    until("checkpoint of an idle server", || saves() == 4);
    let checkpoints = events(&here, "checkpoint");
    let last = checkpoints.last().unwrap();
    assert_eq!(last["adapter"], "second");
    assert_eq!(last["step"], step(&here, "second"));
}

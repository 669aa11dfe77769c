//! A server, and helpers that read the state of its tasks.

use std::{
    fs,
    io::{BufRead, BufReader},
    process::{Child, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::support::{Run, Workspace, signal};

const SERVER: &str = "\
model: tiny-llama
device: cpu
scheduler: {max_adapters: 2}
";

/// Three adapters with dropout, accumulation and validation.
const TASKS: &str = "\
model: tiny-llama
output_dir: alone
device: cpu
scheduler: {max_adapters: 1}
datasets:
  shout: {path: data/shout.jsonl, validation: 0.1}
  number: {path: data/number.jsonl}
defaults:
  lora: {lora_dropout: 0.1}
  train: {batch_size: 2, max_steps: 50, max_seq_len: 48, learning_rate: 1.0e-2, warmup_steps: 3}
  eval: {steps: 20}
  save: {steps: 5}
adapters:
  - {name: shout-r2, dataset: shout, lora: {r: 2}, train: {gradient_accumulation_steps: 2}}
  - {name: number-r4, dataset: number, lora: {r: 4}, save: {steps: 8}}
  - {name: shout-r3, dataset: shout, lora: {r: 3}, train: {max_steps: 35}}
";
pub(crate) const NAMES: [&str; 3] = ["shout-r2", "number-r4", "shout-r3"];

/// Longer than any test waits.
pub(crate) const LONG: &str = "train.max_steps=100000";

/// One task that does not end in a test.
pub(crate) const LONG_SHOUT: &str = "adapters.shout-r2.train.max_steps=100000";

/// A task that keeps three checkpoints.
pub(crate) const KEPT: &str = "\
model: tiny-llama
datasets: {number: {path: data/number.jsonl}}
defaults:
  train: {batch_size: 2, max_steps: 100000, max_seq_len: 48}
  save: {steps: 5, keep: 3}
adapters: [{name: number, dataset: number}]
";

pub(crate) struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Server {
    pub(crate) fn start(here: &Workspace, more: &[&str]) -> Self {
        let mut command = here.command(&[&["serve", "run", "--no-progress"], more].concat());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().unwrap())
    }

    /// Starts, and waits for the line that it serves.
    pub(crate) fn start_until_it_serves(here: &Workspace, more: &[&str]) -> Self {
        let mut command = here.command(&[&["serve", "run", "--no-progress"], more].concat());
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let server = Self(child);
        assert!(lines.any(|line| line.unwrap() == "serves run"));
        server
    }

    pub(crate) fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    pub(crate) fn kill_once_served(self, here: &Workspace) {
        served(here);
        self.kill();
    }

    /// Waits for its end; returns its exit code.
    pub(crate) fn ends(&mut self) -> Option<i32> {
        self.0.wait().unwrap().code()
    }

    /// Sends a signal, such as `-INT`.
    pub(crate) fn signal(&self, name: &str) {
        signal(&self.0, name);
    }
}

pub(crate) fn workspace() -> Workspace {
    let here = Workspace::new();
    here.write("server.yaml", SERVER);
    here.write("tasks.yaml", TASKS);
    here
}

pub(crate) fn ok(here: &Workspace, arguments: &[&str]) -> Run {
    let run = here.run(arguments);
    assert_eq!(run.code, 0, "{arguments:?}: {}", run.all());
    run
}

/// Waits for a server.
pub(crate) fn served(here: &Workspace) {
    until("a server", || {
        let run = here.run(&["status", "run", "--json"]);
        run.code == 0 && run.json()["served"] == true
    });
}

pub(crate) fn until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_mins(5), "no {what}");
        sleep(Duration::from_millis(30));
    }
}

/// Trains into `run`, and sends SIGINT once an event has come; returns all events.
pub(crate) fn interrupted_after(
    here: &Workspace,
    arguments: &[&str],
    is_it: impl Fn(&Value) -> bool,
) -> Vec<Value> {
    let before = fs::read_to_string(here.path("run/events.jsonl")).map_or(0, |text| text.len());
    let seen = || {
        let text = fs::read_to_string(here.path("run/events.jsonl")).unwrap_or_default();
        let lines = text.get(before..).unwrap_or_default().lines();
        // The last line may not be whole yet.
        let events = lines.filter_map(|line| serde_json::from_str(line).ok());
        events.collect::<Vec<Value>>()
    };
    let mut command = here.command(&[&["train", "--no-progress"], arguments].concat());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    until("such event", || seen().iter().any(&is_it));
    signal(&child, "-INT");
    assert_eq!(child.wait().unwrap().code(), Some(130));
    seen()
}

pub(crate) fn task(here: &Workspace, name: &str) -> Value {
    let status = ok(here, &["status", "run", "--json"]).json();
    let mut tasks = status["tasks"].as_array().unwrap().iter();
    tasks.find(|task| task["name"] == name).unwrap().clone()
}

pub(crate) fn step(here: &Workspace, name: &str) -> u64 {
    task(here, name)["step"].as_u64().unwrap()
}

pub(crate) fn wait_for_state(here: &Workspace, name: &str, state: &str) {
    until(&format!("{name} that is {state}"), || {
        task(here, name)["state"] == state
    });
}

fn weights(here: &Workspace, run: &str, name: &str) -> Vec<u8> {
    let path = format!("{run}/adapters/{name}/last/adapter_model.safetensors");
    fs::read(here.path(&path)).unwrap()
}

/// Trains the tasks one after another, without a server.
pub(crate) fn train_alone(here: &Workspace) {
    ok(here, &["train", "tasks.yaml", "--no-progress"]);
}

pub(crate) fn assert_as_alone(here: &Workspace, names: &[&str]) {
    for name in names {
        assert!(
            weights(here, "run", name) == weights(here, "alone", name),
            "{name} differs from its run alone"
        );
    }
}

/// The number of events of a kind.
pub(crate) fn events(here: &Workspace, kind: &str) -> usize {
    let text = fs::read_to_string(here.path("run/events.jsonl")).unwrap();
    text.matches(&format!(r#""event":"{kind}""#)).count()
}

/// A server that was started while data is away, and has said so.
pub(crate) fn start_without_data(here: &Workspace) -> Server {
    let before = events(here, "warning");
    let server = Server::start(here, &[]);
    until("a warning", || events(here, "warning") > before);
    until("a reason", || {
        let why = ok(here, &["explain", "run", "shout-r2"]).stdout;
        why.contains("it resumes when that is readable again")
    });
    server
}

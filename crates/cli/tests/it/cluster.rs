//! Workers as processes, runs over them, and what these leave behind.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::support::{Workspace, signal};

/// A worker of its own, which is gone with this.
pub(crate) struct Worker {
    process: Child,
    pub(crate) address: String,
}

impl Worker {
    /// One in a workspace with a token, which has read the model, on the device under test.
    pub(crate) fn start(workspace: &Workspace, name: &str, model: &str) -> Self {
        Self::start_at(workspace, None, ("127.0.0.1:0", name, model))
    }

    /// One that listens on an address, in a network namespace.
    pub(crate) fn start_at(
        workspace: &Workspace,
        namespace: Option<&str>,
        (listen, name, model): (&str, &str, &str),
    ) -> Self {
        let arguments = [
            "worker",
            "--listen",
            listen,
            "--identity",
            name,
            "--token-file",
            "token",
            "--model",
            model,
            "--device",
            &device(),
        ];
        Self::of(command(workspace, namespace, &arguments))
    }

    /// The worker that a command starts.
    pub(crate) fn of(mut command: Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().unwrap();
        let mut address = String::new();
        let mut stdout = BufReader::new(process.stdout.take().unwrap());
        stdout.read_line(&mut address).unwrap();
        assert!(address.starts_with("remote:"), "{address}");
        let address = address.trim().to_owned();
        Self { process, address }
    }

    pub(crate) fn signal(&self, name: &str) {
        signal(&self.process, name);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The device under test: `LORALOOM_TEST_DEVICE`, or the CPU.
pub(crate) fn device() -> String {
    std::env::var("LORALOOM_TEST_DEVICE").unwrap_or_else(|_| "cpu".to_owned())
}

pub(crate) fn workspace() -> Workspace {
    let workspace = Workspace::new();
    workspace.write("token", "a secret\n");
    workspace
}

fn stages(addresses: &[&str]) -> String {
    let quoted: Vec<String> = addresses
        .iter()
        .map(|address| format!("'{address}'"))
        .collect();
    format!("pipeline.stages=[{}]", quoted.join(", "))
}

/// `train` over these stages into a directory, for so many steps.
pub(crate) fn train(
    workspace: &Workspace,
    addresses: &[&str],
    output_dir: &str,
    steps: usize,
) -> Command {
    train_in(workspace, None, addresses, (output_dir, steps))
}

/// The same in a network namespace.
pub(crate) fn train_in(
    workspace: &Workspace,
    namespace: Option<&str>,
    addresses: &[&str],
    (output_dir, steps): (&str, usize),
) -> Command {
    let (stages, steps) = (
        stages(addresses),
        format!("defaults.train.max_steps={steps}"),
    );
    let arguments = [
        "train",
        "loraloom.yaml",
        "--output-dir",
        output_dir,
        "--no-progress",
        "--set",
        &stages,
        "--set",
        "pipeline.token_file=token",
        "--set",
        &steps,
        "--set",
        "defaults.train.warmup_steps=0",
        "--set",
        "defaults.eval.steps=4",
        "--set",
        "defaults.save.steps=5",
    ];
    command(workspace, namespace, &arguments)
}

/// The command, ready to be run in a network namespace.
fn command(workspace: &Workspace, namespace: Option<&str>, arguments: &[&str]) -> Command {
    match namespace {
        None => workspace.command(arguments),
        Some(namespace) => workspace.command_under(&["ip", "netns", "exec", namespace], arguments),
    }
}

pub(crate) fn ended(mut command: Command) -> (i32, String) {
    let output = command.output().unwrap();
    (output.status.code().unwrap(), stderr(&output))
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// All events of a run.
pub(crate) fn events(directory: &Path) -> Vec<serde_json::Value> {
    let events = fs::read_to_string(directory.join("events.jsonl")).unwrap();
    let events = events.lines();
    events
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// What was trained: every adapter's files, and losses and norms of every step.
pub(crate) fn trained(directory: &Path) -> (Vec<Vec<u8>>, Vec<serde_json::Value>) {
    let mut names: Vec<_> = fs::read_dir(directory.join("adapters"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    names.sort();
    let files = names
        .iter()
        .map(|name| fs::read(name.join("last/adapter_model.safetensors")).unwrap());
    let mut steps: Vec<serde_json::Value> = events(directory)
        .into_iter()
        .filter(|event: &serde_json::Value| event["event"] == "step")
        .map(|event| {
            serde_json::json!([
                event["adapter"],
                event["step"],
                event["loss"],
                event["grad_norm"]
            ])
        })
        .collect();
    steps.sort_by_key(ToString::to_string);
    (files.collect(), steps)
}

/// Waits until something has been saved.
pub(crate) fn wait_for_saves(directory: &Path) {
    let begun = Instant::now();
    while !directory
        .join("adapters/shout-r4/last/adapter_model.safetensors")
        .exists()
    {
        assert!(begun.elapsed() < Duration::from_mins(1), "nothing is saved");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Every file of weights is as long as it says.
pub(crate) fn assert_whole(directory: &Path) {
    let mut seen = 0;
    for adapter in fs::read_dir(directory.join("adapters")).unwrap() {
        for kind in fs::read_dir(adapter.unwrap().path()).unwrap() {
            let path = kind.unwrap().path().join("adapter_model.safetensors");
            let bytes = fs::read(&path).unwrap();
            let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
            let tensors = header.as_object().unwrap().values();
            let end = tensors
                .filter_map(|tensor| tensor["data_offsets"][1].as_u64())
                .max();
            let length = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) + end.unwrap();
            assert_eq!(bytes.len() as u64, length, "{}", path.display());
            seen += 1;
        }
    }
    assert!(seen > 0);
}

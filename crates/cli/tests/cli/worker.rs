//! Workers as processes, and runs that use them.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::support::Workspace;

/// A worker of its own, which is gone with this.
struct Worker {
    process: Child,
    address: String,
}

impl Worker {
    /// One in a workspace with a token, which has read the model, on the device under test.
    fn start(workspace: &Workspace, name: &str, model: &str) -> Self {
        let arguments = [
            "worker",
            "--listen",
            "127.0.0.1:0",
            "--identity",
            name,
            "--token-file",
            "token",
            "--model",
            model,
            "--device",
            &device(),
        ];
        let mut command = workspace.command(&arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().unwrap();
        let mut address = String::new();
        let mut stdout = BufReader::new(process.stdout.take().unwrap());
        stdout.read_line(&mut address).unwrap();
        assert!(address.starts_with("remote:"), "{address}");
        let address = address.trim().to_owned();
        Self { process, address }
    }

    fn signal(&self, signal: &str) {
        let pid = self.process.id().to_string();
        assert!(
            Command::new("kill")
                .args([signal, &pid])
                .status()
                .unwrap()
                .success()
        );
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The device under test: `LORALOOM_TEST_DEVICE`, or the CPU.
fn device() -> String {
    std::env::var("LORALOOM_TEST_DEVICE").unwrap_or_else(|_| "cpu".to_owned())
}

fn workspace() -> Workspace {
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
fn train(workspace: &Workspace, addresses: &[&str], output_dir: &str, steps: usize) -> Command {
    let (stages, steps) = (
        stages(addresses),
        format!("defaults.train.max_steps={steps}"),
    );
    workspace.command(&[
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
    ])
}

fn ended(mut command: Command) -> (i32, String) {
    let output = command.output().unwrap();
    (output.status.code().unwrap(), stderr(&output))
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// What was trained: every adapter's files, and losses and norms of every step.
fn trained(directory: &Path) -> (Vec<Vec<u8>>, Vec<serde_json::Value>) {
    let mut names: Vec<_> = fs::read_dir(directory.join("adapters"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    names.sort();
    let files = names
        .iter()
        .map(|name| fs::read(name.join("last/adapter_model.safetensors")).unwrap());
    let events = fs::read_to_string(directory.join("events.jsonl")).unwrap();
    let events = events
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    let mut steps: Vec<serde_json::Value> = events
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

#[test]
fn a_run_over_workers_is_the_same_as_one_here() {
    let workspace = workspace();
    let workers = ["first", "second"].map(|name| Worker::start(&workspace, name, "tiny-llama"));
    let addresses = [workers[0].address.as_str(), workers[1].address.as_str()];
    let (code, stderr) = ended(train(&workspace, &addresses, "over", 8));
    assert_eq!(code, 0, "{stderr}");
    // A GPU's bits depend on what else is in a batch, and so on the number of groups.
    let (device, count) = (device(), if device() == "cpu" { 1 } else { 2 });
    let here = vec![device.as_str(); count];
    let (code, stderr) = ended(train(&workspace, &here, "here", 8));
    assert_eq!(code, 0, "{stderr}");
    let (over, here) = (
        trained(&workspace.path("over")),
        trained(&workspace.path("here")),
    );
    assert_eq!(here.0.len(), 6);
    assert!(here.1.len() >= 6 * 8 && here.1.iter().all(|step| step[2].is_number()));
    assert_eq!(over.1, here.1);
    assert!(over.0 == here.0, "adapters differ");
    for (directory, stages) in [
        ("mixed", [device.as_str(), addresses[1]]),
        ("mixed-too", [addresses[0], &device]),
    ] {
        let (code, stderr) = ended(train(&workspace, &stages, directory, 8));
        assert_eq!(code, 0, "{stderr}");
        let mixed = trained(&workspace.path(directory));
        assert_eq!(mixed.1, here.1, "{directory}");
        assert!(mixed.0 == here.0, "adapters differ: {directory}");
    }
    // The workers wait for the next run.
    let (code, stderr) = ended(train(&workspace, &addresses, "again", 1));
    assert_eq!(code, 0, "{stderr}");
}

#[test]
fn who_does_not_fit_is_refused() {
    let workspace = workspace();
    let worker = Worker::start(&workspace, "worker", "tiny-llama");
    let address = worker.address.as_str();

    workspace.write("token", "another secret");
    let (code, stderr) = ended(train(&workspace, &[address], "token-run", 2));
    assert_eq!(code, 2, "{stderr}");
    assert!(
        stderr.contains("stage 0 on remote:") && stderr.contains("refuses the token"),
        "{stderr}"
    );

    workspace.write("token", "a secret");
    let model = workspace.path("tiny-llama/model.safetensors");
    let mut bytes = fs::read(&model).unwrap();
    let end = bytes.len() - 7;
    bytes[end] ^= 1;
    fs::remove_file(&model).unwrap();
    fs::write(&model, bytes).unwrap();
    let (code, stderr) = ended(train(&workspace, &[address], "weights-run", 2));
    assert_eq!(code, 3, "{stderr}");
    assert!(
        stderr.contains("weights of layers 0..4 is BLAKE3"),
        "{stderr}"
    );

    let gone = worker.address.clone();
    drop(worker);
    let (code, stderr) = ended(train(&workspace, &[&gone], "gone-run", 2));
    assert_eq!(code, 5, "{stderr}");
    assert!(stderr.contains("cannot be reached"), "{stderr}");
}

/// Waits until something has been saved.
fn wait_for_saves(directory: &Path) {
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
fn assert_whole(directory: &Path) {
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

/// A worker that is gone, or stands still, ends the run within ten seconds with a code of its own.
/// The other stage is a worker, too, or here.
fn loses(signal: &str, here: bool) {
    let workspace = workspace();
    for lost in [1, 0] {
        let name = |stage: usize| format!("stage-{stage}-{lost}");
        let worker = |stage| Worker::start(&workspace, &name(stage), "tiny-llama");
        let (lost_worker, other) = (worker(lost), (!here).then(|| worker(1 - lost)));
        let device = device();
        let other = other
            .as_ref()
            .map_or(device.as_str(), |other| &other.address);
        let mut addresses = [other; 2];
        addresses[lost] = &lost_worker.address;
        let directory = format!("run-{lost}");
        let mut command = train(&workspace, &addresses, &directory, 100_000);
        let run = command
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        wait_for_saves(&workspace.path(&directory));
        lost_worker.signal(signal);
        let begun = Instant::now();
        let output = run.wait_with_output().unwrap();
        let seconds = begun.elapsed().as_secs_f64();
        let stderr = stderr(&output);
        assert_eq!(output.status.code(), Some(75), "{stderr}");
        assert!(seconds < 10.0, "{seconds} s");
        let named = format!("stage {lost} on {} is lost", lost_worker.address);
        assert!(stderr.contains(&named), "{stderr}");
        assert_whole(&workspace.path(&directory));
        lost_worker.signal("-KILL");
    }
}

#[test]
fn a_worker_that_is_killed_ends_the_run() {
    loses("-KILL", false);
}

#[test]
fn a_worker_that_is_killed_ends_a_run_with_a_stage_here() {
    loses("-KILL", true);
}

#[test]
fn a_worker_that_is_stopped_ends_the_run() {
    loses("-STOP", false);
}

/// A run that lost a worker goes on with another, and ends as one that did not.
#[test]
fn a_run_that_lost_a_worker_is_resumed_with_another() {
    let workspace = workspace();
    let steps = 60;
    let device = device();
    let (code, stderr) = ended(train(&workspace, &[&device, &device], "here", steps));
    assert_eq!(code, 0, "{stderr}");
    let worker = Worker::start(&workspace, "first", "tiny-llama");
    let mut command = train(&workspace, &[&device, &worker.address], "lost", steps);
    let run = command
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    wait_for_saves(&workspace.path("lost"));
    worker.signal("-KILL");
    let output = run.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(75), "{}", self::stderr(&output));

    let other = Worker::start(&workspace, "other", "tiny-llama");
    let mut command = train(&workspace, &[&device, &other.address], "lost", steps);
    command.arg("--resume");
    let (code, stderr) = ended(command);
    assert_eq!(code, 0, "{stderr}");
    assert!(stderr.contains("resumed after iteration"), "{stderr}");
    let (found, expected) = (
        trained(&workspace.path("lost")),
        trained(&workspace.path("here")),
    );
    assert!(found.0 == expected.0, "adapters differ");
}

#[test]
fn a_second_run_is_refused_and_the_first_goes_on() {
    let workspace = workspace();
    let worker = Worker::start(&workspace, "worker", "tiny-llama");
    let address = [worker.address.as_str()];
    let mut command = train(&workspace, &address, "first", 60);
    let first = command
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    wait_for_saves(&workspace.path("first"));
    let (code, stderr) = ended(train(&workspace, &address, "second", 2));
    assert_eq!(code, 5, "{stderr}");
    assert!(stderr.contains("it is serving another stage"), "{stderr}");
    let output = first.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", self::stderr(&output));
}

#[test]
fn a_worker_says_what_it_lacks() {
    let workspace = workspace();
    let run = |token: &str, model: &str, listen: &str| {
        workspace.run(&[
            "worker",
            "--listen",
            listen,
            "--identity",
            "key",
            "--token-file",
            token,
            "--model",
            model,
            "--device",
            "cpu",
        ])
    };
    let listen = "127.0.0.1:0";
    let missing = run("nowhere", "tiny-llama", listen);
    assert_eq!(missing.code, 2, "{}", missing.stderr);
    workspace.write("empty", " \n");
    let empty = run("empty", "tiny-llama", listen);
    assert_eq!(empty.code, 2, "{}", empty.stderr);
    assert!(
        empty.stderr.contains("the token is empty"),
        "{}",
        empty.stderr
    );
    let model = run("token", "data", listen);
    assert_eq!(model.code, 3, "{}", model.stderr);
    workspace.write("key", "short");
    let key = run("token", "tiny-llama", listen);
    assert_eq!(key.code, 2, "{}", key.stderr);
    assert!(key.stderr.contains("key"), "{}", key.stderr);
    fs::remove_file(workspace.path("key")).unwrap();
    // An address that is not of this machine.
    let listen = run("token", "tiny-llama", "192.0.2.1:4433");
    assert_eq!(listen.code, 2, "{}", listen.stderr);
    let mode = fs::metadata(workspace.path("key"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
}

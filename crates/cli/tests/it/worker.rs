//! Workers as processes, and runs that use them.

use std::{fs, os::unix::fs::PermissionsExt, process::Stdio, time::Instant};

use crate::{
    cluster::{
        Worker, assert_whole, device, ended, events, stderr, train, trained, wait_for_saves,
        workspace,
    },
    examples,
};

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
    let told = ["over", "here"].map(|directory| events(&workspace.path(directory)));
    assert_shared(&told[0][0], &told[1][0]);
    if device == "cpu" {
        assert_transfers(&told[0], &told[1]);
    }
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

/// Three workers hold a layer that two of them share, each for other groups.
#[test]
fn staggered_layers_over_workers_are_the_same_as_one_stage_here() {
    let workspace = workspace();
    let workers = ["1st", "2nd", "3rd"].map(|name| Worker::start(&workspace, name, "tiny-llama"));
    let addresses = workers.each_ref().map(|worker| worker.address.as_str());
    let mut over = train(&workspace, &addresses, "over", 8);
    over.args(["--set", "pipeline.balance=[[1,2,1],[2,1,1],[1,1,2]]"]);
    let (code, stderr) = ended(over);
    assert_eq!(code, 0, "{stderr}");
    let (device, count) = (device(), if device() == "cpu" { 1 } else { 3 });
    let (code, stderr) = ended(train(&workspace, &vec![device.as_str(); count], "here", 8));
    assert_eq!(code, 0, "{stderr}");
    let start = &events(&workspace.path("over"))[0];
    let partitions = serde_json::json!([[1, 2, 1], [2, 1, 1], [1, 1, 2]]);
    assert_eq!(start["partitions"], partitions);
    let [over, here] = ["over", "here"].map(|directory| trained(&workspace.path(directory)));
    assert_eq!(over.1, here.1);
    assert!(over.0 == here.0, "adapters differ");
}

/// Between them, workers hold what a run here holds.
fn assert_shared(over: &serde_json::Value, here: &serde_json::Value) {
    let bytes = |start: &serde_json::Value| -> Vec<u64> {
        let stages = start["weight_bytes"].as_array().unwrap().iter();
        stages.map(|bytes| bytes.as_u64().unwrap()).collect()
    };
    assert_eq!(over["products"], serde_json::json!(["gemm", "gemm"]));
    let (over, here) = (bytes(over), bytes(here));
    assert_eq!(over.len(), 2);
    let whole: u64 = here.iter().sum();
    assert!(over.iter().all(|&bytes| bytes < whole), "{over:?} {here:?}");
    // The embedding is the head, too, and so in memory at both ends.
    assert!(over.iter().sum::<u64>() >= whole, "{over:?} {here:?}");
}

/// Every iteration over workers says how long tensors took from one to the other.
fn assert_transfers(over: &[serde_json::Value], here: &[serde_json::Value]) {
    let iterations = |events: &[serde_json::Value]| {
        let of_kind = |event: &&serde_json::Value| event["event"] == "iteration";
        events.iter().filter(of_kind).cloned().collect::<Vec<_>>()
    };
    let (over, here) = (iterations(over), iterations(here));
    assert!(over.len() >= 8 && here.len() >= 8);
    for iteration in &over {
        let seconds = iteration["transfer_seconds"].as_f64().unwrap();
        let overlap = iteration["transfer_overlap"].as_f64().unwrap();
        assert!(seconds > 0.0 && seconds < 60.0, "{iteration}");
        assert!((0.0..=1.0).contains(&overlap), "{iteration}");
    }
    for iteration in &here {
        assert!(iteration["transfer_seconds"].is_null(), "{iteration}");
        assert!(iteration["transfer_overlap"].is_null(), "{iteration}");
    }
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
        stderr.contains("stage 0 on remote:") && stderr.contains("rejects the token"),
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

/// By the commands in its heading, on one machine.
#[test]
fn the_recipe_of_two_machines_trains() {
    let here = examples::workspace();
    here.write("token", "a secret\n");
    let recipe = fs::read_to_string(here.path("examples/two-machines.yaml")).unwrap();
    let [worker, train] = examples::commands(&recipe)[..] else {
        panic!("other commands: {recipe}");
    };
    let mut command = examples::shell(&here, worker);
    command.env("LISTEN", "127.0.0.1:0");
    let worker = Worker::of(command);
    let mut command = examples::shell(&here, train);
    command.env("WORKER", &worker.address);
    let (code, stderr) = ended(command);
    assert_eq!(code, 0, "{stderr}");
    assert!(stderr.contains("stage 1 on 127.0.0.1:"), "{stderr}");
    assert_eq!(trained(&here.path("runs/two-machines")).0.len(), 2);
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
    assert!(
        stderr.contains("it already serves a stage of the controller"),
        "{stderr}"
    );
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

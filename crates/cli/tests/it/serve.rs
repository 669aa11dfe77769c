//! A server and the commands that speak to it.

use std::{
    fs,
    io::Write,
    process::Stdio,
    thread::sleep,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use serde_json::Value;

use crate::{
    server::{
        LONG, NAMES, Server, assert_as_alone, ok, served, step, task, train_alone, until,
        wait_for_state, workspace,
    },
    support::Workspace,
};

/// One task that does not end in a test.
const LONG_SHOUT: &str = "adapters.shout-r2.train.max_steps=100000";

/// A task that has three checkpoints kept.
const KEPT: &str = "\
model: tiny-llama
datasets: {number: {path: data/number.jsonl}}
defaults:
  train: {batch_size: 2, max_steps: 100000, max_seq_len: 48}
  save: {steps: 5, keep: 3}
adapters: [{name: number, dataset: number}]
";

#[test]
fn what_is_submitted_is_trained_as_train_does() {
    let here = workspace();
    train_alone(&here);
    let server = Server::start(&here, &["--config", "server.yaml"]);
    served(&here);
    let submitted = ok(&here, &["submit", "run", "tasks.yaml", "--json"]).json();
    let ids: Vec<&Value> = NAMES
        .iter()
        .zip(0..)
        .map(|(_, i)| &submitted["tasks"][i]["id"])
        .collect();
    assert_eq!(ids, [1, 2, 3]);
    let clone = [
        "clone", "run", "shout-r3", "--name", "wide", "--set", "lora.r=8",
    ];
    ok(&here, &clone);
    for name in NAMES.iter().chain(&["wide"]) {
        wait_for_state(&here, name, "done");
    }
    assert_as_alone(&here, &NAMES);
    let config = fs::read_to_string(here.path("run/adapters/wide/last/adapter_config.json"));
    let config: Value = serde_json::from_str(&config.unwrap()).unwrap();
    assert_eq!(config["r"], 8);
    let asked = [
        "generate",
        "--run",
        "run",
        "--adapter",
        "wide,shout-r2",
        "Question:",
    ];
    let answers = ok(&here, &asked).stdout;
    assert!(
        answers.contains("wide") && answers.contains("shout-r2"),
        "{answers}"
    );
    let done = task(&here, "shout-r2");
    assert_eq!(done["step"], 50);
    assert!(done["best_eval_loss"].as_f64().unwrap() > 0.0);
    // Ctrl-C with nobody at work.
    server.signal("-INT");
    until("end of the server", || {
        ok(&here, &["status", "run", "--json"]).json()["served"] == false
    });
}

/// Whatever moment a server is killed at, the next one goes on, and nothing that was accepted is lost.
#[test]
fn servers_that_are_killed_lose_nothing() {
    let here = workspace();
    train_alone(&here);
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let mut state = u64::from(seed.subsec_nanos()) | 1;
    println!("seed {state}");
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    Server::start(&here, &["--config", "server.yaml"]).kill_once_served(&here);
    for round in 0..8 {
        let server = Server::start(&here, &[]);
        if round == 0 {
            ok(&here, &["submit", "run", "tasks.yaml", "--key", "once"]);
        }
        sleep(Duration::from_millis(50 + random(900)));
        server.kill();
        // Whoever does not know whether it arrived sends it again.
        let again = ok(
            &here,
            &["submit", "run", "tasks.yaml", "--key", "once", "--json"],
        )
        .json();
        assert_eq!(again["tasks"][0]["new"], false);
    }
    ok(&here, &["serve", "run", "--drain", "--no-progress"]);
    let status = ok(&here, &["status", "run", "--json"]).json();
    let states: Vec<&Value> = status["tasks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|task| &task["state"])
        .collect();
    assert_eq!(states, ["done", "done", "done"]);
    assert_as_alone(&here, &NAMES);
}

#[test]
fn a_server_keeps_as_many_checkpoints_as_a_task_asks_for() {
    let here = workspace();
    let server = Server::start(&here, &["--config", "server.yaml"]);
    served(&here);
    here.write("task.yaml", KEPT);
    ok(&here, &["submit", "run", "task.yaml"]);
    until("four checkpoints", || step(&here, "number") > 20);
    server.signal("-INT");
    until("end of the server", || {
        ok(&here, &["status", "run", "--json"]).json()["served"] == false
    });
    let checkpoints = || {
        let entries = fs::read_dir(here.path("run/checkpoints")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut numbers: Vec<u64> = names.filter_map(|name| name.parse().ok()).collect();
        numbers.sort_unstable();
        numbers
    };
    assert_eq!(checkpoints().len(), 3, "{:?}", checkpoints());
}

#[test]
fn owners_pause_resume_and_cancel() {
    let here = workspace();
    train_alone(&here);
    let _server = Server::start(&here, &["--config", "server.yaml"]);
    served(&here);
    ok(&here, &["submit", "run", "tasks.yaml"]);
    // `shout-r3` waits for one of the two places.
    wait_for_state(&here, "shout-r2", "running");
    until("ten steps", || step(&here, "shout-r2") >= 10);
    ok(&here, &["pause", "run", "shout-r2"]);
    wait_for_state(&here, "shout-r2", "paused");
    let at = step(&here, "shout-r2");
    wait_for_state(&here, "shout-r3", "done");
    assert_eq!(
        step(&here, "shout-r2"),
        at,
        "it trained while it was paused"
    );
    let explained = ok(&here, &["explain", "run", "shout-r2"]).stdout;
    assert!(explained.contains("paused"), "{explained}");
    ok(&here, &["resume", "run", "shout-r2"]);
    wait_for_state(&here, "shout-r2", "done");
    assert_as_alone(&here, &["shout-r2", "shout-r3"]);

    ok(
        &here,
        &[
            "clone", "run", "shout-r2", "--name", "endless", "--set", LONG,
        ],
    );
    let left = || task(&here, "endless")["seconds_left"].as_f64();
    until("the time left", || left() > Some(0.0));
    ok(&here, &["cancel", "run", "endless"]);
    wait_for_state(&here, "endless", "cancelled");
    assert_eq!(left(), None);
    let refused = here.run(&["resume", "run", "endless"]);
    assert_eq!(refused.code, 2, "{}", refused.all());
}

/// A task of higher priority takes a place at the next iteration, and the one that had it goes on
/// later as if nothing had happened.
#[test]
fn whoever_is_more_urgent_goes_first() {
    let here = workspace();
    train_alone(&here);
    let one = [
        "--config",
        "server.yaml",
        "--set",
        "scheduler.max_adapters=1",
    ];
    let _server = Server::start(&here, &one);
    served(&here);
    ok(&here, &["submit", "run", "tasks.yaml"]);
    until("five steps", || step(&here, "shout-r2") >= 5);
    let urgent = [
        "clone",
        "run",
        "number-r4",
        "--name",
        "urgent",
        "--set",
        "priority=9",
        "--set",
    ];
    ok(&here, &[&urgent[..], &[LONG]].concat());
    wait_for_state(&here, "urgent", "running");
    let parked = task(&here, "shout-r2");
    assert_eq!(parked["state"], "parked");
    let why = ok(&here, &["explain", "run", "shout-r2"]).stdout;
    assert!(why.contains("max_adapters"), "{why}");
    ok(&here, &["cancel", "run", "urgent"]);
    for name in NAMES {
        wait_for_state(&here, name, "done");
    }
    assert_as_alone(&here, &NAMES);
}

#[test]
fn a_dataset_that_changes_fails_its_own_task_only() {
    let here = workspace();
    let _server = Server::start(&here, &["--config", "server.yaml"]);
    served(&here);
    let submit = ["submit", "run", "tasks.yaml", "--set"];
    let endless = "defaults.train.max_steps=100000";
    ok(&here, &[&submit[..], &[endless]].concat());
    until("steps of both", || {
        step(&here, "shout-r2") > 0 && step(&here, "number-r4") > 0
    });
    let path = here.path("data/shout.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    let fewer: Vec<&str> = text.lines().skip(1).collect();
    fs::write(&path, fewer.join("\n")).unwrap();
    wait_for_state(&here, "shout-r2", "failed");
    let reason = task(&here, "shout-r2")["reason"].to_string();
    assert!(reason.contains("dataset `shout` changed"), "{reason}");
    let at = step(&here, "number-r4");
    until("steps of the other one", || step(&here, "number-r4") > at);
    assert_eq!(task(&here, "number-r4")["state"], "running");
    // It waited, and would have been trained on rows that nobody submitted.
    assert_eq!(task(&here, "shout-r3")["state"], "failed");
}

/// A server that is started while the data is away, as when a disk is not mounted yet.
/// How many events of a kind there are.
fn events(here: &Workspace, kind: &str) -> usize {
    let text = fs::read_to_string(here.path("run/events.jsonl")).unwrap();
    text.matches(&format!(r#""event":"{kind}""#)).count()
}

/// A server that has said that a file is away.
fn start_without_data(here: &Workspace) -> Server {
    let before = events(here, "warning");
    let server = Server::start(here, &[]);
    until("a warning", || events(here, "warning") > before);
    until("a reason", || {
        let why = ok(here, &["explain", "run", "shout-r2"]).stdout;
        why.contains("it goes on when that can be read again")
    });
    server
}

#[test]
fn a_task_waits_for_data_that_is_away() {
    let here = workspace();
    train_alone(&here);
    let server = Server::start(&here, &["--config", "server.yaml"]);
    served(&here);
    ok(&here, &["submit", "run", "tasks.yaml"]);
    until("a checkpoint", || step(&here, "shout-r2") > 6);
    server.kill();
    let (path, away) = (here.path("data/shout.jsonl"), here.path("away.jsonl"));
    fs::rename(&path, &away).unwrap();

    let drained = here.run(&["serve", "run", "--drain", "--no-progress"]);
    assert_eq!(drained.code, 1, "{}", drained.all());
    let words =
        "shout-r2 is not trained to its end: cannot read [DIR]/data/shout.jsonl: No such file";
    assert!(drained.stderr.contains(words), "{}", drained.stderr);
    assert_eq!(task(&here, "number-r4")["state"], "done");
    assert_eq!(task(&here, "shout-r2")["state"], "parked");
    assert_eq!(task(&here, "shout-r3")["state"], "queued");

    let _server = start_without_data(&here);
    // As copying it back takes a while: nothing is read before it has ended.
    let rows = fs::read(&away).unwrap();
    let mut copy = fs::File::create(&path).unwrap();
    for part in rows.chunks(rows.len() / 6) {
        sleep(Duration::from_millis(400));
        copy.write_all(part).unwrap();
    }
    drop(copy);
    for name in NAMES {
        wait_for_state(&here, name, "done");
    }
    assert_as_alone(&here, &NAMES);
}

#[test]
fn saved_steps_are_not_trained_again_where_checkpoints_are_away() {
    let here = workspace();
    let server = Server::start(&here, &["--config", "server.yaml"]);
    served(&here);
    ok(&here, &["submit", "run", "tasks.yaml", "--set", LONG_SHOUT]);
    until("a checkpoint", || step(&here, "shout-r2") > 6);
    server.kill();
    let last = || fs::read(here.path("run/adapters/shout-r2/last/adapter_model.safetensors"));
    let (before, saved) = (
        last().unwrap(),
        task(&here, "shout-r2")["saved_step"].clone(),
    );
    let checkpoints = here.path("run/checkpoints");
    fs::rename(&checkpoints, here.path("away")).unwrap();
    let refused = |words: &str| {
        let run = here.run(&["serve", "run", "--drain", "--no-progress"]);
        assert_eq!(run.code, 3, "{}", run.all());
        assert!(run.stderr.contains(words), "{}", run.stderr);
        assert_eq!(last().unwrap(), before);
        assert_eq!(task(&here, "shout-r2")["saved_step"], saved);
    };
    let step = saved.as_u64().unwrap();
    refused(&format!(
        "with steps that were saved: shout-r2 at step {step}"
    ));
    // Something that is no directory cannot be listed, whoever the user is.
    here.write("run/checkpoints", "");
    refused("cannot list the checkpoints in `run/checkpoints`");
    fs::remove_file(&checkpoints).unwrap();
    fs::rename(here.path("away"), &checkpoints).unwrap();
    let _server = Server::start(&here, &[]);
    until("steps after the saved one", || {
        task(&here, "shout-r2")["step"].as_u64().unwrap() > step
    });
}

#[test]
fn exit_codes_tell_if_anything_is_left_to_train() {
    let here = workspace();
    let drained = |code| {
        let run = here.run(&["serve", "run", "--drain", "--no-progress"]);
        assert_eq!(run.code, code, "{}", run.all());
    };
    let server = Server::start(&here, &["--config", "server.yaml"]);
    served(&here);
    ok(&here, &["submit", "run", "tasks.yaml", "--set", LONG_SHOUT]);
    until("steps", || step(&here, "shout-r2") > 1);
    ok(&here, &["pause", "run", "shout-r2"]);
    wait_for_state(&here, "shout-r2", "paused");
    server.kill();
    // A task that its owner holds is not left to train; nobody interrupted anything.
    drained(0);
    drained(0);
    let stopped = |server: &mut Server, code| {
        server.signal("-TERM");
        assert_eq!(server.ends(), Some(code));
    };
    let before = events(&here, "resume");
    let mut server = Server::start(&here, &[]);
    until("a run", || events(&here, "resume") > before);
    stopped(&mut server, 0);
    // What waits for its file is, and SIGTERM is not the failure of a task.
    ok(&here, &["resume", "run", "shout-r2"]);
    fs::remove_file(here.path("data/shout.jsonl")).unwrap();
    drained(1);
    let mut server = start_without_data(&here);
    stopped(&mut server, 130);
    // One that failed is not; a stop is not its failure either.
    here.write("data/shout.jsonl", "{}\n");
    let mut server = Server::start(&here, &[]);
    wait_for_state(&here, "shout-r2", "failed");
    stopped(&mut server, 0);
}

#[test]
fn a_task_that_failed_goes_on_once_its_data_is_restored() {
    let here = workspace();
    train_alone(&here);
    let server = Server::start(&here, &["--config", "server.yaml"]);
    served(&here);
    ok(&here, &["submit", "run", "tasks.yaml"]);
    until("checkpoints", || step(&here, "shout-r2") > 6);
    server.kill();
    let path = here.path("data/shout.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replacen("cup", "mug", 1)).unwrap();
    let drained = here.run(&["serve", "run", "--drain", "--no-progress"]);
    assert_eq!(drained.code, 1, "{}", drained.all());
    let failed = task(&here, "shout-r2");
    assert_eq!(failed["state"], "failed");
    let reason = failed["reason"].as_str().unwrap();
    assert!(
        reason.contains("were BLAKE3") && reason.contains("resume it"),
        "{reason}"
    );
    // Its checkpoint outlives those of the others, and servers.
    assert_eq!(task(&here, "number-r4")["state"], "done");
    ok(&here, &["clone", "run", "number-r4", "--name", "more"]);
    ok(&here, &["serve", "run", "--drain", "--no-progress"]);

    fs::write(&path, text).unwrap();
    ok(&here, &["resume", "run", "shout-r3"]);
    let _server = Server::start(&here, &[]);
    served(&here);
    ok(&here, &["resume", "run", "shout-r2"]);
    for name in NAMES {
        wait_for_state(&here, name, "done");
    }
    assert_as_alone(&here, &NAMES);
    let events = fs::read_to_string(here.path("run/events.jsonl")).unwrap();
    let first_steps = events.lines().filter(|line| {
        line.contains(r#""event":"step""#) && line.contains(r#""adapter":"shout-r2","step":1,"#)
    });
    assert_eq!(first_steps.count(), 1, "it began anew");
}

/// A new task may have the name of one that failed, once its directory is moved away. Checkpoints have the
/// new one then.
#[test]
fn a_task_with_the_name_of_one_that_failed_goes_on_after_a_restart() {
    let here = workspace();
    here.write("kept.yaml", KEPT);
    let server = Server::start(&here, &["--config", "server.yaml"]);
    served(&here);
    ok(&here, &["submit", "run", "kept.yaml"]);
    until("checkpoints", || step(&here, "number") > 6);
    server.kill();
    let path = here.path("data/number.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replacen("frog", "newt", 1)).unwrap();
    let drained = here.run(&["serve", "run", "--drain", "--no-progress"]);
    assert_eq!(drained.code, 1, "{}", drained.all());

    fs::rename(here.path("run/adapters/number"), here.path("old")).unwrap();
    ok(&here, &["submit", "run", "kept.yaml"]);
    let newest = || {
        let status = ok(&here, &["status", "run", "--json"]).json();
        status["tasks"].as_array().unwrap().last().unwrap().clone()
    };
    let server = Server::start(&here, &[]);
    until("checkpoints", || newest()["saved_step"].as_u64() > Some(5));
    server.kill();
    let saved = newest()["saved_step"].as_u64().unwrap();
    let _server = Server::start(&here, &[]);
    until("more steps", || newest()["step"].as_u64() > Some(saved + 2));
    let events = fs::read_to_string(here.path("run/events.jsonl")).unwrap();
    let first_steps = events
        .lines()
        .filter(|line| line.contains(r#""adapter":"number","step":1,"#));
    let first_steps = first_steps.filter(|line| line.contains(r#""event":"step""#));
    assert_eq!(first_steps.count(), 2, "each of the two begins once");
}

#[test]
fn a_watched_status_ends_with_the_last_task() {
    let here = workspace();
    let one = "defaults.train.max_steps=1";
    let _server = Server::start(&here, &["--config", "server.yaml"]);
    served(&here);
    ok(&here, &["submit", "run", "tasks.yaml", "--set", one]);
    let mut watch = here.command(&["status", "run", "--watch"]);
    let mut watch = watch.stdout(Stdio::null()).spawn().unwrap();
    for name in NAMES {
        wait_for_state(&here, name, "done");
    }
    let ended = Instant::now();
    while watch.try_wait().unwrap().is_none() {
        if ended.elapsed() > Duration::from_secs(20) {
            watch.kill().unwrap();
        }
        sleep(Duration::from_millis(20));
    }
    assert_eq!(watch.wait().unwrap().code(), Some(0));
}

#[test]
fn what_cannot_be_is_refused() {
    let here = workspace();
    let refused = |arguments: &[&str], code, words: &[&str]| {
        let run = here.run(arguments);
        assert_eq!(run.code, code, "{arguments:?}: {}", run.all());
        for word in words {
            assert!(run.stderr.contains(word), "{word}: {}", run.stderr);
        }
    };
    refused(
        &["serve", "run"],
        2,
        &["no server's configuration", "--config"],
    );
    refused(&["status", "run"], 2, &["does not exist"]);
    train_alone(&here);
    refused(&["serve", "alone"], 2, &["without a queue"]);

    let limited = [
        "--config",
        "server.yaml",
        "--set",
        "scheduler.memory_limit=60MB",
    ];
    let server = Server::start(&here, &limited);
    served(&here);
    refused(&["serve", "run"], 2, &["already"]);
    let huge = [
        "submit",
        "run",
        "tasks.yaml",
        "--set",
        "defaults.lora.target_modules=[all-linear]",
        "--set",
    ];
    let ranks = |r: u32| NAMES.map(|name| format!("adapters.{name}.lora.r={r}"));
    let [a, b, c] = ranks(4000);
    let all = [&huge[..], &[&a, "--set", &b, "--set", &c]].concat();
    refused(&all, 4, &["can never fit", "MiB", "batch_size"]);
    assert_eq!(
        ok(&here, &["status", "run", "--json"]).json()["tasks"],
        serde_json::json!([])
    );

    ok(&here, &["submit", "run", "tasks.yaml", "--key", "k"]);
    refused(&["submit", "run", "tasks.yaml"], 2, &["is taken by task 1"]);
    let other = [
        "submit",
        "run",
        "tasks.yaml",
        "--key",
        "k",
        "--set",
        "adapters.shout-r2.lora.r=6",
    ];
    refused(&other, 2, &["the key `k/shout-r2`", "spec"]);
    refused(&["pause", "run", "nobody"], 2, &["no task `nobody`"]);
    let clone = |name: &'static str, setting: &'static str| {
        ["clone", "run", "shout-r2", "--name", name, "--set", setting]
    };
    let name = "error: --set name=zz: `--name` names the new adapter";
    refused(&clone("c1", "name=zz"), 2, &[name]);
    let name = "error: --name a/b: `name`: `a/b` names a directory";
    refused(&clone("a/b", "lora.r=2"), 2, &[name]);
    let rank = "error: --set lora.r=0: `lora.r`: must be at least 1";
    refused(&clone("c1", "lora.r=0"), 2, &[rank]);
    refused(
        &[
            "submit",
            "run",
            "tasks.yaml",
            "--set",
            "datasets.shout.path=no.jsonl",
        ],
        3,
        &["no.jsonl"],
    );
    server.kill();

    // A name whose adapter is there is nobody else's.
    for name in NAMES {
        ok(&here, &["cancel", "run", name]);
    }
    fs::create_dir_all(here.path("run/adapters/shout-r3")).unwrap();
    refused(
        &["submit", "run", "tasks.yaml"],
        2,
        &["an adapter `", "is there already"],
    );

    let queue = here.path("run/queue.sqlite");
    let mut bytes = fs::read(&queue).unwrap();
    let middle = bytes.len() / 2;
    bytes[100..middle].fill(0x5a);
    fs::write(&queue, &bytes).unwrap();
    refused(&["serve", "run"], 3, &["damaged", "nothing was changed"]);
    assert!(
        fs::read(&queue).unwrap() == bytes,
        "a damaged queue was written to"
    );
}

#[test]
fn a_sweep_ends_with_a_leaderboard() {
    let here = workspace();
    here.write(
        "sweep.yaml",
        "datasets: {shout: {path: data/shout.jsonl}}\n\
         adapters: [{name: base, train: {batch_size: 2, max_steps: 36, max_seq_len: 48}}]\n\
         sweep:\n  - name: lr\n    base: base\n    grid: {train.learning_rate: [1.0e-5, 1.0e-2, 5.0e-3, 2.0e-5]}\n    \
         early_stopping: {metric: train_loss, grace_period: 4, reduction_factor: 3}\n",
    );
    let server = Server::start(&here, &["--config", "server.yaml"]);
    served(&here);
    ok(&here, &["submit", "run", "sweep.yaml"]);
    until("some steps", || {
        let status = ok(&here, &["status", "run", "--json"]).json();
        status["tasks"]
            .as_array()
            .unwrap()
            .iter()
            .any(|task| task["step"].as_u64() > Some(6))
    });
    // What trials were compared by outlives the server.
    server.kill();
    ok(&here, &["serve", "run", "--drain", "--no-progress"]);
    let status = ok(&here, &["status", "run", "--json"]).json();
    let standings = status["sweeps"][0]["standings"].as_array().unwrap();
    assert_eq!(standings.len(), 4);
    assert_eq!(standings[0]["rank"], 1);
    let stopped = standings.iter().filter(|line| line["state"] == "stopped");
    assert!(stopped.count() >= 1, "{standings:#?}");
    assert_eq!(standings[0]["state"], "done", "{standings:#?}");
    let text = ok(&here, &["status", "run"]).stdout;
    assert!(text.contains("sweep lr"), "{text}");
}

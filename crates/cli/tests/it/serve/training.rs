//! Tasks of a server are trained as `train` trains them, whatever happens to the server.

use std::{
    fs,
    thread::sleep,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde_json::Value;

use crate::server::{
    KEPT, LONG, LONG_SHOUT, NAMES, Server, assert_as_alone, ok, served, step, task, train_alone,
    until, wait_for_state, workspace,
};

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
    // A task never overwrites the adapter of another of its name.
    let again = here.run(&["submit", "run", "tasks.yaml"]);
    assert_eq!(again.code, 2, "{}", again.all());
    assert!(
        again.stderr.contains("run/adapters/shout-r2"),
        "{}",
        again.all()
    );
    // Its rows are those of training, and its shape is compared with what was submitted.
    let eval = "eval --run run --dataset shout --adapter shout-r2@best --json";
    let eval = ok(&here, &eval.split(' ').collect::<Vec<_>>()).json();
    assert_eq!(eval["dataset"]["split"], "validation");
    assert_eq!(eval["dataset"]["max_seq_len"], 48);
    let best = done["best_eval_loss"].as_f64().unwrap();
    let loss = eval["results"][0]["loss"].as_f64().unwrap();
    assert!((loss - best).abs() < 1e-6 * best, "{loss} {best}");
    let verify = ["verify", "run/adapters/shout-r2/best", "--json"];
    let checks = ok(&here, &verify).json();
    let checks = checks["checks"].as_array().unwrap();
    let of_run = checks.iter().find(|check| check["name"] == "run");
    assert_eq!(of_run.unwrap()["status"], "pass");
    // Ctrl-C while no task trains.
    server.signal("-INT");
    until("end of the server", || {
        ok(&here, &["status", "run", "--json"]).json()["served"] == false
    });
}

/// A server may be killed at any moment: the next one continues, and no accepted task is lost.
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
        // A client that does not know whether the submission arrived repeats it.
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
    refused(&format!("with saved steps: shout-r2 at step {step}"));
    // A file in its place cannot be listed, even by root.
    here.write("run/checkpoints", "");
    refused("cannot list the checkpoints in `run/checkpoints`");
    fs::remove_file(&checkpoints).unwrap();
    fs::rename(here.path("away"), &checkpoints).unwrap();
    let _server = Server::start(&here, &[]);
    until("steps after the saved one", || {
        task(&here, "shout-r2")["step"].as_u64().unwrap() > step
    });
}

/// A task of higher priority takes a place at the next iteration, and the one that had it continues
/// later with the same result.
#[test]
fn tasks_of_higher_priority_go_first() {
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
fn a_sweep_ends_with_a_leaderboard() {
    let here = workspace();
    let sweep = "datasets: {shout: {path: data/shout.jsonl}}\n\
         adapters: [{name: base, train: {batch_size: 2, max_steps: 36, max_seq_len: 48}}]\n\
         sweep:\n  - name: lr\n    base: base\n    grid: {train.learning_rate: [1.0e-5, 1.0e-2, 5.0e-3, 2.0e-5]}\n    \
         early_stopping: {metric: train_loss, grace_period: 4, reduction_factor: 3}\n";
    here.write("sweep.yaml", sweep);
    let other = sweep
        .replace("name: base", "name: other")
        .replace("base: base", "base: other");
    here.write(
        "other.yaml",
        other.replace("[1.0e-5, 1.0e-2, 5.0e-3, 2.0e-5]", "[3.0e-5]"),
    );
    let server = Server::start(&here, &["--config", "server.yaml"]);
    served(&here);
    ok(&here, &["submit", "run", "sweep.yaml"]);
    let other = here.run(&["submit", "run", "other.yaml"]);
    assert_eq!(other.code, 2, "{}", other.all());
    let hint = "`--set sweep.lr.name=lr-2`";
    assert!(other.stderr.contains(hint), "{}", other.stderr);
    until("some steps", || {
        let status = ok(&here, &["status", "run", "--json"]).json();
        status["tasks"]
            .as_array()
            .unwrap()
            .iter()
            .any(|task| task["step"].as_u64() > Some(6))
    });
    // The results that trials were compared by outlive the server.
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

/// The rewards of an adapter's best evaluation outlive the server.
#[test]
fn a_sweep_over_preferences_ranks_by_rewards() {
    let here = workspace();
    let row = |n: usize| {
        format!("{{\"prompt\": \"say {n}\", \"chosen\": \"yes {n}!\", \"rejected\": \"no\"}}\n")
    };
    here.write("pairs.jsonl", (0..12).map(row).collect::<String>());
    here.write(
        "sweep.yaml",
        "datasets: {pairs: {path: pairs.jsonl, validation: 0.3}}\n\
         defaults: {dataset: pairs, objective: {type: dpo}, eval: {steps: 2}}\n\
         adapters: [{name: base, train: {batch_size: 2, max_steps: 4, max_seq_len: 48}}]\n\
         sweep: [{name: s, base: base, grid: {objective.beta: [0.05, 0.5]}, \
                  early_stopping: {metric: eval_rewards/margins, grace_period: 4}}]\n",
    );
    let server = Server::start(&here, &["--config", "server.yaml"]);
    served(&here);
    let submitted = ok(&here, &["submit", "run", "sweep.yaml", "--json"]).json();
    for task in submitted["tasks"].as_array().unwrap() {
        wait_for_state(&here, task["name"].as_str().unwrap(), "done");
    }
    server.kill();
    let status = ok(&here, &["status", "run", "--json"]).json();
    let sweep = &status["sweeps"][0];
    assert_eq!(sweep["metric"], "eval_rewards/margins");
    let margin = |at: usize| sweep["standings"][at]["metric"].as_f64().unwrap();
    assert!(margin(0) > margin(1), "{sweep:#}");
    let events = fs::read_to_string(here.path("run/events.jsonl")).unwrap();
    let reported = format!("\"rewards/margins\":{}", sweep["standings"][0]["metric"]);
    assert!(events.contains(&reported), "{reported}");
}

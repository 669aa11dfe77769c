//! Datasets that change, or are away, while a server runs.

use std::{fs, io::Write, thread::sleep, time::Duration};

use crate::server::{
    KEPT, NAMES, Server, assert_as_alone, ok, served, start_without_data, step, task, train_alone,
    until, wait_for_state, workspace,
};

#[test]
fn a_dataset_that_changes_fails_its_own_task_only() {
    let here = workspace();
    let _server = Server::start(&here, &["--config", "server.yaml"]);
    served(&here);
    let number = fs::read_to_string(here.path("data/number.jsonl")).unwrap();
    let rows: Vec<&str> = number.lines().collect();
    here.write("data/held.jsonl", rows[..5].join("\n"));
    let submit = ["submit", "run", "tasks.yaml", "--set"];
    let settings = [
        "defaults.train.max_steps=100000",
        "--set",
        "datasets.number.validation=data/held.jsonl",
    ];
    ok(&here, &[&submit[..], &settings].concat());
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
    // It waited, and would have been trained on other rows than those submitted.
    assert_eq!(task(&here, "shout-r3")["state"], "failed");

    // Rows that it is judged by are its own, too.
    here.write("data/held.jsonl", rows[5..10].join("\n"));
    wait_for_state(&here, "number-r4", "failed");
    let reason = task(&here, "number-r4")["reason"].to_string();
    assert!(reason.contains("data/held.jsonl had BLAKE3"), "{reason}");
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

    let drained = here.run(&["serve", "run", "--drain", "--quiet"]);
    assert_eq!(drained.code, 1, "{}", drained.all());
    let words = "error: shout-r2 did not finish: cannot read [DIR]/data/shout.jsonl: No such file";
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
    let drained = here.run(&["serve", "run", "--drain", "--quiet"]);
    assert_eq!(drained.code, 1, "{}", drained.all());
    let told = drained.stderr.matches("error: shout-r2 failed at step");
    assert_eq!(told.count(), 1, "{}", drained.stderr);
    assert!(!drained.stderr.contains("its end"), "{}", drained.stderr);
    let failed = task(&here, "shout-r2");
    assert_eq!(failed["state"], "failed");
    let reason = failed["reason"].as_str().unwrap();
    assert!(
        reason.contains("had BLAKE3") && reason.contains("resume it"),
        "{reason}"
    );
    // Its checkpoint outlives those of the others, and servers.
    assert_eq!(task(&here, "number-r4")["state"], "done");
    ok(&here, &["clone", "run", "number-r4", "--name", "1e3"]);
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
    assert_eq!(first_steps.count(), 1, "it started over");
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

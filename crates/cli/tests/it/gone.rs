//! Run directories that are taken away while a process writes to them.

use std::{
    fs,
    process::{Child, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use crate::{
    durable::CONFIG,
    server::{ok, served, step, task, until, workspace},
    support::{Workspace, signal},
};

/// Far from its end, and saved often.
const ENDLESS: &[&str] = &[
    "--set",
    "defaults.train.max_steps=100000",
    "--set",
    "defaults.save.steps=7",
];

fn start(here: &Workspace, arguments: &[&str]) -> Child {
    let mut command = here.command(arguments);
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// That it ends with 75 without more ado, and what it says.
fn lost(mut child: Child) -> String {
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > Duration::from_mins(1) {
            child.kill().unwrap();
        }
        sleep(Duration::from_millis(20));
    }
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(75), "{said}");
    said
}

fn steps(here: &Workspace) -> usize {
    let events = fs::read_to_string(here.path("run/events.jsonl")).unwrap_or_default();
    events.matches(r#""event":"step""#).count()
}

#[test]
fn a_run_whose_directory_is_taken_away_ends_and_says_what_is_lost() {
    for moved in [false, true] {
        let here = Workspace::new();
        here.write("config.yaml", CONFIG);
        let train = ["train", "config.yaml", "--no-progress"];
        let run = start(&here, &[&train[..], ENDLESS].concat());
        until("steps", || steps(&here) > 20);
        if moved {
            fs::rename(here.path("run"), here.path("moved")).unwrap();
            // Another one in its place is not written to.
            fs::create_dir(here.path("run")).unwrap();
        } else {
            fs::rename(here.path("run"), here.path("gone")).unwrap();
            fs::remove_dir_all(here.path("gone")).unwrap();
        }
        let said = lost(run);
        assert!(
            said.contains("removed, moved or replaced while it was in use"),
            "{said}"
        );
        assert!(said.contains("not saved: shout at step "), "{said}");
        if moved {
            assert_eq!(fs::read_dir(here.path("run")).unwrap().count(), 0);
        } else {
            assert!(!here.path("run").exists(), "it was made again");
        }
    }
}

#[test]
fn a_server_whose_directory_queue_or_lock_is_taken_away_ends() {
    for taken in ["run", "run/queue.sqlite", "run/server.lock"] {
        for idle in [false, true] {
            let here = workspace();
            here.write("config.yaml", CONFIG);
            let server = start(
                &here,
                &["serve", "run", "--no-progress", "--config", "server.yaml"],
            );
            served(&here);
            if !idle {
                let submit = [&["submit", "run", "config.yaml"], ENDLESS].concat();
                ok(&here, &submit);
                until("steps", || step(&here, "shout") > 20);
            }
            fs::rename(here.path(taken), here.path("away")).unwrap();
            let said = lost(server);
            assert!(said.contains("removed, moved or replaced while"), "{said}");
            assert_eq!(here.path("run").exists(), taken != "run");
            let saved = here.path("run/adapters/shout/last").exists();
            assert_eq!(saved, taken != "run" && !idle);
        }
    }
}

/// The first one is halted, so that it cannot notice in between. The queue is as it was: neither has
/// taken the other's tasks.
#[test]
fn a_server_whose_lock_is_removed_is_not_joined_by_another() {
    let here = workspace();
    here.write("config.yaml", CONFIG);
    let serve = ["serve", "run", "--no-progress", "--config", "server.yaml"];
    let server = start(&here, &serve);
    served(&here);
    ok(
        &here,
        &[&["submit", "run", "config.yaml"], ENDLESS].concat(),
    );
    until("steps", || step(&here, "shout") > 20);
    signal(&server, "-STOP");
    fs::remove_file(here.path("run/server.lock")).unwrap();
    let second = here.run(&serve);
    assert_eq!(task(&here, "shout")["state"], "running");
    signal(&server, "-CONT");
    assert_eq!(second.code, 2, "{}", second.all());
    assert!(
        second
            .stderr
            .contains("another process is training the run in `run`"),
        "{}",
        second.stderr
    );
    assert!(lost(server).contains("server.lock` was removed"));
}

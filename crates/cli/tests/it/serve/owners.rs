//! Commands of owners: pause, resume, cancel, status, and what is refused.

use std::{
    fs,
    process::Stdio,
    thread::sleep,
    time::{Duration, Instant},
};

use crate::server::{
    LONG, LONG_SHOUT, NAMES, Server, assert_as_alone, events, ok, served, start_without_data, step,
    task, train_alone, until, wait_for_state, workspace,
};

#[test]
fn a_server_says_that_it_serves_once_clients_can_submit() {
    let here = workspace();
    let server = Server::start_until_it_serves(&here, &["--config", "server.yaml"]);
    assert!(here.path("run/config.resolved.yaml").exists());
    ok(&here, &["submit", "run", "tasks.yaml"]);
    server.kill();
    // The second start resumes.
    let _server = Server::start_until_it_serves(&here, &[]);
    ok(&here, &["status", "run"]);
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
    // It may be paused for longer than this process lives.
    until("a checkpoint", || {
        task(&here, "shout-r2")["saved_step"] == at
    });
    let report = ok(&here, &["report", "run", "--json"]).json();
    assert_eq!(report["adapters"][0]["standing"], "paused");
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
    assert_eq!(task(&here, "shout-r2")["saved_step"], 50);
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
    let report = ok(&here, &["report", "run", "--json"]).json();
    assert_eq!(report["adapters"][3]["standing"], "cancelled");
    assert_eq!(left(), None);
    let refused = here.run(&["resume", "run", "endless"]);
    assert_eq!(refused.code, 2, "{}", refused.all());
}

#[test]
fn exit_codes_tell_if_anything_is_left_to_train() {
    let here = workspace();
    let drained = |code| {
        let run = here.run(&["serve", "run", "--drain", "--no-progress"]);
        assert_eq!(run.code, code, "{}", run.all());
        run.all()
    };
    let server = Server::start(&here, &["--config", "server.yaml"]);
    served(&here);
    ok(&here, &["submit", "run", "tasks.yaml", "--set", LONG_SHOUT]);
    until("steps", || step(&here, "shout-r2") > 1);
    ok(&here, &["pause", "run", "shout-r2"]);
    wait_for_state(&here, "shout-r2", "paused");
    server.kill();
    // A paused task is not left to train, so nothing was interrupted.
    for _ in 0..2 {
        let said = drained(0);
        assert!(said.contains("`loraloom resume run 1`"), "{said}");
    }
    let stopped = |server: &mut Server, code| {
        server.signal("-TERM");
        assert_eq!(server.ends(), Some(code));
    };
    let before = events(&here, "resume");
    let mut server = Server::start(&here, &[]);
    until("a run", || events(&here, "resume") > before);
    stopped(&mut server, 0);
    // A task that waits for its file counts as failed when a drain ends, not after SIGTERM.
    ok(&here, &["resume", "run", "shout-r2"]);
    fs::remove_file(here.path("data/shout.jsonl")).unwrap();
    let said = drained(1);
    assert!(!said.contains("loraloom resume"), "{said}");
    let mut server = start_without_data(&here);
    stopped(&mut server, 130);
    // One that failed is not; a stop is not its failure either.
    here.write("data/shout.jsonl", "{}\n");
    let mut server = Server::start(&here, &[]);
    wait_for_state(&here, "shout-r2", "failed");
    stopped(&mut server, 0);
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
fn a_dry_run_shows_tasks_and_submits_none() {
    let here = workspace();
    ok(
        &here,
        &["serve", "run", "--config", "server.yaml", "--drain"],
    );
    let submit = ["submit", "run", "tasks.yaml", "--key", "k"];
    let dry = ok(&here, &[&submit[..], &["--dry-run"]].concat());
    assert_eq!(
        dry.stdout,
        "new task  shout-r2, 50 steps\nnew task  number-r4, 50 steps\nnew task  shout-r3, 35 steps\n"
    );
    assert_eq!(
        dry.stderr.matches("`quantization` has no effect").count(),
        0
    );
    let tasks = fs::read_to_string(here.path("tasks.yaml")).unwrap();
    here.write(
        "nf4.yaml",
        format!("{tasks}\nquantization: {{type: nf4}}\n"),
    );
    let nf4 = ok(&here, &["submit", "run", "nf4.yaml", "--dry-run"]);
    let told = "warning: `quantization` has no effect: the server decides";
    assert!(nf4.stderr.contains(told), "{}", nf4.stderr);
    let tasks = ok(&here, &["status", "run", "--json"]).json()["tasks"].clone();
    assert_eq!(tasks, serde_json::json!([]));
    ok(&here, &submit);
    let dry = ok(&here, &[&submit[..], &["--dry-run", "--json"]].concat()).json();
    assert_eq!(
        (&dry["tasks"][2]["id"], &dry["tasks"][2]["new"]),
        (&3.into(), &false.into())
    );
}

#[test]
fn what_cannot_be_is_refused() {
    let here = workspace();
    let refused = |arguments: &[&str], code, words: &[&str]| {
        // A dry run refuses the same.
        let dry = (arguments[0] == "submit").then_some(&["--dry-run"][..]);
        for more in [Some(&[][..]), dry].into_iter().flatten() {
            let run = here.run(&[arguments, more].concat());
            assert_eq!(run.code, code, "{arguments:?} {more:?}: {}", run.all());
            for word in words {
                assert!(run.stderr.contains(word), "{word}: {}", run.stderr);
            }
        }
    };
    refused(
        &["serve", "run"],
        2,
        &["is not a server's directory", "--config"],
    );
    refused(&["status", "run"], 2, &["there is no directory `"]);
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
    refused(&other, 2, &["the key `k` belongs to task", "spec"]);
    refused(&["pause", "run", "nobody"], 2, &["no task `nobody`"]);
    let clone = |name: &'static str, setting: &'static str| {
        ["clone", "run", "shout-r2", "--name", name, "--set", setting]
    };
    let name = "error: --set name=zz: set the name of the new adapter with `--name`";
    refused(&clone("c1", "name=zz"), 2, &[name]);
    let name = "error: --name a/b: `name`: `a/b` names a directory";
    refused(&clone("a/b", "lora.r=2"), 2, &[name]);
    let name = "error: --name 'a: b': `name`: `a: b` names a directory";
    refused(&clone("a: b", "lora.r=2"), 2, &[name]);
    let rank = "error: --set lora.r=0: `lora.r`: must be at least 1";
    refused(&clone("c1", "lora.r=0"), 2, &[rank]);
    let start = "hint: keys start at the adapter, e.g. `--set lora.r=8`";
    refused(&clone("c1", "adapters.shout-r2.lora.r=2"), 2, &[start]);
    let path = "datasets.shout.path=no.jsonl";
    let absent = ["submit", "run", "tasks.yaml", "--set", path];
    refused(&absent, 3, &["no.jsonl"]);
    server.kill();

    // The name of an existing adapter is taken.
    for name in NAMES {
        ok(&here, &["cancel", "run", name]);
    }
    fs::create_dir_all(here.path("run/adapters/shout-r3")).unwrap();
    refused(
        &["submit", "run", "tasks.yaml"],
        2,
        &["an adapter `", "already exists in"],
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
fn a_key_of_one_adapter_is_refused_with_two() {
    let here = workspace();
    Server::start(&here, &["--config", "server.yaml"]).kill_once_served(&here);
    here.write(
        "one.yaml",
        "model: tiny-llama\ndatasets: {d: {path: data/shout.jsonl}}\n\
         adapters: [{name: alone, dataset: d, train: {batch_size: 2, max_steps: 1}}]\n",
    );
    ok(&here, &["submit", "run", "one.yaml", "--key", "one"]);
    let two = "adapters=[{name: alone, dataset: d}, {name: more, dataset: d}]";
    let line = ["submit", "run", "one.yaml", "--key", "one", "--set", two];
    let words =
        "the key `one` belongs to a submission of `alone`, and this one has `alone`, `more`";
    let run = here.run(&line);
    assert!(run.code == 2 && run.stderr.contains(words), "{}", run.all());
}

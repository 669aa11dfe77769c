//! `serve RUN --listen`: requests beside training.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use serde_json::json;

use crate::{
    inference::{PROMPT, Server},
    support::{Workspace, signal},
    train,
};

/// A configuration whose weights after a step do not depend on the steps to come.
const CONSTANT: [&str; 2] = ["--set", "defaults.train.lr_scheduler_type=constant"];

fn serve(here: &Workspace, run: &str, more: &[&str]) -> Server {
    let line = ["serve", run, "--config", "short.yaml"];
    let listen = ["--listen", "127.0.0.1:0", "--memory-limit", "100MiB"];
    Server::listening(here, &[&line[..], &listen, &CONSTANT, more].concat())
}

/// Log-probabilities of an answer, and the weights that gave it. `None` while there are none.
fn asked(server: &Server, model: &str) -> Option<(String, String)> {
    let body = json!({
        "model": model, "prompt": PROMPT, "max_tokens": 6, "temperature": 0, "logprobs": 2, "ignore_eos": true,
    });
    let (status, text) = server.request("POST", "/v1/completions", &body.to_string());
    assert!(status == 200 || status == 404, "{status} {text}");
    let answer: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let weights = answer["system_fingerprint"].as_str()?.to_owned();
    Some((weights, answer["choices"][0]["logprobs"].to_string()))
}

fn weights_of(here: &Workspace, run: &str, adapter: &str) -> Vec<u8> {
    let path = format!("{run}/adapters/{adapter}/last/adapter_model.safetensors");
    fs::read(here.path(&path)).expect("saved")
}

/// The weights of every step can be asked for, and training does not notice.
#[test]
fn live_adapters_answer_and_train_as_alone() {
    let here = train::workspace();
    let steps = ["--set", "defaults.train.max_steps=60"];
    let alone = ["serve", "alone", "--config", "short.yaml", "--drain"];
    let run = here.run(&[&alone[..], &CONSTANT, &steps].concat());
    assert_eq!(run.code, 0, "{}", run.all());

    let server = serve(&here, "served", &steps);
    let mut seen = Vec::new();
    let last = loop {
        let Some((weights, answer)) = asked(&server, "shout-r2@live") else {
            thread::sleep(Duration::from_millis(5));
            continue;
        };
        match weights.strip_prefix("shout-r2@") {
            Some(step) => seen.push((step.parse::<usize>().expect("a step"), answer)),
            None => break answer,
        }
    };
    assert!(seen.is_sorted_by_key(|(step, _)| *step), "{seen:?}");
    let (first, newest) = (&seen[0], &seen[seen.len() - 1]);
    assert!(first.0 < newest.0 && first.1 != newest.1, "{seen:?}");
    for model in ["shout-r2@last", "shout-r2@60"] {
        let (_, answer) = asked(&server, model).expect("its last save");
        assert_eq!(answer, last, "{model}");
    }
    assert!(
        asked(&server, "shout-r2").is_some(),
        "its name is for its best state or its last"
    );
    for nothing in ["nobody@live", "nobody@60", "shout-r2@59", "shout-r2@newest"] {
        assert_eq!(asked(&server, nothing), None, "{nothing}");
    }
    // The others may still train.
    while asked(&server, "number-r4@live").is_none_or(|(weights, _)| weights.contains('@')) {
        thread::sleep(Duration::from_millis(20));
    }
    for adapter in ["shout-r2", "number-r4"] {
        let [found, expected] = ["served", "alone"].map(|run| weights_of(&here, run, adapter));
        assert!(found == expected, "{adapter} has other weights");
    }
    signal(&server.process, "-TERM");
    let mut server = server;
    let status = server.process.wait().expect("an end");
    assert_eq!(status.code(), Some(0));
}

/// The weights of a checkpoint are those of a run that ends there.
#[test]
fn saves_answer_under_their_steps() {
    let here = train::workspace();
    let until = |steps: usize| format!("defaults.train.max_steps={steps}");
    let steps = until(20);
    let alone = ["train", "short.yaml", "--quiet", "--set", &steps];
    let run = here.run(&[&alone[..], &CONSTANT].concat());
    assert_eq!(run.code, 0, "{}", run.all());
    let expected = Server::start(&here, &["run"]);
    let (_, expected) = asked(&expected, "shout-r2@last").expect("saved");

    let steps = until(4000);
    let saves = "defaults.save={steps: 20, keep: 400}";
    let server = serve(&here, "served", &["--set", &steps, "--set", saves]);
    let found = loop {
        if let Some((weights, found)) = asked(&server, "shout-r2@20") {
            assert_eq!(weights, "shout-r2@20");
            break found;
        }
        thread::sleep(Duration::from_millis(50));
    };
    assert_eq!(found, expected);
    // Also those of a run that is no longer served.
    signal(&server.process, "-TERM");
    let mut server = server;
    let status = server.process.wait().expect("an end");
    assert_eq!(status.code(), Some(130));
    let server = Server::start(&here, &["served"]);
    let (_, found) = asked(&server, "shout-r2@20").expect("in a checkpoint");
    assert_eq!(found, expected);
    // For a step that was not saved the error tells which were; the stop saved one above 20.
    let body = json!({"model": "shout-r2@1", "prompt": PROMPT}).to_string();
    let (status, error) = server.request("POST", "/v1/completions", &body);
    let error: serde_json::Value = serde_json::from_str(&error).expect("JSON");
    let error = error["error"]["message"].as_str().expect("a message");
    let start = "the model `shout-r2@1` does not exist: `shout-r2` has saves of these steps, the newest first: ";
    let steps = error
        .strip_prefix(start)
        .unwrap_or_else(|| panic!("{status} {error}"));
    let steps: Vec<usize> = steps
        .split(", ")
        .map(|step| step.parse().expect("a step"))
        .collect();
    assert!(
        (1..=8).contains(&steps.len()) && steps.is_sorted_by(|a, b| a > b),
        "{error}"
    );
    for step in steps {
        assert!(
            asked(&server, &format!("shout-r2@{step}")).is_some(),
            "{step}"
        );
    }
    let body = json!({"model": "nobody@20", "prompt": PROMPT}).to_string();
    let (status, error) = server.request("POST", "/v1/completions", &body);
    assert!(
        status == 404 && !error.contains("saves"),
        "{status} {error}"
    );
}

/// Killed while it trains and answers, a server goes on, and its adapters have the bits of a run without either.
#[test]
fn a_server_killed_under_load_goes_on() {
    let here = train::workspace();
    let steps = [
        "--set",
        "defaults.train.max_steps=160",
        "--set",
        "defaults.save={steps: 10, keep: 2}",
    ];
    let alone = ["serve", "alone", "--config", "short.yaml", "--drain"];
    let run = here.run(&[&alone[..], &CONSTANT, &steps].concat());
    assert_eq!(run.code, 0, "{}", run.all());

    for _ in 0..2 {
        let server = serve(&here, "served", &steps);
        thread::scope(|scope| {
            let asks = |model: &'static str| {
                let server = &server;
                move || {
                    let body = json!({"model": model, "prompt": PROMPT, "max_tokens": 200, "ignore_eos": true});
                    // The server's death is the end of it.
                    while server
                        .try_request("POST", "/v1/completions", &body.to_string())
                        .is_ok()
                    {}
                }
            };
            scope.spawn(asks("tiny-llama"));
            scope.spawn(asks("shout-r2@live"));
            let events = here.path("served/events.jsonl");
            let saves = || {
                fs::read_to_string(&events).map_or(0, |text| text.matches("\"checkpoint\"").count())
            };
            let before = saves();
            while saves() < before + 4 {
                thread::sleep(Duration::from_millis(5));
            }
            signal(&server.process, "-KILL");
        });
    }
    let rest = ["serve", "served", "--drain"];
    let run = here.run(&rest);
    assert_eq!(run.code, 0, "{}", run.all());
    assert!(run.stderr.contains("continues from step"), "{}", run.all());
    for adapter in ["shout-r2", "number-r4"] {
        let [found, expected] = ["served", "alone"].map(|run| weights_of(&here, run, adapter));
        assert!(found == expected, "{adapter} has other weights");
    }
}

/// MiB that a server without any adapter says it needs.
fn fixed(here: &Workspace, run: &str) -> f64 {
    let huge = "adapters.shout-r2.lora.r=16384";
    let refused = here.run(&["submit", run, "short.yaml", "--set", huge, "--dry-run"]);
    assert_eq!(refused.code, 4, "{}", refused.all());
    let (before, _) = refused
        .stderr
        .split_once(" MiB without any adapter")
        .expect("numbers");
    let number = before.rsplit('(').next().expect("a number");
    number.parse().expect("a number")
}

/// Training has so much less memory: a quarter of the limit for adapters, and what keys and values take.
#[test]
fn answers_have_their_memory_beside_training() {
    let here = train::workspace();
    let limit = [
        "--set",
        "scheduler.memory_limit=200MiB",
        "--set",
        "defaults.train.max_steps=100000",
    ];
    let beside = serve(&here, "beside", &limit);
    let listen = ["--listen", "127.0.0.1:0", "--memory-limit", "4MiB"];
    let line = ["serve", "small", "--config", "short.yaml"];
    let small = Server::listening(&here, &[&line[..], &listen, &limit].concat());
    for name in ["shout-r2@live", "number-r4@live"] {
        while asked(&beside, name).is_none() || asked(&small, name).is_none() {
            thread::sleep(Duration::from_millis(20));
        }
    }
    let more = fixed(&here, "beside") - fixed(&here, "small");
    // 100 MiB less 4: a quarter is kept for adapters, and keys and values have taken the rest.
    assert!((90.0..100.0).contains(&more), "{more}");
}

#[test]
fn a_server_that_stops_completes_answers_and_says_so() {
    let here = train::workspace();
    let steps = ["--set", "defaults.train.max_steps=100000"];
    let server = serve(&here, "served", &steps);
    let body = json!({
        "model": "tiny-llama", "prompt": PROMPT, "max_tokens": 480, "n": 24, "ignore_eos": true, "seed": 1,
    });
    let body = body.to_string();
    thread::scope(|scope| {
        let answer = scope.spawn(|| server.request("POST", "/v1/completions", &body));
        while !server
            .request("GET", "/metrics", "")
            .1
            .contains("loraloom_requests_running 24\n")
        {
            thread::sleep(Duration::from_millis(5));
        }
        signal(&server.process, "-TERM");
        assert_eq!(answer.join().expect("an answer").0, 200);
    });
    let (code, said) = server.end();
    assert_eq!(code, Some(130), "{said:?}");
    let completes = "completing running answers, for at most 30 s";
    assert!(said.iter().any(|line| line.contains(completes)), "{said:?}");
}

#[test]
fn answers_leave_training_its_time() {
    let here = train::workspace();
    let steps = ["--set", "defaults.train.max_steps=100000"];
    let share = ["--inference-share", "0.02"];
    let server = serve(&here, "served", &[steps, share].concat());
    while asked(&server, "shout-r2@live").is_none() {
        thread::sleep(Duration::from_millis(20));
    }
    let body = json!({
        "model": "tiny-llama", "prompt": PROMPT, "max_tokens": 60, "temperature": 0, "ignore_eos": true,
    });
    let begun = Instant::now();
    server.post("/v1/completions", &body);
    // A token takes more than 0.4 ms, and is owed 49 times as long.
    let took = begun.elapsed();
    assert!(took > Duration::from_secs(1), "{took:?}");
}

/// The threads that train have a lower priority than those that answer; without `--listen` nothing changes.
#[cfg(target_os = "linux")]
#[test]
fn answers_go_before_training() {
    let here = train::workspace();
    let steps = ["--set", "defaults.train.max_steps=100000"];
    let server = serve(&here, "served", &steps);
    while asked(&server, "shout-r2@live").is_none() {
        thread::sleep(Duration::from_millis(20));
    }
    let nice = |stat: &str| -> Option<i32> {
        let (_, after_name) = stat.rsplit_once(')')?;
        after_name.split_whitespace().nth(16)?.parse().ok()
    };
    let stat = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let own = nice(&stat("/proc/thread-self/stat")).expect("a priority");
    let process = server.process.id();
    let threads = fs::read_dir(format!("/proc/{process}/task")).expect("threads");
    let threads =
        threads.map(|entry| stat(&format!("{}/stat", entry.expect("one").path().display())));
    let threads: Vec<_> = threads.collect();
    for name in ["(answers)", "(adapters)", "(tokio-"] {
        let mut named = threads.iter().filter(|stat| stat.contains(name)).peekable();
        assert!(named.peek().is_some(), "{name}: {threads:?}");
        assert!(
            named.all(|stat| nice(stat) == Some(own)),
            "{name}: {threads:?}"
        );
    }
    let first = |process| nice(&stat(&format!("/proc/{process}/task/{process}/stat")));
    let behind = (own + 5).min(19);
    assert_eq!(first(process), Some(behind), "{threads:?}");

    let line = ["serve", "silent", "--config", "short.yaml"];
    let mut silent = here.command(&[&line[..], &CONSTANT, &steps].concat());
    let mut silent = silent.spawn().expect("a process");
    let events = here.path("silent/events.jsonl");
    while !fs::read_to_string(&events).is_ok_and(|text| text.contains("\"checkpoint\"")) {
        thread::sleep(Duration::from_millis(20));
    }
    let alone = first(silent.id());
    silent.kill().expect("killed");
    silent.wait().expect("an end");
    assert_eq!(alone, Some(own), "without requests");
}

/// Iterations go on without a pause while nothing follows from them, but not until then.
#[test]
fn a_live_adapter_does_not_wait_for_others() {
    let here = train::workspace();
    let rare = [
        "--set",
        "defaults.train.max_steps=100000",
        "--set",
        "defaults.eval.steps=50000",
        "--set",
        "defaults.save.steps=50000",
    ];
    let server = serve(&here, "served", &rare);
    let mut steps = Vec::new();
    while steps.len() < 4 {
        match asked(&server, "shout-r2@live") {
            Some((weights, _)) => {
                let step = weights
                    .rsplit('@')
                    .next()
                    .and_then(|step| step.parse().ok());
                steps.push(step.expect("a step"));
            }
            None => thread::sleep(Duration::from_millis(20)),
        }
    }
    let apart = steps.windows(2).map(|pair: &[usize]| pair[1] - pair[0]);
    // A window has 256 iterations.
    assert!(apart.max() < Some(128), "{steps:?}");
}

/// A tenant's answers are service, as its training is: a token of a prompt half of a trained one, one of an answer as much.
#[test]
fn answers_are_service_of_their_tenant() {
    let here = train::workspace();
    here.write("keys", "secret asker\n");
    let fair = ["--set", "scheduler.policy=fair", "--api-keys", "keys"];
    let steps = ["--set", "defaults.train.max_steps=100000"];
    let server = serve(&here, "served", &[&fair[..], &steps].concat());
    let events = here.path("served/events.jsonl");
    let saves =
        || fs::read_to_string(&events).map_or(0, |text| text.matches("\"checkpoint\"").count());
    let save_again = || {
        let (before, begun) = (saves(), Instant::now());
        while saves() < before + 3 {
            assert!(begun.elapsed() < Duration::from_mins(2), "no save");
            thread::sleep(Duration::from_millis(20));
        }
    };
    save_again();
    let body =
        json!({"model": "tiny-llama", "prompt": [5, 6, 7, 8], "max_tokens": 9, "ignore_eos": true});
    let key = "Authorization: Bearer secret\r\n";
    let answered = server.request_with("POST", "/v1/completions", &body.to_string(), key);
    let (status, answer) = answered.expect("an answer");
    assert_eq!(status, 200, "{answer}");
    save_again();
    signal(&server.process, "-TERM");
    let mut server = server;
    server.process.wait().expect("an end");
    let checkpoints = fs::read_dir(here.path("served/checkpoints")).expect("checkpoints");
    let last = checkpoints
        .map(|entry| entry.expect("an entry").path())
        .max()
        .expect("a checkpoint");
    let record = fs::read_to_string(last.join("run.json")).expect("a record");
    let record: serde_json::Value = serde_json::from_str(&record).expect("JSON");
    let ledgers = record["fair_shares"].as_array().expect("ledgers");
    let charged = ledgers
        .iter()
        .find_map(|ledger| ledger["counters"]["asker"].as_f64());
    assert_eq!(charged, Some(f64::midpoint(4.0, 2.0 * 9.0)), "{ledgers:?}");
}

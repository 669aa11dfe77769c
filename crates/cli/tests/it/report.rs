//! `report`, and the page that `train` leaves.

use std::fs;

use serde_json::Value;

use crate::{
    server::{Server, ok, served, workspace as server_workspace},
    support::Workspace,
    train::workspace,
};

/// The data in a page.
fn data(here: &Workspace, page: &str) -> Value {
    let page = fs::read_to_string(here.path(page)).unwrap();
    let (_, rest) = page.split_once(r#"id="data">"#).unwrap();
    let (json, _) = rest.split_once("</script>").unwrap();
    serde_json::from_str(json).unwrap()
}

/// Events of a kind, of the adapter at an index of the page.
fn events(here: &Workspace, kind: &str) -> Vec<Value> {
    let text = fs::read_to_string(here.path("run/events.jsonl")).unwrap();
    let events = text.lines().map(|line| serde_json::from_str(line).unwrap());
    events
        .filter(|event: &Value| event["event"] == kind)
        .collect()
}

/// Two stages pass two groups or one, forward and backward.
fn check_passes(passes: &[Value]) {
    let of = |at: usize, value: Value| passes.iter().filter(|pass| pass[at] == value).count();
    assert!(passes.len() >= 12, "{passes:?}");
    assert_eq!(
        (of(0, 0.into()), of(3, true.into())),
        (passes.len() / 2, passes.len() / 2)
    );
    assert!(
        passes
            .iter()
            .all(|pass| pass[4].as_f64() <= pass[5].as_f64()),
        "{passes:?}"
    );
}

#[test]
fn a_log_that_cannot_be_read_is_told() {
    let here = Workspace::new();
    for (log, said) in [
        ("", "is empty: the run has not started"),
        (
            "no event\nnor this\n",
            "2 of 2 lines of `bad/events.jsonl` could not be read",
        ),
    ] {
        here.write("bad/events.jsonl", log);
        let report = here.run(&["report", "bad"]);
        assert_eq!(report.code, 0, "{}", report.all());
        assert!(report.stderr.contains(said), "{}", report.all());
    }
}

/// All events of a real run are understood, and the page has their numbers.
#[test]
fn train_leaves_a_page_with_the_numbers_of_its_events() {
    let here = workspace();
    let stages = [
        "--set",
        "pipeline.stages=[cpu, cpu]",
        "--set",
        "defaults.train.max_steps=6",
    ];
    let run = here.run(&[&["train", "short.yaml"], &stages[..]].concat());
    assert_eq!(run.code, 0, "{}", run.all());
    assert!(
        run.stderr.contains("report  run/report.html"),
        "{}",
        run.stderr
    );
    let data = data(&here, "run/report.html");
    assert_eq!(data["run"]["unread"], 0);
    let [end] = &events(&here, "run_end")[..] else {
        panic!("one end");
    };
    for key in ["seconds", "tokens"] {
        assert_eq!(data["run"][key], end[key], "{key}");
    }
    assert_eq!(
        data["iterations"]["count"],
        events(&here, "iteration").len()
    );
    let names = ["shout-r2", "number-r4"];
    for (adapter, name) in data["adapters"].as_array().unwrap().iter().zip(names) {
        let own = |kind| {
            let events = events(&here, kind);
            let own = events.into_iter().filter(|event| event["adapter"] == name);
            own.collect::<Vec<Value>>()
        };
        let (steps, evals) = (own("step"), own("eval"));
        assert_eq!(
            (&adapter["name"], &adapter["standing"]),
            (&name.into(), &"done".into())
        );
        assert_eq!(adapter["steps"], steps.len());
        assert_eq!(adapter["first_loss"], steps[0]["loss"]);
        assert_eq!(adapter["last_loss"], steps[5]["loss"]);
        let rates = adapter["curve"]["learning_rate"].as_array().unwrap();
        assert_eq!(rates.len(), 6);
        let best = evals.iter().rfind(|eval| eval["best"] == true);
        assert_eq!(
            adapter["best"]["loss"],
            best.map_or(Value::Null, |best| best["loss"].clone())
        );
        assert_eq!(adapter["spans"].as_array().unwrap().len(), 1);
    }
    assert_eq!(data["answers"]["all"], 4);
    assert!(data["answers"]["shown"][0][1]["after"].is_string());
    assert!(
        data["config"]
            .as_str()
            .unwrap()
            .contains("lr_scheduler_type")
    );
    let keys: Vec<&str> = data["settings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|setting| setting[0].as_str().unwrap())
        .collect();
    assert_eq!(keys, ["dataset", "lora.r"]);
    check_passes(data["passes"].as_array().unwrap());

    let printed = here.run(&["report", "run", "--json", "--quiet"]);
    let json: Value = serde_json::from_str(&here.with_paths(&printed.stdout)).unwrap();
    assert!(printed.code == 0 && json == data, "{}", printed.all());
    let again = here.run(&[
        "report",
        "run",
        "elsewhere.html",
        "--tensorboard",
        "board",
        "--csv",
        "-",
    ]);
    assert_eq!(again.code, 0, "{}", again.all());
    assert!(self::data(&here, "elsewhere.html") == data);
    assert_eq!(again.stdout.lines().count(), 1 + 2 * 6);
    for folder in ["", "shout-r2", "number-r4"] {
        let files = fs::read_dir(here.path("board").join(folder)).unwrap();
        let mut names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        assert!(
            names.any(|name| name.starts_with("events.out.tfevents.")),
            "{folder}"
        );
    }
    let watched = here.run(&["report", "run", "--csv", "steps.csv", "--watch"]);
    assert_eq!(watched.code, 0, "a run that has ended is not waited for");
    assert_eq!(
        fs::read_to_string(here.path("steps.csv")).unwrap(),
        again.stdout
    );
}

#[test]
fn what_cannot_be_reported_or_written_is_an_error() {
    let here = Workspace::empty();
    here.write("run/events.jsonl", "");
    here.write("run/config.resolved.yaml", "");
    let cases = [
        (
            "report nowhere",
            2,
            "`nowhere` is not a run directory: it has no events.jsonl",
        ),
        ("report .", 2, "hint: give the directory of a run"),
        (
            "report run nowhere/page.html",
            2,
            "cannot write `nowhere/page.html`",
        ),
        (
            "report run --csv run/events.jsonl",
            2,
            "`run/events.jsonl` is a file of the run",
        ),
        (
            "report run run/config.resolved.yaml",
            2,
            "`run/config.resolved.yaml` is a file of the run",
        ),
        ("report run x --csv x", 2, "are the same file"),
        (
            "report run --csv nowhere/steps.csv",
            2,
            "cannot write `nowhere/steps.csv`",
        ),
        (
            "report run --tensorboard run/events.jsonl",
            2,
            "cannot write `run/events.jsonl",
        ),
    ];
    for (line, code, message) in cases {
        let run = here.run(&line.split(' ').collect::<Vec<_>>());
        assert_eq!(run.code, code, "{line}: {}", run.all());
        assert!(run.stderr.contains(message), "{line}: {}", run.stderr);
    }
    // A run that has only been created has a page, too.
    assert_eq!(here.run(&["report", "run"]).code, 0);
    assert_eq!(
        data(&here, "run/report.html")["adapters"],
        serde_json::json!([])
    );
}

/// The configuration of a server does not name its tasks: their settings and sweeps are in the queue.
#[test]
fn a_servers_tasks_and_sweeps_are_reported() {
    let here = server_workspace();
    let server = Server::start(&here, &["--config", "server.yaml"]);
    served(&here);
    server.kill();
    let sweep = "\
model: tiny-llama
datasets: {shout: {path: data/shout.jsonl}}
defaults: {dataset: shout, train: {batch_size: 2, max_steps: 3, max_seq_len: 48}}
adapters: [{name: base}]
sweep: [{name: ranks, base: base, grid: {lora.r: [2, 4]}}]
";
    here.write("sweep.yaml", sweep);
    ok(&here, &["submit", "run", "sweep.yaml"]);
    ok(&here, &["serve", "run", "--drain", "--no-progress"]);
    ok(&here, &["report", "run"]);
    let data = data(&here, "run/report.html");
    let sweep = &data["sweeps"][0];
    assert_eq!(
        (&sweep["name"], sweep["standings"].as_array().unwrap().len()),
        (&"ranks".into(), 2)
    );
    assert_eq!(sweep["axes"][0]["key"], "lora.r");
    assert_eq!(data["adapters"][0]["standing"], "done");
}

/// A command gets what is written, the last event included, and what it prints is not the run's data.
#[test]
fn events_go_to_a_command() {
    let here = workspace();
    let events = || fs::read_to_string(here.path("run/events.jsonl")).unwrap();
    let run = here.run(&[
        "train",
        "short.yaml",
        "--json",
        "--events-to",
        "tee seen.jsonl",
    ]);
    assert_eq!(run.code, 0, "{}", run.all());
    assert!(run.json()["adapters"].is_array());
    assert!(!run.stderr.contains("warning"), "{}", run.stderr);
    let first = events();
    assert_eq!(fs::read_to_string(here.path("seen.jsonl")).unwrap(), first);
    assert!(first.lines().last().unwrap().contains("run_end"));

    // A run that goes on sends what is new.
    let more = [
        "train",
        "short.yaml",
        "--resume",
        "--set",
        "adapters.late={dataset: shout, train: {max_steps: 2}}",
        "--events-to",
        "cat > more.jsonl; sleep 2",
    ];
    let run = here.run(&more);
    assert_eq!(run.code, 0, "{}", run.all());
    let waits = "waits for `cat > more.jsonl; sleep 2` to end, 30 s at most";
    assert!(run.stderr.contains(waits), "{}", run.stderr);
    let new = fs::read_to_string(here.path("more.jsonl")).unwrap();
    assert_eq!(first.clone() + &new, events());

    fs::remove_dir_all(here.path("run")).unwrap();
    let run = here.run(&["train", "short.yaml", "--events-to", "exit 3"]);
    assert_eq!(run.code, 0, "{}", run.all());
    let warning = "the events command `exit 3` failed: exit status: 3";
    assert!(run.stderr.contains(warning), "{}", run.stderr);
}

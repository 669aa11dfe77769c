//! What counts of a log.

use loraloom_report::{ReportError, RunHistory};
use serde_json::{Value, json};

use crate::support::Log;

/// Steps and losses of an adapter's curve.
fn curve(data: &Value, adapter: usize) -> (Value, Value) {
    let curve = &data["adapters"][adapter]["curve"];
    (curve["step"].clone(), curve["loss"].clone())
}

#[test]
fn what_is_done_again_counts_once() {
    let mut log = Log::of(&["a", "b"]);
    for step in 1..=4 {
        log.step(step, "a", step, 4.0);
        log.step(step, "b", step, 8.0);
        log.iteration(step);
    }
    log.eval("a", 4, 0.1);
    log.write(json!({"event": "adapter_done", "adapter": "b", "step": 4, "reason": "early"}));
    // Killed: only the first two iterations are kept.
    log.write(json!({
        "event": "resume", "time": "2026-11-26T19:00:00Z", "iteration": 2, "path": "checkpoints/2",
        "adapters": ["a", "b"], "stages": ["cuda:0"], "versions": {"loraloom": "0.1.1"},
    }));
    let data = log.data();
    assert_eq!(curve(&data, 0), (json!([1, 2]), json!([4.0, 4.0])));
    assert_eq!(data["adapters"][0]["best"], json!(null));
    assert_eq!(data["adapters"][1]["standing"], "waiting");
    assert_eq!(data["run"]["stages"], json!(["cuda:0"]));
    assert_eq!(
        (&data["run"]["tokens"], &data["iterations"]["count"]),
        (&json!(20), &json!(2))
    );

    log.admit("a", 2);
    for step in 3..=5 {
        log.step(step, "a", step, 3.0);
        log.iteration(step);
    }
    log.eval("a", 5, 0.25);
    // Of the last two iterations, the first is kept.
    log.write(json!({
        "event": "out_of_memory", "iteration": 4, "reason": "full", "parked": null,
        "microbatch_rows": 2,
    }));
    log.step(5, "a", 5, 2.0);
    log.iteration(5);
    let data = log.data();
    assert_eq!(
        curve(&data, 0),
        (json!([1, 2, 3, 4, 5]), json!([4.0, 4.0, 3.0, 3.0, 2.0]))
    );
    assert_eq!(data["adapters"][0]["evals"]["loss"], json!([]));
    assert_eq!(data["adapters"][0]["tokens"], 50);
    assert_eq!(data["iterations"]["step"], json!([1, 2, 3, 4, 5]));
    assert_eq!(data["iterations"]["tokens"], json!([10, 20, 30, 40, 50]));
    // The time of what was done again has passed.
    assert_eq!(
        data["iterations"]["seconds"],
        json!([0.5, 1.0, 2.5, 3.0, 4.0])
    );
    assert_eq!(data["run"]["clock"], 4.0);
    assert_eq!(
        data["adapters"][0]["spans"],
        json!([[0.0, 2.0], [2.0, 4.0]])
    );

    // A failed task of a server goes on from its checkpoint; another may come under its name.
    log.admit("a", 3);
    assert_eq!(curve(&log.data(), 0).0, json!([1, 2, 3]));
    log.admit("a", 0);
    assert_eq!(curve(&log.data(), 0).0, json!([]));
}

/// The queue has the end of a task, and the newest checkpoint may be from before it.
#[test]
fn what_a_server_has_finished_it_does_not_do_again() {
    let mut log = Log::of(&["a", "b"]);
    for step in 1..=4 {
        log.step(step, "a", step, 4.0);
        log.step(step, "b", step, 8.0);
        log.iteration(step);
    }
    log.write(json!({"event": "adapter_done", "adapter": "b", "step": 4, "reason": "all"}));
    log.write(json!({
        "event": "resume", "time": "2026-11-26T19:00:00Z", "iteration": 2, "path": "checkpoints/2",
        "adapters": [], "stages": ["cpu"], "versions": {},
    }));
    let data = log.data();
    assert_eq!(curve(&data, 0).0, json!([1, 2]));
    assert_eq!(curve(&data, 1).0, json!([1, 2, 3, 4]));
    assert_eq!(data["adapters"][1]["standing"], "stopped");
}

#[test]
fn adapters_stand_as_the_events_say() {
    let names = ["a", "b", "c", "d", "e", "f"];
    let mut log = Log::of(&names);
    log.step(1, "a", 9, 1.0);
    log.iteration(1);
    log.write(json!({"event": "adapter_done", "adapter": "a", "step": 9, "reason": "all"}));
    log.write(json!({"event": "adapter_done", "adapter": "b", "step": 3, "reason": "patience"}));
    log.write(json!({"event": "adapter_failed", "adapter": "c", "step": 3, "reason": "NaN"}));
    log.write(json!({"event": "adapter_cancelled", "adapter": "d", "step": 3}));
    log.write(json!({"event": "park", "adapter": "e", "step": 3, "reason": "small", "by": "f"}));
    let standings = |data: &Value| {
        let adapters = data["adapters"].as_array().unwrap().iter();
        adapters
            .map(|adapter| adapter["standing"].clone())
            .collect::<Vec<_>>()
    };
    let data = log.data();
    assert_eq!(
        standings(&data),
        [
            "done",
            "stopped",
            "failed",
            "cancelled",
            "parked",
            "running"
        ]
    );
    assert_eq!(data["run"]["state"], "open");
    assert!(!log.history().has_ended());
    let happenings = data["happenings"]["shown"].as_array().unwrap();
    assert_eq!(happenings.last().unwrap()["reason"], "small, for f");
    log.write(
        json!({"event": "run_end", "time": "", "seconds": 7.5, "tokens": 99, "interrupted": true}),
    );
    let data = log.data();
    assert_eq!(standings(&data)[4..], ["interrupted", "interrupted"]);
    assert_eq!(
        (
            &data["run"]["state"],
            &data["run"]["seconds"],
            &data["run"]["tokens"]
        ),
        (&json!("interrupted"), &json!(7.5), &json!(99))
    );
    assert!(log.history().has_ended());
}

#[test]
fn other_versions_and_damage_are_passed_over() {
    let mut log = Log::of(&["a"]);
    log.raw("{\"v\":7,\"event\":\"telepathy\",\"to\":[\"a\"]}\n\n");
    log.raw(
        "{\"v\":7,\"event\":\"step\",\"adapter\":\"a\",\"iteration\":1,\"step\":1,\"loss\":2.5}\n",
    );
    log.raw("{\"v\":7,\"event\":\"step\",\"adapter\":\"a\",\"iteration\":\"one\"}\n");
    log.raw("not JSON\n{\"event\":3}\n\u{0}\u{0}\n");
    log.raw("{\"v\":1,\"event\":\"iteration\",\"iteration\":1,\"secon");
    let data = log.data();
    assert_eq!(curve(&data, 0), (json!([1]), json!([2.5])));
    assert_eq!(data["adapters"][0]["curve"].get("grad_norm"), None);
    // The last line is still being written.
    assert_eq!(
        (&data["run"]["events"], &data["run"]["unread"]),
        (&json!(8), &json!(4))
    );

    let nothing = tempfile::tempdir().unwrap();
    let error = RunHistory::read(nothing.path()).unwrap_err();
    assert!(matches!(error, ReportError::NoEvents { .. }) && error.hint().is_some());
}

#[test]
fn metrics_of_other_objectives_are_curves() {
    let mut log = Log::of(&["a", "b"]);
    log.step(1, "a", 1, 1.0);
    log.write(json!({
        "event": "step", "iteration": 1, "adapter": "b", "step": 1, "loss": 0.7, "tokens": 10,
        "rewards/margins": 0.25, "rewards/accuracies": 1, "note": "not a number",
    }));
    log.iteration(1);
    let data = log.data();
    assert_eq!(
        data["metrics"],
        json!(["rewards/accuracies", "rewards/margins"])
    );
    assert_eq!(
        data["adapters"][0]["curve"]["metrics"],
        json!([[null], [null]])
    );
    assert_eq!(
        data["adapters"][1]["curve"]["metrics"],
        json!([[1.0], [0.25]])
    );
}

#[test]
fn sweeps_and_answers_come_from_the_other_files() {
    let mut log = Log::of(&["a", "b", "c"]);
    for (adapter, loss) in [("a", 3.0), ("b", 1.0), ("c", 2.0)] {
        log.step(1, adapter, 1, 9.0);
        log.eval(adapter, 1, loss);
    }
    let config = "
adapters:
  - {name: a, lora: {r: 4}, train: {learning_rate: 1.0e-3}}
  - {name: b, lora: {r: 8}, train: {learning_rate: 1.0e-3}}
  - {name: c, lora: {r: 8}, train: {learning_rate: 1.0e-3}}
sweep:
  - {name: ranks, adapters: [a, b, c], early_stopping: null}
";
    std::fs::write(log.path().join("config.resolved.yaml"), config).unwrap();
    let answer = json!({"prompt": "p", "reference": "r", "before": "x", "after": "r"});
    for (number, tasks) in [
        ("9", json!([{"name": "a", "samples": []}])),
        (
            "10",
            json!([{"name": "a", "samples": [answer]}, {"name": "b"}]),
        ),
    ] {
        let checkpoint = log.path().join("checkpoints").join(number);
        std::fs::create_dir_all(&checkpoint).unwrap();
        let record = json!({"format": 1, "tasks": tasks}).to_string();
        std::fs::write(checkpoint.join("run.json"), record).unwrap();
    }
    std::fs::create_dir_all(log.path().join("checkpoints/11.tmp")).unwrap();
    let data = log.data();
    let sweep = &data["sweeps"][0];
    let names: Vec<_> = sweep["standings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|line| &line["name"])
        .collect();
    assert_eq!(names, ["b", "c", "a"]);
    assert_eq!(sweep["metric"], "eval_loss");
    assert_eq!(
        sweep["axes"],
        json!([{"key": "lora.r", "values": [8, 8, 4]}])
    );
    assert_eq!(data["settings"], json!([["lora.r", [4, 8, 8]]]));
    assert_eq!(data["answers"], json!({"shown": [["a", answer]], "all": 1}));
    assert_eq!(data["config"], config);
}

//! What a run leaves behind: events, best and last adapters, and nothing of another run.

use std::{fs, path::Path, sync::atomic::AtomicBool};

use loraloom_config::RunConfig;
use loraloom_model::PeftAdapter;
use loraloom_tests::{Fixture, device, train};
use loraloom_trainer::{Event, Outcome, Run, RunReport, TrainerError};
use serde_json::{Value, json};

fn adapter(name: &str, learning_rate: f64) -> Value {
    json!({
        "name": name, "dataset": "data",
        "lora": {"r": 4, "lora_alpha": 8, "lora_dropout": 0.1, "target_modules": "all-linear"},
        "train": {"batch_size": 4, "max_seq_len": 48, "max_steps": 12,
                  "learning_rate": learning_rate, "lr_scheduler_type": "constant"},
        "eval": {"steps": 2, "patience": 2}, "save": {"steps": 5},
    })
}

fn config(fixture: &Fixture, adapters: &[Value], output_dir: &Path) -> Value {
    let mut config = fixture.config(adapters, output_dir);
    config["datasets"]["data"]["validation"] = json!(0.2);
    config
}

/// Runs a configuration that `train` would refuse to see fail or stop.
fn run(config: &Value, directory: &Path, stop: bool) -> Result<RunReport, TrainerError> {
    let path = directory.join("config.json");
    fs::write(&path, config.to_string()).expect("the configuration is written");
    let config = RunConfig::load(&path, &[])
        .expect("a valid configuration")
        .config;
    Run::prepare(config, &[device()])?.train(&AtomicBool::new(stop), &mut |_| {})
}

#[test]
fn the_best_and_the_last_adapter_are_kept_and_patience_ends_a_task() {
    let fixture = Fixture::open("llama-gqa");
    // The last of them is out of patience at its last step.
    let mut ends = adapter("ends", 0.0);
    ends["train"]["max_steps"] = json!(6);
    let adapters = [adapter("learns", 3e-3), adapter("stands", 0.0), ends];
    let run = train(|output_dir| config(&fixture, &adapters, output_dir));
    let evals = |name: &str| -> Vec<(usize, f64, bool)> {
        let evals = run.events.iter().filter_map(|event| match event {
            Event::Eval {
                adapter,
                step,
                loss,
                best,
                ..
            } if adapter == name => Some((*step, loss.expect("a finite loss"), *best)),
            _ => None,
        });
        evals.collect()
    };
    let [learns, stands, ends] = &run.report.adapters[..] else {
        panic!("three adapters")
    };

    let found = evals("learns");
    assert_eq!(
        found.iter().map(|eval| eval.0).collect::<Vec<_>>(),
        [2, 4, 6, 8, 10, 12]
    );
    let lowest = found
        .iter()
        .min_by(|a, b| a.1.total_cmp(&b.1))
        .expect("evaluations");
    let best = learns.best.expect("a best evaluation");
    assert_eq!((best.step, best.loss), (lowest.0, lowest.1));
    assert_eq!(learns.steps, 12);

    // Without a learning rate the first evaluation stays the best one; two more and it is over.
    assert_eq!(
        evals("stands")
            .iter()
            .map(|eval| eval.2)
            .collect::<Vec<_>>(),
        [true, false, false]
    );
    let reason = "2 evaluations without a new best".to_owned();
    assert_eq!(
        (stands.steps, &stands.outcome),
        (6, &Outcome::Stopped { reason })
    );
    assert_eq!((ends.steps, &ends.outcome), (6, &Outcome::Done));

    let kept = |name: &str, which: &str| {
        let path = run
            .directory
            .path()
            .join("run/adapters")
            .join(name)
            .join(which);
        PeftAdapter::load(&path).expect("a saved adapter")
    };
    assert_eq!(kept("stands", "best"), kept("stands", "last"));
    if best.step < 12 {
        assert_ne!(kept("learns", "best"), kept("learns", "last"));
    }
}

#[test]
fn an_evaluation_that_is_no_number_is_not_the_best() {
    let fixture = Fixture::open("llama-gqa");
    let mut explodes = adapter("explodes", 1e30);
    explodes["train"]["max_steps"] = json!(1);
    explodes["eval"]["steps"] = json!(1);
    let run = train(|output_dir| config(&fixture, &[explodes], output_dir));
    let evals = run.events.iter().filter_map(|event| match event {
        Event::Eval { loss, best, .. } => Some((*loss, *best)),
        _ => None,
    });
    assert_eq!(evals.collect::<Vec<_>>(), [(None, false)]);
    assert_eq!(run.report.adapters[0].best, None);
}

#[test]
fn events_are_lines_of_versioned_json_whose_numbers_round_trip() {
    let fixture = Fixture::open("qwen3");
    let run = train(|output_dir| config(&fixture, &[adapter("a", 1e-3)], output_dir));
    let text = fs::read_to_string(run.directory.path().join("run/events.jsonl")).expect("events");
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("a JSON object"))
        .collect();
    assert_eq!(lines.len(), run.events.len());
    assert!(
        lines
            .iter()
            .all(|line| line["v"] == 1 && line["event"].is_string())
    );
    let mut steps = text
        .lines()
        .filter(|line| line.contains(r#""event":"step""#));
    for event in &run.events {
        if let Event::Step {
            loss, grad_norm, ..
        } = event
        {
            let line = steps.next().expect("a line for every step");
            assert_eq!(number(line, "loss").to_bits(), loss.to_bits());
            assert_eq!(number(line, "grad_norm").to_bits(), grad_norm.to_bits());
        }
    }
    assert_eq!(lines.first().expect("lines")["event"], "run_start");
    assert_eq!(lines.last().expect("lines")["event"], "run_end");
    let resolved = run.directory.path().join("run/config.resolved.yaml");
    RunConfig::load(&resolved, &[]).expect("the resolved configuration is a configuration");
}

/// The number under a key, exactly: `serde_json` reads floats to the last bit but one.
fn number(line: &str, key: &str) -> f64 {
    let (_, rest) = line.split_once(&format!("\"{key}\":")).expect("the key");
    let digits = rest.split([',', '}']).next().expect("a value");
    digits.parse().expect("a number")
}

#[test]
fn a_stopped_run_saves_every_adapter_and_a_second_run_touches_nothing() {
    let fixture = Fixture::open("llama-gqa");
    let directory = tempfile::tempdir().expect("a temporary directory");
    let output_dir = directory.path().join("run");
    let mut config = config(
        &fixture,
        &[adapter("a", 1e-3), adapter("b", 1e-3)],
        &output_dir,
    );
    config["scheduler"] = json!({"max_adapters": 1});
    let report = run(&config, directory.path(), true).expect("a stopped run is no error");
    assert!(report.interrupted);
    let outcomes: Vec<_> = report
        .adapters
        .iter()
        .map(|a| (a.steps, &a.outcome))
        .collect();
    assert_eq!(
        outcomes,
        [(1, &Outcome::Interrupted), (0, &Outcome::Interrupted)]
    );
    let saved = output_dir.join("adapters/a/last");
    let before = PeftAdapter::load(&saved).expect("the running adapter was saved");
    assert!(
        !output_dir.join("adapters/b").exists(),
        "the waiting one had nothing to save"
    );

    let events = fs::read(output_dir.join("events.jsonl")).expect("events");
    let refused = run(&config, directory.path(), false);
    assert!(
        matches!(refused, Err(TrainerError::RunExists { .. })),
        "{refused:?}"
    );
    assert_eq!(
        fs::read(output_dir.join("events.jsonl")).expect("events"),
        events
    );
    assert_eq!(PeftAdapter::load(&saved).expect("still there"), before);
}

/// As by `logrotate`, or a user who cleans up: the list goes on where it is looked for.
#[test]
fn events_that_are_removed_begin_anew_and_say_so() {
    let fixture = Fixture::open("llama-gqa");
    for moved in [false, true] {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let output_dir = directory.path().join("run");
        let events = output_dir.join("events.jsonl");
        let path = directory.path().join("config.json");
        let config = config(&fixture, &[adapter("a", 1e-3)], &output_dir);
        fs::write(&path, config.to_string()).expect("the configuration is written");
        let loaded = RunConfig::load(&path, &[]).expect("a valid configuration");
        let run = Run::prepare(loaded.config, &[device()]).expect("the run is prepared");
        let mut seen = Vec::new();
        run.train(&AtomicBool::new(false), &mut |event| {
            if matches!(event, Event::Step { step: 3, .. }) {
                fs::rename(&events, output_dir.join("events.1")).expect("moved");
                if moved {
                    fs::write(&events, "").expect("another file");
                }
            }
            seen.push(event.clone());
        })
        .expect("the run ends");
        let text = fs::read_to_string(&events).expect("a list");
        let lines: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect();
        assert_eq!(lines[0]["event"], "warning");
        let message = "events.jsonl was removed or replaced: earlier events are lost";
        assert_eq!(lines[0]["message"], message);
        assert_eq!(
            (&lines[1]["event"], &lines[1]["step"]),
            (&json!("step"), &json!(3))
        );
        assert_eq!(lines.last().expect("lines")["event"], "run_end");
        let warnings = seen.iter().filter(|event| match event {
            Event::Warning { message: said } => said == message,
            _ => false,
        });
        assert_eq!(warnings.count(), 1);
    }
}

//! What tenants were served, and how long their tasks waited, counts on after a restart.

use std::{
    fs,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use loraloom_config::RunConfig;
use loraloom_tests::{Fixture, device};
use loraloom_trainer::{Event, Run, SavedRun};
use serde_json::{Value, json};

/// Two tenants' tasks, of which one at a time has a place.
fn config(directory: &Path) -> RunConfig {
    let adapter = |name: &str, tenant: &str| {
        json!({
            "name": name, "dataset": "data", "tenant": tenant,
            "lora": {"r": 4, "target_modules": "all-linear"},
            "train": {"batch_size": 2, "max_seq_len": 48, "max_steps": 8},
            "save": {"steps": 2},
        })
    };
    let fixture = Fixture::open("llama-gqa");
    let adapters = [adapter("first", "one"), adapter("second", "two")];
    let mut config = fixture.config(&adapters, &directory.join("run"));
    config["scheduler"] = json!({"policy": "fair", "max_adapters": 1});
    let path = directory.join("config.json");
    fs::write(&path, config.to_string()).expect("the configuration is written");
    let loaded = RunConfig::load(&path, &[]);
    loaded.expect("a valid configuration").config
}

/// Trains until `last` says so; the adapters as they got places, and what each checkpoint says.
fn train(run: Run, directory: &Path, last: impl Fn(&Event) -> bool) -> (Vec<String>, Vec<Value>) {
    let (mut admitted, mut checkpoints) = (Vec::new(), Vec::new());
    let stop = AtomicBool::new(false);
    let mut observer = |event: &Event| {
        match event {
            Event::Admit { adapter, .. } => admitted.push(adapter.clone()),
            Event::RunCheckpoint { path, .. } => {
                let record = directory.join("run").join(path).join("run.json");
                let text = fs::read(record).expect("a checkpoint's record");
                checkpoints.push(serde_json::from_slice(&text).expect("JSON"));
            }
            _ => {}
        }
        stop.fetch_or(last(event), Ordering::Relaxed);
    };
    run.train(&stop, &mut observer).expect("the run ends");
    (admitted, checkpoints)
}

fn served(checkpoint: &Value) -> f64 {
    let ledgers = checkpoint["fair_shares"].as_array().expect("ledgers");
    let counters = ledgers.iter().map(|ledger| &ledger["counters"]);
    let of = |counters: &Value| -> f64 {
        let counters = counters.as_object().expect("counters").values();
        counters
            .map(|tokens| tokens.as_f64().expect("tokens"))
            .sum()
    };
    counters.map(of).sum()
}

fn waited(checkpoint: &Value, task: usize) -> f64 {
    let waited = checkpoint["tasks"][task]["waited"].as_f64();
    waited.expect("seconds")
}

#[test]
fn a_resumed_run_remembers_who_was_served_and_who_waited() {
    let place = tempfile::tempdir().expect("a temporary directory");
    let directory = place.path();
    let begin = Run::prepare(config(directory), &[device()]).expect("the run is prepared");
    let (admitted, checkpoints) = train(begin, directory, |event| {
        matches!(event, Event::Step { step: 4, .. })
    });
    assert_eq!(admitted, ["first"]);
    let before = checkpoints.last().expect("a checkpoint");
    let tokens = before["tokens"].as_f64().expect("tokens");
    assert!(tokens > 0.0);
    assert_eq!(served(before).to_bits(), tokens.to_bits(), "{before}");
    assert!(waited(before, 1) > waited(before, 0), "{before}");

    let saved = SavedRun::claim(&directory.join("run")).expect("a checkpoint");
    let resumed = Run::resume(config(directory), &[device()], saved).expect("the run goes on");
    let (admitted, checkpoints) = train(resumed, directory, |_| false);
    // Its tenant is behind. Without a memory of that, the other one came earlier.
    assert_eq!(admitted[0], "second");
    assert!(waited(&checkpoints[0], 1) >= waited(before, 1));
    let after = checkpoints.last().expect("a checkpoint");
    assert_eq!(
        served(after).to_bits(),
        after["tokens"].as_f64().expect("tokens").to_bits()
    );
}

/// With the lead that a user gets, which is not a setting: 65,536 tokens.
#[test]
fn tenants_take_turns() {
    const LEAD: i64 = 65_536;
    let place = tempfile::tempdir().expect("a temporary directory");
    let mut config = config(place.path());
    for adapter in &mut config.adapters {
        let train = &mut adapter.train;
        (train.batch_size, train.max_seq_len, train.max_steps) = (53, 256, Some(120));
        adapter.save.steps = 1000;
    }
    let (mut admitted, mut ahead, mut most, mut largest) = (Vec::new(), 0, 0, 0);
    let run = Run::prepare(config, &[device()]).expect("the run is prepared");
    let never = AtomicBool::new(false);
    let report = run.train(&never, &mut |event| match event {
        Event::Admit { adapter, .. } => admitted.push(adapter.clone()),
        Event::Step {
            adapter, tokens, ..
        } => {
            let tokens = *tokens as i64;
            ahead += if adapter == "first" { tokens } else { -tokens };
            most = most.max(ahead.abs());
            largest = largest.max(tokens);
        }
        _ => {}
    });
    report.expect("the run ends");
    assert_eq!(admitted, ["first", "second", "first", "second"]);
    // While a task waits, who trains is decided after every eighth iteration.
    let bound = LEAD..=LEAD + 8 * largest;
    assert!(bound.contains(&most), "{most} tokens ahead");
}

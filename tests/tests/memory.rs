//! Memory that runs out in the middle of a run: nobody is lost, and nobody's numbers change.

use std::{
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use loraloom_config::RunConfig;
use loraloom_pipeline::HostMemory;
use loraloom_tests::{Fixture, train};
use loraloom_trainer::{Event, Outcome, Run};
use serde_json::{Value, json};

/// What the allocator is said to hold: a stub that is set from outside.
static HELD: AtomicU64 = AtomicU64::new(1_000);

const LIMIT: u64 = 1 << 30;

fn adapter(index: usize) -> Value {
    json!({
        "name": format!("a{index}"), "dataset": "data", "seed": index, "priority": index % 2,
        "lora": {"r": 2 + index, "lora_alpha": 8, "lora_dropout": 0.1, "target_modules": "all-linear"},
        "train": {"batch_size": 2, "max_seq_len": 32, "max_steps": 40, "learning_rate": 2e-3},
        "save": {"steps": 1000},
    })
}

fn config(output_dir: &Path) -> Value {
    let adapters: Vec<Value> = (0..3).map(adapter).collect();
    let mut config = Fixture::open("llama-gqa").config(&adapters, output_dir);
    config["device"] = json!("cpu");
    config["scheduler"] = json!({"memory_limit": "1GiB"});
    config
}

#[test]
fn memory_that_runs_out_parks_one_task_and_changes_nobody() {
    HostMemory {
        in_use: || 1_000,
        peak: || HELD.load(Ordering::Relaxed),
        take_peak: || 1_000,
    }
    .count_with();
    let undisturbed = train(config);

    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("config.json");
    let text = config(&directory.path().join("run")).to_string();
    std::fs::write(&path, text).expect("the configuration is written");
    let config = RunConfig::load(&path, &[])
        .expect("a valid configuration")
        .config;
    let run = Run::prepare(config, &[burn::tensor::Device::flex()]).expect("the run is prepared");
    let mut events = Vec::new();
    let mut cuts = 0;
    let report = run
        .train(&AtomicBool::new(false), &mut |event| {
            match event {
                // Somebody else takes the memory away.
                Event::Iteration { iteration: 9, .. } if cuts < 1 => {
                    cuts += 1;
                    HELD.store(LIMIT + 1, Ordering::Relaxed);
                }
                Event::OutOfMemory { .. } => HELD.store(1_000, Ordering::Relaxed),
                _ => {}
            }
            events.push(event.clone());
        })
        .expect("the run ends");

    let halved = events.iter().any(|event| {
        matches!(
            event,
            Event::OutOfMemory {
                microbatch_rows: Some(_),
                ..
            }
        )
    });
    assert!(!halved, "several tasks ran");
    let ran_out = events
        .iter()
        .filter(|event| matches!(event, Event::OutOfMemory { .. }));
    assert_eq!(ran_out.count(), 1);
    for adapter in &report.adapters {
        assert_eq!(
            (&adapter.outcome, adapter.steps),
            (&Outcome::Done, 40),
            "{}",
            adapter.name
        );
        let load = |root: &Path| {
            let path = root.join("run/adapters").join(&adapter.name).join("last");
            std::fs::read(path.join("adapter_model.safetensors")).expect("a saved adapter")
        };
        assert!(
            load(directory.path()) == load(undisturbed.directory.path()),
            "{} is not what it would have been",
            adapter.name
        );
    }
    let parked = events.iter().filter_map(|event| match event {
        Event::OutOfMemory { parked, .. } => parked.clone(),
        _ => None,
    });
    // The lowest priority, and of those the one that came last.
    assert_eq!(parked.collect::<Vec<_>>()[0], "a2");
}

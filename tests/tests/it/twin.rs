//! A pipeline that answers on another thread, over weights that a run trains with.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use batchlora::Segments;
use loraloom_config::{LoadOptions, RunConfig};
use loraloom_model::{PeftAdapter, Sequences, Targets};
use loraloom_pipeline::{Microbatch, Pipeline};
use loraloom_tests::{Fixture, device, keeps_bits};
use loraloom_trainer::Run;
use serde_json::json;

fn run(directory: &Path) -> Run {
    let adapter = json!({
        "name": "a", "dataset": "data", "lora": {"r": 4},
        "train": {"batch_size": 2, "max_seq_len": 32, "max_steps": 12, "learning_rate": 1e-2},
    });
    let value = Fixture::open("llama-gqa").config(&[adapter], &directory.join("run"));
    let path = directory.join("config.json");
    let config = RunConfig::load_yaml(&value.to_string(), &path, &LoadOptions::default());
    let config = config.expect("a valid configuration").config;
    Run::prepare(config, &[device()]).expect("the run is prepared")
}

fn weights(directory: &Path) -> Vec<f32> {
    let adapter = PeftAdapter::load(&directory.join("run/adapters/a/last")).expect("saved");
    let modules = adapter.modules.values();
    modules
        .flat_map(|weights| [weights.a.clone(), weights.b.clone()].concat())
        .collect()
}

fn logits(pipeline: &Pipeline) -> Vec<f32> {
    let ids: Vec<u32> = (1..40).collect();
    let microbatch = Microbatch {
        sequences: Sequences::from_lengths([ids.len()]),
        cached: None,
        rope_lengths: vec![ids.len()],
        segments: Segments::new(ids.len(), Vec::new()).expect("none"),
        draws: None,
        targets: Targets::default(),
        ids,
    };
    pipeline.logits(0, &microbatch).expect("logits")
}

#[test]
fn a_twin_and_its_run_do_not_notice_each_other() {
    let trained = AtomicBool::new(false);
    let alone = tempfile::tempdir().expect("a directory");
    let never = AtomicBool::new(false);
    run(alone.path())
        .train(&never, &mut |_| ())
        .expect("trained");

    let beside = tempfile::tempdir().expect("a directory");
    let run = run(beside.path());
    let twin = run.twin().expect("a twin").expect("stages are here");
    let expected = logits(&twin);
    let trained = Arc::new(trained);
    let ended = Arc::clone(&trained);
    let answers = thread::spawn(move || {
        let mut passes = 0;
        while !ended.load(Ordering::Relaxed) || passes < 3 {
            let found = logits(&twin);
            assert!(found == expected, "pass {passes} has other logits");
            passes += 1;
        }
    });
    run.train(&never, &mut |_| ()).expect("trained");
    trained.store(true, Ordering::Relaxed);
    answers.join().expect("the same answers");

    let (found, expected) = (weights(beside.path()), weights(alone.path()));
    assert_eq!(found.len(), expected.len());
    let tolerance = if keeps_bits() { 0.0 } else { 1e-6 };
    for (a, b) in found.iter().zip(&expected) {
        assert!((a - b).abs() <= tolerance, "{a} {b}");
    }
}

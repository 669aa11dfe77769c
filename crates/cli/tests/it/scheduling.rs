//! A run that does not fit into memory at once: twelve adapters, of which about four do.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
};

use serde_json::Value;

use crate::support::Workspace;

/// Bytes that the process may allocate: the model and about four adapters at work.
const LIMIT: u64 = 44_000_000;
const STEPS: usize = 24;

/// Twelve adapters of mixed rank, batch, length and priority.
fn config() -> String {
    let mut config = format!(
        "model: tiny-llama\noutput_dir: run\ndevice: cpu\ndatasets:\n  \
         shout: {{path: data/shout.jsonl}}\n  number: {{path: data/number.jsonl}}\ndefaults:\n  \
         lora: {{lora_dropout: 0.1}}\n  \
         train: {{max_steps: {STEPS}, learning_rate: 5.0e-3}}\nadapters:\n"
    );
    for index in 0..12 {
        let dataset = ["shout", "number"][index % 2];
        let (rank, batch) = ([2, 4, 8, 16][index % 4], [1, 2, 4][index % 3]);
        let (length, priority) = ([24, 48][index / 2 % 2], [0, 5, 1][index / 4]);
        writeln!(
            config,
            "  - {{name: a{index}, dataset: {dataset}, priority: {priority}, lora: {{r: {rank}}}, \
             train: {{batch_size: {batch}, max_seq_len: {length}}}}}"
        )
        .unwrap();
    }
    config
}

fn events(here: &Workspace, run: &str) -> Vec<Value> {
    let text = fs::read_to_string(here.path(run).join("events.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    lines.collect()
}

fn weights(here: &Workspace, run: &str, adapter: usize) -> Vec<u8> {
    let path = format!("{run}/adapters/a{adapter}/last/adapter_model.safetensors");
    fs::read(here.path(&path)).unwrap()
}

#[test]
fn more_adapters_than_fit_train_in_turn_and_as_if_alone() {
    let here = Workspace::new();
    here.write("config.yaml", config());
    let train = |arguments: &[&str]| {
        let run = here.run(&[&["train", "config.yaml", "--no-progress"], arguments].concat());
        assert_eq!(run.code, 0, "{}", run.all());
    };
    let limit = format!("scheduler.memory_limit={LIMIT}B");
    train(&["--set", &limit, "--output-dir", "run"]);
    train(&["--set", "scheduler.max_adapters=1", "--output-dir", "alone"]);
    for adapter in 0..12 {
        assert!(
            weights(&here, "run", adapter) == weights(&here, "alone", adapter),
            "a{adapter} is not what it is alone"
        );
    }

    let events = events(&here, "run");
    let of = |kind: &'static str| events.iter().filter(move |event| event["event"] == kind);
    let together = of("iteration").map(|event| {
        let groups = event["groups"].as_array().unwrap();
        groups
            .iter()
            .map(|group| group.as_array().unwrap().len())
            .sum::<usize>()
    });
    let together: BTreeSet<usize> = together.collect();
    let most = *together.last().unwrap();
    assert!((2..12).contains(&most), "at most {most} trained together");
    let peak = of("iteration")
        .map(|event| event["bytes_reserved"].as_u64().unwrap())
        .max();
    assert!(peak.unwrap() <= LIMIT, "{peak:?} of {LIMIT}");
    assert_eq!(of("out_of_memory").count(), 0);

    // The four of the highest priority begin first, then the next four.
    let mut first: BTreeMap<String, usize> = BTreeMap::new();
    for (place, event) in of("admit").enumerate() {
        first
            .entry(event["adapter"].as_str().unwrap().to_owned())
            .or_insert(place);
    }
    let latest =
        |names: std::ops::Range<usize>| names.map(|index| first[&format!("a{index}")]).max();
    let earliest =
        |names: std::ops::Range<usize>| names.map(|index| first[&format!("a{index}")]).min();
    assert!(latest(4..8) < earliest(8..12), "{first:?}");
    assert!(latest(8..12) < earliest(0..4), "{first:?}");
}

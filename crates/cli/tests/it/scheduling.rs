//! A run that does not fit into memory at once: twelve adapters, of which about four do.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
};

use serde_json::Value;

use crate::support::Workspace;

/// Bytes that the process may allocate: the model and about four adapters at work.
const LIMIT: u64 = 38_000_000;
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
    let peak = |run: &str| -> u64 {
        let events = events(&here, run);
        let bytes = events.iter().filter(|event| event["event"] == "iteration");
        let bytes = bytes.map(|event| event["bytes_reserved"].as_u64().unwrap());
        bytes.max().unwrap()
    };
    train(&["--set", "scheduler.max_adapters=1", "--output-dir", "alone"]);
    // Half more than what the largest takes alone: what was admitted before anything was measured
    // runs out of memory, leaves nothing behind, and all come to their end. One whose micro-batches were
    // halved need not have the same bits.
    let tight = peak("alone") * 3 / 2;
    for (run, limit) in [("run", LIMIT), ("tight", tight)] {
        let set = format!("scheduler.memory_limit={limit}B");
        train(&["--set", &set, "--output-dir", run]);
        let peak = peak(run);
        assert!(peak <= limit, "{peak} of {limit}");
    }
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
    // Once at most, before much is known: how much products take differs from processor to processor.
    assert!(of("out_of_memory").count() <= 1);

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

/// A long step of eight micro-batches beside a short one. The long one's dataset is such that every
/// other step of it is much smaller: that tells what a pass costs from what its tokens cost. Neither
/// comes to its end: on a busy machine it may take long until iterations are regular enough for a fit.
const LONG_AND_SHORT: &str = "\
model: tiny-llama
output_dir: run
device: cpu
datasets: {few: {path: data/few.jsonl}, number: {path: data/number.jsonl}}
defaults: {save: {steps: 8}, lora: {r: 4}, train: {batch_size: 4, max_seq_len: 48}}
adapters:
  - {name: long, dataset: few, train: {gradient_accumulation_steps: 8, max_steps: 100000}}
  - {name: short, dataset: number, train: {max_steps: 100000}}
";

#[cfg(unix)]
#[test]
fn what_iterations_take_is_learnt_used_and_kept() {
    use crate::server::interrupted_after;

    let here = Workspace::new();
    here.write("config.yaml", LONG_AND_SHORT);
    let rows = fs::read_to_string(here.path("data/shout.jsonl")).unwrap();
    let few: Vec<&str> = rows.lines().take(36).collect();
    here.write("data/few.jsonl", few.join("\n"));

    let of = |events: &[Value], kind: &str| -> Vec<Value> {
        let events = events.iter().filter(|event| event["event"] == kind);
        events.cloned().collect()
    };
    let spread = |event: &Value| {
        let part = &event["parts"]["long"];
        event["event"] == "iteration" && part[1].as_u64() > Some(1)
    };
    let is_of = |event: &Value, number: u64| {
        event["event"] == "iteration" && event["iteration"].as_u64() >= Some(number)
    };
    let first = interrupted_after(&here, &["config.yaml"], |event| {
        is_of(event, 24) && spread(event)
    });
    assert!(
        !spread(&of(&first, "iteration")[0]),
        "nothing was known yet"
    );
    let end = &of(&first, "run_end")[0];
    let iterations = of(&first, "iteration").len() as u64;
    let predictions = end["memory_predictions"].as_u64().unwrap();
    assert!((1..iterations).contains(&predictions), "{end}");
    let error = end["memory_error_percent"].as_f64().unwrap();
    assert!(error < 5.0, "{end}");
    assert!(end["memory_unfitted_error_percent"].is_number(), "{end}");

    // Far fewer iterations than either fit needs: a small step, which has one micro-batch, and the next.
    let resumed = interrupted_after(&here, &["--resume", "run"], spread);
    let iterations = of(&resumed, "iteration");
    assert!(iterations.iter().take(2).any(spread), "{}", iterations[0]);
    let end = &of(&resumed, "run_end")[0];
    assert_eq!(end["memory_predictions"], iterations.len() as u64);
    assert!(end["memory_unfitted_error_percent"].is_null(), "{end}");
}

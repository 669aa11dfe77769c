//! What a training step uploads and how often the host waits in it, as [soft-cuda] traces both.
//!
//! [soft-cuda]: ../../../tools/soft-cuda/README.md

use std::{env, process::Command};

use loraloom_tests::{Fixture, train};
use loraloom_trainer::Event;
use serde_json::json;

/// Steps of the process that is traced.
const STEPS: &str = "LORALOOM_TEST_STEPS";

/// What a row is on a device: token, position, coordinate of dropout, target of the row, and whether it
/// has one. A target is a row of hidden states, a token and a weight.
const ROW_BYTES: usize = 4 * 4 + 1;
const TARGET_BYTES: usize = 3 * 4;
/// Tables of segments and sequences, and the arguments of launches.
const TABLE_BYTES: usize = 4096;
/// Losses and norms are read once a step.
const WAITS: usize = 2;

#[derive(Debug, Default)]
struct Traffic {
    bytes: usize,
    waits: usize,
    rows: usize,
}

/// A training of so many steps in a process of its own.
fn traced(steps: usize) -> Traffic {
    let output = Command::new(env::current_exe().expect("this program"))
        .args(["--exact", "host_traffic::the_training_that_is_traced"])
        .args(["--include-ignored", "--nocapture"])
        .env(STEPS, steps.to_string())
        .env("SOFT_CUDA_TRACE", "1")
        .output()
        .expect("it begins");
    let trace = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{trace}");
    let rows = String::from_utf8_lossy(&output.stdout);
    let rows = rows
        .split("rows: ")
        .nth(1)
        .and_then(|text| text.lines().next());
    let mut traffic = Traffic {
        rows: rows.and_then(|rows| rows.parse().ok()).expect("rows"),
        ..Traffic::default()
    };
    for line in trace.lines() {
        if line.contains("the host waits") {
            traffic.waits += 1;
        } else if let Some(line) = line.strip_suffix(" bytes to the device") {
            let bytes = line.rsplit(' ').next().and_then(|bytes| bytes.parse().ok());
            traffic.bytes += bytes.unwrap_or(0);
        }
    }
    traffic
}

/// Half a megabyte for 16,384 rows that all have targets.
#[test]
#[ignore = "needs soft-cuda"]
fn a_step_uploads_numbers_of_its_rows_and_waits_for_results_alone() {
    let (few, many) = (3, 7);
    let [short, long] = [few, many].map(traced);
    let steps = many - few;
    let rows = long.rows - short.rows;
    let bytes = long.bytes - short.bytes;
    let waits = long.waits - short.waits;
    println!(
        "{} bytes for {} rows and {} waits a step",
        bytes / steps,
        rows / steps,
        waits / steps
    );
    let row_bytes = ROW_BYTES + TARGET_BYTES;
    assert!(rows > 0 && bytes > rows * ROW_BYTES, "{short:?} {long:?}");
    assert!(
        bytes <= rows * row_bytes + steps * TABLE_BYTES,
        "{bytes} bytes for {rows} rows"
    );
    assert!(16_384 * row_bytes + 4 * TABLE_BYTES <= 500_000);
    assert!(waits <= WAITS * steps, "{waits} waits in {steps} steps");
}

#[test]
#[ignore = "a part of the test above"]
fn the_training_that_is_traced() {
    let Some(steps) = env::var(STEPS)
        .ok()
        .and_then(|steps| steps.parse::<usize>().ok())
    else {
        return;
    };
    let fixture = Fixture::open("llama-gqa");
    let adapters = [(4, 0.1), (16, 0.0)].map(|(rank, dropout)| {
        json!({
            "name": format!("r{rank}"), "dataset": "data", "seed": rank,
            "lora": {"r": rank, "lora_alpha": rank, "lora_dropout": dropout,
                     "target_modules": "all-linear"},
            "train": {"batch_size": 4, "max_seq_len": 48, "max_steps": steps},
        })
    });
    let run = train(|output_dir| fixture.config(&adapters, output_dir));
    let rows = run.events.iter().filter_map(|event| match event {
        Event::Iteration { tokens, .. } => Some(*tokens),
        _ => None,
    });
    println!("rows: {}", rows.sum::<usize>());
}

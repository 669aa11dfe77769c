//! Training on a device that shows more than a GPU does: what a step uploads, how often the host waits in
//! it, and what happens when memory runs out. [soft-cuda] traces, and has as much memory as it is told.
//!
//! [soft-cuda]: ../../../tools/soft-cuda/README.md

use std::{
    env,
    process::{Command, Output},
};

#[cfg(feature = "cuda")]
use batchlora::KernelProfile;
use batchlora::frozen_linear;
use burn::tensor::Tensor;
use loraloom_model::to_host;
use loraloom_tests::{Fixture, device, losses, train};
use loraloom_trainer::Event;
use serde_json::json;

/// Steps of the training in a process of its own, and rows of a batch.
const STEPS: &str = "LORALOOM_TEST_STEPS";
const BATCH: &str = "LORALOOM_TEST_BATCH";

/// What a row is on a device: token, position, coordinate of dropout, target of the row, and whether it
/// has one. A target is a row of hidden states, a token and a weight.
const ROW_BYTES: usize = 4 * 4 + 1;
const TARGET_BYTES: usize = 3 * 4;
/// Tables of segments and sequences, and the arguments of launches.
const TABLE_BYTES: usize = 2300;
/// Losses and norms are read once a step.
const WAITS: usize = 2;

/// A test of this program in a process of its own.
fn child(test: &str, variables: &[(&str, &str)]) -> Output {
    Command::new(env::current_exe().expect("this program"))
        .args(["--exact", &format!("soft_cuda::{test}")])
        .args(["--include-ignored", "--nocapture"])
        .envs(variables.iter().copied())
        .output()
        .expect("it begins")
}

/// What a training said on its standard output and error streams.
fn trained(steps: usize, batch: usize, variables: &[(&str, &str)]) -> [String; 2] {
    let (steps, batch) = (steps.to_string(), batch.to_string());
    let mut all = vec![(STEPS, steps.as_str()), (BATCH, batch.as_str())];
    all.extend(variables);
    let output = child("a_training_in_a_process_of_its_own", &all);
    let [said, trace] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success(), "{said}{trace}");
    [said.into_owned(), trace.into_owned()]
}

/// The rest of the line that begins so.
fn line<'a>(text: &'a str, begin: &str) -> &'a str {
    let rest = text
        .split(begin)
        .nth(1)
        .and_then(|rest| rest.lines().next());
    rest.expect("a line that begins so")
}

#[derive(Debug, Default)]
struct Traffic {
    bytes: usize,
    waits: usize,
    rows: usize,
    targets: usize,
}

fn traced(steps: usize) -> Traffic {
    let [said, trace] = trained(steps, 4, &[("SOFT_CUDA_TRACE", "1")]);
    let mut traffic = Traffic {
        rows: line(&said, "rows: ").parse().expect("a number"),
        targets: line(&said, "targets: ").parse().expect("a number"),
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
    let targets = long.targets - short.targets;
    let bytes = long.bytes - short.bytes;
    let waits = long.waits - short.waits;
    let expected = rows * ROW_BYTES + targets * TARGET_BYTES;
    println!("{bytes} bytes, {expected} of them of rows, and {waits} waits in {steps} steps");
    assert!(rows > 0 && bytes > expected, "{short:?} {long:?}");
    assert!(
        bytes <= expected + steps * TABLE_BYTES,
        "{bytes} bytes where rows are {expected}"
    );
    let row_bytes = ROW_BYTES + TARGET_BYTES;
    assert!(16_384 * row_bytes + 4 * TABLE_BYTES <= 500_000);
    assert!(waits <= WAITS * steps, "{waits} waits in {steps} steps");
}

/// Products by cuBLAS fail outside of CubeCL's account. What it says of one step must not end the next.
#[test]
#[ignore = "needs soft-cuda"]
fn memory_that_runs_out_takes_steps_back() {
    let [expected, _] = trained(3, 32, &[]);
    let [found, _] = trained(3, 32, &[("SOFT_CUDA_MEMORY_MIB", "44")]);
    assert_eq!(line(&expected, "ran out: "), "0");
    assert_ne!(line(&found, "ran out: "), "0");
    let last = |said: &str| -> Vec<f64> {
        let losses = line(said, "last losses: ").split(' ');
        losses.map(|loss| loss.parse().expect("a number")).collect()
    };
    for (found, expected) in last(&found).into_iter().zip(last(&expected)) {
        assert!(
            (found - expected).abs() < 1e-4 * expected,
            "{found} {expected}"
        );
    }
}

/// CubeCL knows nothing of it: whoever reads asks.
#[test]
#[ignore = "needs soft-cuda"]
fn a_product_that_fails_is_an_error_where_results_are_read() {
    let failing = |test, number| {
        child(
            test,
            &[
                (STEPS, "3"),
                (BATCH, "4"),
                ("SOFT_CUDA_FAIL_PRODUCT", number),
            ],
        )
    };
    let trained = failing("a_training_in_a_process_of_its_own", "60");
    let told = String::from_utf8_lossy(&trained.stderr).into_owned();
    assert!(!trained.status.success(), "{told}");
    assert!(told.contains("failed with status 13"), "{told}");
    let read = failing("a_product_that_is_read", "1");
    assert!(
        read.status.success(),
        "{}",
        String::from_utf8_lossy(&read.stderr)
    );
}

#[test]
#[ignore = "a part of the test above"]
fn a_product_that_is_read() {
    if env::var_os(STEPS).is_none() {
        return;
    }
    let device = device();
    // Numbers stand where the product may go.
    let before = Tensor::<2>::ones([3, 5], &device);
    drop(before.into_data());
    let product = frozen_linear(Tensor::ones([3, 8], &device), Tensor::ones([8, 5], &device));
    let values = product
        .clone()
        .into_data()
        .try_into_vec::<f32>()
        .expect("float32");
    assert!(values.iter().all(|value| value.is_nan()), "{values:?}");
    let error = to_host(product).expect_err("it failed");
    assert!(
        error.to_string().contains("failed with status 13"),
        "{error}"
    );
}

/// Products of cuBLAS are timed by its own events, the rest by CubeCL's.
#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs soft-cuda"]
fn kernels_take_no_longer_than_the_time_around_them() {
    let device = device();
    let [x, weight] = [[64, 96], [96, 80]].map(|shape| Tensor::<2>::ones(shape, &device));
    let profile = KernelProfile::start();
    let begun = std::time::Instant::now();
    let product = frozen_linear(x, weight).exp();
    drop(product.into_data());
    let times = profile.finish(&device);
    let all = begun.elapsed().as_secs_f64();
    let (products, others): (Vec<_>, Vec<_>) = times
        .iter()
        .partition(|time| time.name.starts_with("cuBLAS"));
    assert!(!products.is_empty() && !others.is_empty(), "{times:?}");
    let kernels: f64 = times.iter().map(|time| time.seconds).sum();
    assert!(
        kernels > 0.0 && kernels <= all,
        "{kernels} of {all}: {times:?}"
    );
}

#[test]
#[ignore = "a part of the tests above"]
fn a_training_in_a_process_of_its_own() {
    let number = |name| env::var(name).ok()?.parse::<usize>().ok();
    let Some((steps, batch)) = number(STEPS).zip(number(BATCH)) else {
        return;
    };
    let fixture = Fixture::open("llama-gqa");
    let adapters = [(4, 0.1), (16, 0.0)].map(|(rank, dropout)| {
        json!({
            "name": format!("r{rank}"), "dataset": "data", "seed": rank,
            "lora": {"r": rank, "lora_alpha": rank, "lora_dropout": dropout,
                     "target_modules": "all-linear"},
            "train": {"batch_size": batch, "max_seq_len": 48, "max_steps": steps},
        })
    });
    let run = train(|output_dir| {
        let mut config = fixture.config(&adapters, output_dir);
        // More than the device has.
        config["scheduler"] = json!({"memory_limit": "1GiB"});
        config
    });
    let (mut rows, mut targets, mut ran_out, mut done) = (0, 0, 0, 0);
    for event in &run.events {
        match event {
            Event::Iteration { tokens, .. } => rows += tokens,
            Event::Step { target_tokens, .. } => targets += target_tokens,
            Event::OutOfMemory { .. } => ran_out += 1,
            Event::AdapterDone { .. } => done += 1,
            _ => {}
        }
    }
    assert_eq!(done, 2, "{:?}", run.events);
    let last = |name| losses(&run.events, name).pop().expect("a step")[0];
    println!(
        "rows: {rows}\ntargets: {targets}\nran out: {ran_out}\nlast losses: {} {}",
        last("r4"),
        last("r16")
    );
}

//! Measures iterations on this machine's CPU and fits the simulator's costs to them.
//!
//!     cargo bench -p loraloom-benches --bench simulator_costs [-- FILE...]
//!
//! Trains adapters over the `micro` shape in batches of many sizes and prints a JSON line for each,
//! then one with the errors of the fit, then the costs as `loraloom simulate --costs` reads them. FILEs
//! are lines of an earlier run, which are fitted instead of a new measurement.

#![expect(clippy::print_stdout, reason = "a benchmark prints its report")]

use std::{env, fs, io};

use burn::tensor::{Device, FloatDType};
use loraloom_benches::EndToEndBench;
use loraloom_model::{LlamaConfig, Projection};
use loraloom_pipeline::HostMemory;
use loraloom_simulator::{Costs, TimedIteration};
use peak_alloc::PeakAlloc;
use serde_json::{Value, json};

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

const SHAPE: &str = "micro";
const STEPS: usize = 3;

/// Adapters, sequences of each, tokens of a sequence, rank: from 128 to 4096 tokens, each number
/// with large and small ones of the others. Rank 64 is there for the cost of ranks.
const CASES: [[usize; 4]; 24] = [
    [1, 1, 128, 16],
    [1, 2, 256, 8],
    [1, 4, 512, 4],
    [1, 8, 128, 2],
    [1, 2, 1024, 16],
    [1, 8, 512, 16],
    [1, 4, 1024, 2],
    [1, 4, 512, 64],
    [2, 1, 256, 2],
    [2, 4, 128, 16],
    [2, 2, 512, 8],
    [2, 8, 256, 4],
    [2, 1, 1024, 4],
    [4, 1, 128, 8],
    [4, 1, 512, 16],
    [4, 2, 128, 4],
    [4, 4, 256, 2],
    [4, 2, 256, 16],
    [4, 1, 512, 64],
    [8, 1, 128, 2],
    [8, 1, 256, 16],
    [8, 2, 128, 16],
    [8, 2, 128, 4],
    [8, 1, 512, 8],
];

fn main() -> anyhow::Result<()> {
    // Cargo adds arguments of its own.
    let files: Vec<String> = env::args()
        .skip(1)
        .filter(|word| !word.starts_with("--"))
        .collect();
    let mut iterations = Vec::new();
    if files.is_empty() {
        count_allocations();
        for case in CASES {
            let line = measure(case)?;
            println!("{line}");
            iterations.push(read(&line)?);
        }
    }
    for file in files {
        let text = fs::read_to_string(file)?;
        for line in text.lines() {
            let value = serde_json::from_str(line)?;
            if let Ok(iteration) = read(&value) {
                iterations.push(iteration);
            }
        }
    }
    let fitted = Costs::fit(&iterations)?;
    println!(
        "{}",
        json!({
            "iterations": iterations.len(),
            "seconds_error": of_errors(&fitted.seconds_errors),
            "bytes_error": of_errors(&fitted.bytes_errors),
        })
    );
    println!("{}", serde_json::to_string(&fitted.costs)?);
    Ok(())
}

fn count_allocations() {
    let memory = HostMemory {
        in_use: || ALLOCATOR.current_usage() as u64,
        peak: || ALLOCATOR.peak_usage() as u64,
        take_peak: || {
            let peak = ALLOCATOR.peak_usage();
            ALLOCATOR.reset_peak_usage();
            peak as u64
        },
    };
    memory.count_with();
}

fn measure([adapters, batch, length, rank]: [usize; 4]) -> anyhow::Result<Value> {
    let model = LlamaConfig::named(SHAPE);
    let bench = EndToEndBench {
        shape: SHAPE.to_owned(),
        model: model.ok_or_else(|| anyhow::anyhow!("no shape `{SHAPE}`"))?,
        adapters: vec![adapters],
        rank,
        use_dora: false,
        targets: vec![Projection::Q, Projection::K, Projection::V, Projection::O],
        batch,
        microbatches: 1,
        length,
        dtype: FloatDType::F32,
        steps: STEPS,
        gradient_checkpointing: false,
        vs_sequential: false,
        profile: false,
    };
    let measured = bench.run(&Device::flex(), &mut |_| ())?;
    let [measured] = measured.as_slice() else {
        anyhow::bail!("one case gave {} measurements", measured.len())
    };
    let tokens = (adapters * batch * length) as f64;
    Ok(json!({
        "adapters": adapters, "batch": batch, "length": length, "rank": rank,
        "seconds": tokens / measured.tokens_per_second,
        "bytes": measured.peak_bytes,
    }))
}

/// Parses a line.
fn read(line: &Value) -> anyhow::Result<TimedIteration> {
    let missing = |key: &str| io::Error::other(format!("no number `{key}` in {line}"));
    let whole = |key| {
        let value = line[key].as_u64();
        value
            .ok_or_else(|| missing(key))
            .map(|value| value as usize)
    };
    let number = |key| line[key].as_f64().ok_or_else(|| missing(key));
    let task = [whole("rank")?, whole("batch")?, whole("length")?];
    Ok(TimedIteration {
        tasks: vec![task; whole("adapters")?],
        seconds: number("seconds")?,
        bytes: number("bytes")?,
    })
}

/// Mean and maximum of absolute relative errors.
fn of_errors(errors: &[f64]) -> Value {
    let sizes = errors.iter().map(|error| error.abs());
    let mean = sizes.clone().sum::<f64>() / errors.len() as f64;
    json!({"mean": mean, "largest": sizes.fold(0.0, f64::max)})
}

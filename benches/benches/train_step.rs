//! Tokens per second of co-batched training on the CPU, as PEFT's yardstick counts them.
//!
//!     cargo bench -p loraloom-benches --bench train_step -- [ADAPTERS] [BATCH] [LENGTH] [STEPS]
//!
//! Prints one JSON line. The first steps are left out.

use std::{fs, sync::atomic::AtomicBool};

use burn::tensor::Device;
use loraloom_benches::{Shape, write_model};
use loraloom_config::RunConfig;
use loraloom_trainer::{Event, Run};
use serde_json::json;

const WARM_UP: usize = 2;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut numbers = std::env::args()
        .skip(1)
        .filter_map(|argument| argument.parse().ok());
    let mut next = |default: usize| numbers.next().unwrap_or(default);
    let (adapters, batch, length, steps) = (next(8), next(2), next(128), next(8));

    let directory = tempfile::tempdir()?;
    let model = directory.path().join("model");
    fs::create_dir(&model)?;
    write_model(&Shape::MICRO, &model)?;
    let words = |row: usize| {
        let words = (0..length - 1).map(move |at| format!("w{}", (row * 131 + at * 7) % 2000));
        json!({"text": words.collect::<Vec<_>>().join(" ")}).to_string() + "\n"
    };
    let data = directory.path().join("data.jsonl");
    fs::write(&data, (0..64).map(words).collect::<String>())?;
    let adapter = |index: usize| {
        json!({
            "name": format!("adapter-{index}"), "dataset": "words", "seed": index,
            "lora": {"r": 16, "lora_alpha": 32, "lora_dropout": 0.05,
                     "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]},
            "train": {"batch_size": batch, "max_seq_len": length, "max_steps": WARM_UP + steps,
                      "learning_rate": 1e-4, "lr_scheduler_type": "constant"},
        })
    };
    let config = json!({
        "model": model, "output_dir": directory.path().join("run"), "device": "cpu",
        "datasets": {"words": {"path": data}},
        "adapters": (0..adapters).map(adapter).collect::<Vec<_>>(),
    });
    let path = directory.path().join("config.json");
    fs::write(&path, config.to_string())?;

    let run = Run::prepare(RunConfig::load(&path, &[])?.config, &[Device::flex()])?;
    let (mut seconds, mut tokens, mut iterations) = (0.0, 0, 0);
    run.train(&AtomicBool::new(false), &mut |event| {
        if let Event::Iteration {
            seconds: took,
            tokens: trained,
            ..
        } = event
        {
            iterations += 1;
            if iterations > WARM_UP {
                seconds += took;
                tokens += trained;
            }
        }
    })?;
    let rate = tokens as f64 / seconds;
    let attention = 6 * 8 * 512 * length;
    let flops = rate * (4 * Shape::MICRO.matmul_parameters() + attention) as f64;
    let report = json!({
        "shape": "micro", "adapters": adapters, "batch": batch, "length": length, "rank": 16,
        "tokens_per_second": rate, "seconds_per_step": seconds / steps as f64,
        "model_tflops": flops / 1e12, "peak_bytes": peak_bytes(),
    });
    #[expect(
        clippy::print_stdout,
        reason = "the report is what the benchmark is for"
    )]
    {
        println!("{report}");
    }
    Ok(())
}

/// Largest resident size of this process, where the system tells.
fn peak_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace()
        .nth(1)?
        .parse::<u64>()
        .ok()
        .map(|kib| kib * 1024)
}

//! Half-precision activations over `float32` adapters train as `float32` does, but for rounding.

use burn::tensor::FloatDType;
use loraloom_tests::{Fixture, assert_close, device, losses, train};
use serde_json::json;

/// Losses of twelve steps of three adapters of different rank within 2e-2 of `float32`'s, in every
/// type the device has; and the last four are below the first four.
#[test]
fn losses_are_those_of_single_precision() {
    let fixture = Fixture::open("llama-gqa");
    let adapters = [(4, 0.0), (16, 0.1), (33, 0.0)].map(|(rank, dropout)| {
        json!({
            "name": format!("r{rank}"), "dataset": "data", "seed": rank,
            "lora": {"r": rank, "lora_alpha": 2 * rank, "lora_dropout": dropout,
                     "target_modules": "all-linear"},
            "train": {"batch_size": 4, "max_seq_len": 48, "max_steps": 12, "learning_rate": 1e-2,
                      "lr_scheduler_type": "constant"},
        })
    });
    let run = |dtype: &str| {
        train(|output_dir| {
            let mut config = fixture.config(&adapters, output_dir);
            config["dtype"] = json!(dtype);
            config
        })
    };
    let single = run("float32");
    let types = [("float16", FloatDType::F16), ("bfloat16", FloatDType::BF16)];
    let supported = types
        .into_iter()
        .filter(|&(_, dtype)| device().supports_dtype(dtype));
    for (name, _) in supported {
        let half = run(name);
        for adapter in &adapters {
            let adapter = adapter["name"].as_str().expect("a name");
            let losses = |run| -> Vec<f64> {
                let steps = losses(run, adapter).into_iter();
                steps.map(|[loss, _]| loss).collect()
            };
            let (found, expected) = (losses(&half.events), losses(&single.events));
            assert_close(&format!("{adapter} in {name}"), &found, &expected, 2e-2);
            assert_ne!(
                found, expected,
                "{adapter}: {name} is not what was computed in"
            );
            let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
            let (first, last) = (mean(&found[..4]), mean(&found[8..]));
            assert!(last < 0.95 * first, "{adapter} in {name}: {found:?}");
        }
    }
}

//! Half-precision activations over `float32` adapters train as `float32` does, but for rounding.

use burn::tensor::FloatDType;
use loraloom_tests::{Fixture, TrainedRun, assert_close, device, losses, train};
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

/// The losses of objectives that weigh tokens, and that of the projection's adapters.
#[test]
fn objectives_are_those_of_single_precision() {
    if !device().supports_dtype(FloatDType::BF16) {
        return;
    }
    let fixture = Fixture::open("llama-gqa");
    let preferences = fixture.directory.join("preferences");
    let adapter = |name: &str, dataset: &str, objective: serde_json::Value, target: &str| {
        json!({
            "name": name, "dataset": dataset, "objective": objective,
            "lora": {"r": 4, "target_modules": ["q_proj", target]},
            "train": {"batch_size": 4, "max_seq_len": 48, "max_steps": 4, "learning_rate": 1e-3},
        })
    };
    let mut smoothed = adapter("smoothed", "data", json!({}), "v_proj");
    smoothed["train"]["label_smoothing_factor"] = json!(0.1);
    let adapters = [
        smoothed,
        adapter("dpo", "pairs", json!({"type": "dpo"}), "v_proj"),
        adapter("orpo-head", "pairs", json!({"type": "orpo"}), "lm_head"),
        adapter("kto", "rated", json!({"type": "kto"}), "v_proj"),
        adapter("cit", "paraphrases", json!({"type": "cit"}), "v_proj"),
    ];
    let run = |dtype: &str| {
        train(|output_dir| {
            let mut config = fixture.config(&adapters, output_dir);
            config["dtype"] = json!(dtype);
            config["datasets"]["pairs"] = json!({"path": preferences.join("pairs.jsonl")});
            config["datasets"]["rated"] = json!({"path": preferences.join("rated.jsonl")});
            config["datasets"]["paraphrases"] = json!({
                "path": fixture.directory.join("contrast/rows.jsonl"),
                "template": "{{ question if is_origin else paraphrase }} {{ answer }}",
            });
            config
        })
    };
    let (single, half) = (run("float32"), run("bfloat16"));
    for adapter in &adapters {
        let name = adapter["name"].as_str().expect("a name");
        let of = |run: &TrainedRun| -> (Vec<f64>, Vec<f64>) {
            let steps = losses(&run.events, name).into_iter();
            steps.map(|[loss, norm]| (loss, norm)).unzip()
        };
        let ((found, found_norms), (expected, norms)) = (of(&half), of(&single));
        println!("{name} {found:?} {expected:?} {found_norms:?} {norms:?}");
        assert_close(&format!("{name} loss"), &found, &expected, 2e-2);
        assert_close(&format!("{name} norm"), &found_norms, &norms, 0.2);
    }
}

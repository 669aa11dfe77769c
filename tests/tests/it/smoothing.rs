//! Label smoothing beside adapters without it, and in evaluation. `parity.rs` compares it with transformers.

use std::path::Path;

use loraloom_tests::{Fixture, TrainedRun, losses, train};
use loraloom_trainer::Event;
use serde_json::{Value, json};

fn adapter(name: &str, smoothing: f64, targets: &[&str]) -> Value {
    json!({
        "name": name, "dataset": "data", "lora": {"r": 4, "target_modules": targets},
        "train": {
            "batch_size": 3, "max_seq_len": 48, "max_steps": 6, "learning_rate": 2e-3,
            "label_smoothing_factor": smoothing,
        },
    })
}

fn config(adapters: &[Value], output_dir: &Path) -> Value {
    let mut config = Fixture::open("gemma2").config(&[], output_dir);
    config["adapters"] = json!(adapters);
    config
}

#[test]
fn an_adapter_has_the_bits_that_it_has_alone() {
    let adapters = [
        adapter("plain", 0.0, &["q_proj"]),
        adapter("smoothed", 0.2, &["q_proj"]),
        adapter("head", 0.1, &["lm_head"]),
        adapter("plain-head", 0.0, &["lm_head"]),
    ];
    let run = |adapters: &[Value]| {
        train(|output_dir| {
            let mut config = config(adapters, output_dir);
            config["pipeline"] = json!({"stages": ["cpu", "cpu"], "microbatches": 2});
            config
        })
    };
    let together = run(&adapters);
    for adapter in &adapters {
        let name = adapter["name"].as_str().expect("a name");
        let alone = run(std::slice::from_ref(adapter));
        assert!(together.adapter(name) == alone.adapter(name), "{name}");
        assert_eq!(losses(&together.events, name), losses(&alone.events, name));
    }
}

/// As in transformers: the loss of an evaluation is that of a step over the same rows.
#[test]
fn evaluation_is_smoothed_as_well() {
    let evaluated = |smoothing: f64| {
        let run: TrainedRun = train(|output_dir| {
            let mut one = adapter("a", smoothing, &["q_proj"]);
            one["train"]["batch_size"] = json!(100);
            one["train"]["max_steps"] = json!(1);
            one["train"]["learning_rate"] = json!(0.0);
            let mut config = config(&[one], output_dir);
            let rows = config["datasets"]["data"]["path"].clone();
            config["datasets"]["data"]["validation"] = rows;
            config
        });
        let mut losses = run.events.iter().filter_map(|event| match event {
            Event::Eval { loss, .. } => *loss,
            _ => None,
        });
        let trained = self::losses(&run.events, "a")[0][0];
        let evaluated = losses.next_back().expect("an evaluation");
        assert!((trained - evaluated).abs() < 1e-5, "{trained}, {evaluated}");
        evaluated
    };
    let [none, some, twice] = [0.0, 0.1, 0.2].map(evaluated);
    assert!((some - none).abs() > 1e-3, "{none}, {some}");
    assert!(
        (twice - none - 2.0 * (some - none)).abs() < 1e-5,
        "{none}, {some}, {twice}"
    );
}

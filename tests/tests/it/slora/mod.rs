//! SLoRA: several adapters begin with the components of one sparse change of the weights, which they trained together.

mod change;
mod run;

use std::{collections::BTreeMap, fs, path::Path};

use loraloom_model::LoraWeights;
use loraloom_tests::{Fixture, TrainedRun, train};
use serde_json::{Value, json};

const LABELS: [&str; 8] = [
    "red", "blue", "green", "black", "goat", "crab", "wolf", "duck",
];

/// Rows of a client: its questions have labels of its own half alone.
fn rows(client: usize, count: usize, seed: usize) -> String {
    let row = |at: usize| {
        let label = LABELS[client * 4 + (at * 7 + at * at * (seed + 1) + seed) % 4];
        let prompt = format!(
            "Question: What is in box {} {}?\nAnswer:",
            at * 5 + seed,
            at % 3
        );
        json!({"prompt": prompt, "completion": format!(" {label}")}).to_string() + "\n"
    };
    (0..count).map(row).collect()
}

/// A run over a model whose datasets `a` and `b` have the rows of the two clients.
fn config(model: &Path, adapters: &[Value], seed: usize, output_dir: &Path) -> Value {
    let path = |client: usize| {
        let path = output_dir.with_extension(format!("{client}.jsonl"));
        fs::write(&path, rows(client, [8, 24][client], seed)).expect("written");
        json!({"path": path})
    };
    json!({
        "model": model,
        "output_dir": output_dir,
        "device": "cpu",
        "dtype": "float32",
        "seed": seed,
        "datasets": {"a": path(0), "b": path(1)},
        "adapters": adapters,
    })
}

fn run(adapters: &[Value]) -> TrainedRun {
    let model = Fixture::open("llama-gqa").directory;
    train(|output_dir| config(&model, adapters, 1, output_dir))
}

/// An adapter of two modules; `of` is its dataset.
fn adapter(name: &str, of: &str, lora: Value, train: Value) -> Value {
    let mut adapter = json!({
        "name": name,
        "dataset": of,
        "lora": {"r": 4, "lora_alpha": 6, "lora_dropout": 0, "target_modules": ["q_proj", "down_proj"]},
        "train": {"batch_size": 8, "max_seq_len": 64, "max_steps": 4, "learning_rate": 0.002,
                  "lr_scheduler_type": "constant"},
    });
    for (section, values) in [("lora", lora), ("train", train)] {
        for (key, value) in values.as_object().expect("settings") {
            adapter[section][key] = value.clone();
        }
    }
    adapter
}

fn client(name: &str, of: &str, lora: Value, slora: Value) -> Value {
    let mut client = adapter(name, of, lora, json!({}));
    client["lora"]["init_lora_weights"] = json!("slora");
    client["lora"]["slora_config"] = json!({"density": 0.02, "rounds": 3, "learning_rate": 0.01});
    for (key, value) in slora.as_object().expect("settings") {
        client["lora"]["slora_config"][key] = value.clone();
    }
    client
}

/// The adapters as they begin: a step at a learning rate of zero saves them so.
fn unmoved(clients: &[Value]) -> Vec<BTreeMap<String, LoraWeights>> {
    let mut clients = clients.to_vec();
    for client in &mut clients {
        client["train"]["learning_rate"] = json!(0);
        client["train"]["max_steps"] = json!(1);
    }
    let run = run(&clients);
    let names = clients
        .iter()
        .map(|one| one["name"].as_str().expect("a name"));
    names.map(|name| run.adapter(name).modules).collect()
}

//! Validation loss against the logits of every row.

use std::fs;

use loraloom_config::DtypeChoice;
use loraloom_data::Tokenizer;
use loraloom_model::LlamaConfig;
use loraloom_tests::{Fixture, assert_close, device, train};
use loraloom_trainer::{Event, Generator};
use serde_json::json;

/// Validation rows, of unequal lengths and numbers of targets; one is longer than `llama-rope-dynamic` was
/// made for. Three batches of two.
const ROWS: [[&str; 2]; 5] = [
    ["Spell Tom.", "T-O-M"],
    [
        "Mira has 12 apples and finds 7 more. How many now?",
        "12 + 7 = 19, so 19.",
    ],
    ["Where are the maps?", "At the old mill."],
    [
        "Sort: coats, kettles, apples, maps",
        "apples, coats, kettles, maps",
    ],
    ["Spell Li.", "L-I"],
];

const BATCH_SIZE: usize = 2;

/// The sum of the targets' cross-entropies over their number, over all rows.
#[test]
fn validation_loss_is_the_mean_over_all_targets() {
    check("llama-gqa");
}

/// The frequencies of dynamic RoPE go by the row's own length, so that its loss does not depend on the rows
/// beside it: the first batch has one row above `max_position_embeddings` and one below.
#[test]
fn validation_loss_with_dynamic_rope_goes_by_each_row() {
    check("llama-rope-dynamic");
}

fn check(fixture: &str) {
    let fixture = Fixture::open(fixture);
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("validation.jsonl");
    let row = |[question, answer]: &[&str; 2]| json!({"question": question, "answer": answer});
    let lines: Vec<String> = ROWS.iter().map(|pair| row(pair).to_string()).collect();
    fs::write(&path, lines.join("\n")).expect("the rows are written");

    let adapter = json!({
        "name": "a", "dataset": "data",
        "lora": {"r": 8, "lora_alpha": 16, "lora_dropout": 0.5, "target_modules": "all-linear"},
        "train": {"batch_size": BATCH_SIZE, "max_seq_len": 64, "max_steps": 6, "learning_rate": 1e-2},
        "eval": {"steps": 3},
    });
    let run = train(|output_dir| {
        let mut config = fixture.config(&[adapter], output_dir);
        config["datasets"]["data"]["validation"] = json!(path);
        config
    });
    let found: Vec<(usize, f64)> = run
        .events
        .iter()
        .filter_map(|event| match event {
            Event::Eval { step, loss, .. } => Some((*step, loss.expect("a finite loss"))),
            _ => None,
        })
        .collect();
    let steps: Vec<usize> = found.iter().map(|&(step, _)| step).collect();
    assert_eq!(steps, [3, 6]);

    let tokenizer = Tokenizer::load(&fixture.directory).expect("a tokenizer");
    let last = run.directory.path().join("run/adapters/a/last");
    let config = LlamaConfig::from_directory(&fixture.directory).expect("a model");
    let generator = Generator::load(
        &fixture.directory,
        &config,
        DtypeChoice::Float32,
        &[last],
        &device(),
    );
    let generator = generator.expect("a model and its adapter");
    let (mut sum, mut count) = (0.0, 0);
    for [question, answer] in &ROWS {
        let mut ids = tokenizer.encode_prompt(question).expect("a prompt");
        let prompt = ids.len();
        ids.extend(tokenizer.encode(answer).expect("an answer"));
        ids.push(tokenizer.eos().expect("an end of sequence"));
        let logits = generator.logits(&ids, Some(0)).expect("logits");
        let vocabulary = logits.len() / ids.len();
        for position in prompt..ids.len() {
            let logits = &logits[(position - 1) * vocabulary..position * vocabulary];
            let total: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
            sum += total.ln() - f64::from(logits[ids[position] as usize]);
            count += 1;
        }
    }
    assert_close(
        "validation loss",
        &[found[1].1],
        &[sum / f64::from(count)],
        1e-6,
    );
}

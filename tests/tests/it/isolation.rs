//! An adapter trained beside others is the adapter that training it alone gives.

use loraloom_tests::{Fixture, TrainedRun, assert_same_training, losses, train};
use loraloom_trainer::{Event, Outcome};
use serde_json::{Value, json};

/// An adapter of its own rank, length, dropout, batch and targets; `index` tells them apart.
fn adapter(index: usize, steps: usize) -> Value {
    let targets: [&[&str]; 4] = [
        &["q_proj", "k_proj", "v_proj", "o_proj"],
        &["gate_proj", "up_proj", "embed_tokens", "lm_head"],
        &["all-linear"],
        &["q_proj", "v_proj"],
    ];
    let rank = [4, 1, 16, 8, 64, 2, 8, 3][index];
    let dropout = [0.1, 0.0, 0.5, 0.05, 0.2, 0.3, 0.9, 0.1][index];
    let init = [json!(true), json!("gaussian"), json!("orthogonal")][index % 3].clone();
    let ratio = [json!(null), json!(2), json!(4)][index % 3].clone();
    let dora = [2, 4, 7].contains(&index);
    let length = [64, 24, 48, 40, 64, 32, 56, 20][index];
    json!({
        "name": format!("adapter-{index}"), "dataset": "data", "seed": 100 + index,
        "lora": {"r": rank, "lora_alpha": 16, "lora_dropout": dropout,
                 "target_modules": targets[index % 4], "use_rslora": index.is_multiple_of(3),
                 "init_lora_weights": init, "lora_fa": index % 4 == 2, "use_dora": dora},
        "train": {"batch_size": 1 + index % 4, "gradient_accumulation_steps": 1 + index % 2,
                  "max_seq_len": length, "max_steps": steps, "learning_rate": 2e-3, "warmup_steps": index,
                  "weight_decay": 0.01, "max_grad_norm": 0.5, "loraplus_lr_ratio": ratio},
    })
}

fn run(fixture: &Fixture, adapters: &[Value]) -> TrainedRun {
    train(|output_dir| fixture.config(adapters, output_dir))
}

/// Over 50 steps with dropout, beside seven others that differ in everything and end at other
/// times: bit for bit.
///
/// On the CPU every row of a product with the frozen weights is computed in the same order whatever
/// the number of rows, from two on (measured: `batchlora`'s isolation test), and everything else is
/// computed by task or by row. Only a batch of a single row takes another path through the matrix
/// product, which no training step does.
#[test]
fn an_adapter_among_seven_others_has_the_bits_of_the_adapter_alone() {
    for name in ["llama-gqa", "qwen3", "olmo2", "gemma2", "gemma3"] {
        let fixture = Fixture::open(name);
        let steps = |index: usize| [50, 10, 30, 50, 20, 50, 40, 50][index];
        let all: Vec<Value> = (0..8).map(|index| adapter(index, steps(index))).collect();
        let together = run(&fixture, &all);
        for index in 0..all.len() {
            let alone = run(&fixture, &all[index..=index]);
            let name = format!("adapter-{index}");
            assert_eq!(losses(&together.events, &name).len(), steps(index));
            assert_same_training(&name, &together, &alone);
        }
    }
}

/// The same over layers in NF4, of bitsandbytes and of the key `quantization`.
#[test]
fn an_adapter_among_others_over_nf4_has_the_bits_of_the_adapter_alone() {
    for (name, quantization) in [
        ("nf4/llama-gqa", json!(null)),
        ("qwen3", json!({"type": "nf4", "skip": ["v_proj"]})),
    ] {
        let fixture = Fixture::open(name);
        let run = |adapters: &[Value]| {
            train(|output_dir| {
                let mut config = fixture.config(adapters, output_dir);
                config["quantization"] = quantization.clone();
                config
            })
        };
        let all: Vec<Value> = (0..4).map(|index| adapter(index, 12)).collect();
        let together = run(&all);
        for index in 0..all.len() {
            let alone = run(&all[index..=index]);
            assert_same_training(&format!("adapter-{index}"), &together, &alone);
        }
    }
}

/// The order of the adapters in the configuration does not matter either.
#[test]
fn the_order_of_adapters_does_not_matter() {
    let fixture = Fixture::open("llama-gqa");
    let adapters: Vec<Value> = (0..4).map(|index| adapter(index, 10)).collect();
    let reversed: Vec<Value> = adapters.iter().rev().cloned().collect();
    let (one, other) = (run(&fixture, &adapters), run(&fixture, &reversed));
    for index in 0..4 {
        let name = format!("adapter-{index}");
        assert_same_training(&name, &one, &other);
    }
}

/// A task that diverges ends alone: the others have the bits of a run without it.
#[test]
fn a_diverging_adapter_fails_alone() {
    let fixture = Fixture::open("llama-gqa");
    let mut wild = adapter(3, 40);
    wild["train"]["learning_rate"] = json!(1e9);
    wild["train"]["warmup_steps"] = json!(0);
    wild["train"]["max_grad_norm"] = json!(0);
    let adapters = [adapter(0, 20), wild, adapter(2, 20)];
    let beside = run(&fixture, &adapters);
    let without = run(&fixture, &[adapters[0].clone(), adapters[2].clone()]);

    let failed = &beside.report.adapters[1];
    assert!(
        matches!(failed.outcome, Outcome::Failed { .. }),
        "{:?}",
        failed.outcome
    );
    assert!(failed.steps < 40);
    let events = beside.events.iter();
    let failures: Vec<_> = events
        .filter(|event| matches!(event, Event::AdapterFailed { .. }))
        .collect();
    assert_eq!(failures.len(), 1, "{failures:?}");
    for name in ["adapter-0", "adapter-2"] {
        assert_same_training(name, &beside, &without);
    }
}

/// Recomputing layers in the backward pass changes nothing.
#[test]
fn gradient_checkpointing_does_not_change_a_bit() {
    let fixture = Fixture::open("llama-gqa");
    let adapters: Vec<Value> = (0..3).map(|index| adapter(index, 10)).collect();
    let plain = run(&fixture, &adapters);
    let checkpointed = train(|output_dir| {
        let mut config = fixture.config(&adapters, output_dir);
        config["gradient_checkpointing"] = json!(true);
        config
    });
    for index in 0..3 {
        let name = format!("adapter-{index}");
        assert!(
            plain.adapter(&name) == checkpointed.adapter(&name),
            "{name}"
        );
    }
}

/// With places for two, the third waits and then trains as it would have alone.
#[test]
fn an_adapter_that_waited_for_a_place_is_the_adapter_alone() {
    let fixture = Fixture::open("llama-gqa");
    let adapters: Vec<Value> = (0..4).map(|index| adapter(index, 5 + 3 * index)).collect();
    let queued = train(|output_dir| {
        let mut config = fixture.config(&adapters, output_dir);
        config["scheduler"] = json!({"max_adapters": 2});
        config
    });
    let alone = run(&fixture, &adapters[3..]);
    assert_same_training("adapter-3", &queued, &alone);
    for event in &queued.events {
        if let Event::Iteration { groups, .. } = event {
            assert!(groups.concat().len() <= 2, "{groups:?}");
        }
    }
}

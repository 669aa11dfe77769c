//! However the backbone is cut into stages, and in whatever order they work, training is the same.

use std::path::Path;

use burn::tensor::Device;
use loraloom_tests::{Deeper, Fixture, TrainedRun, assert_same_training, device, losses, train};
use loraloom_trainer::{Event, Outcome};
use serde_json::{Value, json};

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
const STEPS: [usize; 5] = [9, 5, 7, 3, 9];

/// An adapter that differs from the others in everything; five end at different times.
fn adapter(index: usize) -> Value {
    let targets: [&[&str]; 3] = [
        &["q_proj", "k_proj", "v_proj", "o_proj"],
        &["gate_proj", "up_proj", "embed_tokens", "lm_head"],
        &["all-linear"],
    ];
    let rank = [4, 1, 16, 8, 3][index];
    let dropout = [0.1, 0.0, 0.3, 0.05, 0.5][index];
    let (batch, length) = ([4, 3, 1, 4, 2][index], [64, 24, 48, 40, 32][index]);
    json!({
        "name": NAMES[index], "dataset": "data", "seed": 7 + index,
        "lora": {"r": rank, "lora_alpha": 16, "lora_dropout": dropout,
                 "target_modules": targets[index % 3]},
        "train": {"batch_size": batch, "max_seq_len": length, "max_steps": STEPS[index],
                  "gradient_accumulation_steps": 1 + index % 2, "learning_rate": 2e-3,
                  "max_grad_norm": 0.5},
    })
}

/// The bundled model, which has four layers, over rows of a fixture.
fn config(adapters: &[Value], pipeline: &Value, output_dir: &Path) -> Value {
    let mut config = Fixture::open("llama-gqa").config(adapters, output_dir);
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/tiny-llama");
    config["model"] = json!(model);
    config["pipeline"] = pipeline.clone();
    config
}

fn run(adapters: &[Value], pipeline: &Value) -> TrainedRun {
    let run = train(|output_dir| config(adapters, pipeline, output_dir));
    for adapter in &run.report.adapters {
        assert_eq!(adapter.outcome, Outcome::Done, "{}", adapter.name);
    }
    run
}

fn adapters() -> Vec<Value> {
    (0..NAMES.len()).map(adapter).collect()
}

fn stages(count: usize, schedule: &str, microbatches: usize) -> Value {
    json!({
        "stages": vec!["cpu"; count], "schedule": schedule, "microbatches": microbatches,
    })
}

fn assert_same(found: &TrainedRun, expected: &TrainedRun) {
    for name in NAMES {
        assert!(!losses(&expected.events, name).is_empty());
        assert_same_training(name, found, expected);
    }
}

/// Two, three and four stages, every schedule, one, two and four micro-batches: the bits of one
/// stage. What micro-batches change is the order of summation, which all partitions share.
#[test]
fn every_partition_and_schedule_gives_the_bits_of_one_stage() {
    let adapters = adapters();
    // A GPU has the executor's other side to show, work that is only submitted; once is enough.
    let (splits, counts): (&[usize], &[usize]) = if device() == Device::flex() {
        (&[1, 2, 4], &[2, 3, 4])
    } else {
        (&[2], &[3])
    };
    for &microbatches in splits {
        let one = run(&adapters, &stages(1, "lorapp", microbatches));
        for &count in counts {
            for schedule in ["lorapp", "one_f_one_b", "gpipe"] {
                assert_same(
                    &run(&adapters, &stages(count, schedule, microbatches)),
                    &one,
                );
            }
        }
    }
}

/// Layers may be spread unevenly; the first stage may hold almost nothing.
#[test]
fn an_explicit_balance_gives_the_same_bits() {
    let adapters = adapters();
    let one = run(&adapters, &stages(1, "lorapp", 1));
    for balance in [[1, 3], [3, 1]] {
        let mut two = stages(2, "lorapp", 1);
        two["balance"] = json!(balance);
        assert_same(&run(&adapters, &two), &one);
    }
}

/// Groups may have their layers on different stages: where the configuration wants it, and, as costs are
/// measured, perhaps where it leaves the choice to us. Five layers are even on neither two nor three
/// stages.
#[test]
fn staggered_layers_give_the_same_bits() {
    let model = Deeper::new(5);
    let adapters = adapters();
    let run_with = |stages: &Value| {
        let run = train(|output_dir| {
            let mut config = config(&adapters, stages, output_dir);
            config["model"] = json!(model.path());
            config
        });
        for adapter in &run.report.adapters {
            assert_eq!(adapter.outcome, Outcome::Done, "{}", adapter.name);
        }
        run
    };
    for microbatches in [1, 2] {
        let one = run_with(&stages(1, "lorapp", microbatches));
        assert_eq!(one.partitions(), None);
        for partitions in [
            json!([[3, 2], [2, 3]]),
            json!([[1, 2, 2], [2, 1, 2], [2, 2, 1]]),
        ] {
            let count = partitions[0].as_array().unwrap().len();
            let mut staggered = stages(count, "lorapp", microbatches);
            staggered["balance"] = partitions.clone();
            let run = run_with(&staggered);
            assert_eq!(json!(run.partitions()), partitions);
            assert_same(&run, &one);

            staggered["balance"] = json!("staggered");
            let run = run_with(&staggered);
            println!("{count} stages: {:?}", run.partitions());
            assert_same(&run, &one);
        }
    }
}

/// Stages that are further ahead of each other, for links that take long, have more groups on their
/// way, and compute the same.
#[test]
fn a_longer_warm_up_gives_the_same_bits() {
    let adapters = adapters();
    let one = run(&adapters, &stages(1, "lorapp", 1));
    for (count, extra) in [(2, 2), (3, 1), (2, 16)] {
        let mut longer = stages(count, "lorapp", 1);
        longer["extra_warmup"] = json!(extra);
        let found = run(&adapters, &longer);
        assert_same(&found, &one);
        let groups = found.events.iter().filter_map(|event| match event {
            Event::Iteration { groups, .. } => Some(groups.len()),
            _ => None,
        });
        let wanted = count + (count - 1) * extra;
        assert_eq!(groups.max(), Some(wanted.min(NAMES.len())));
    }
}

/// As many groups as stages while there are tasks for them: as tasks end, groups are filled from
/// others, and no step is lost.
#[test]
fn groups_are_filled_as_tasks_end() {
    let adapters = adapters();
    let run = run(&adapters, &stages(3, "lorapp", 1));
    for event in &run.events {
        if let Event::Iteration { groups, .. } = event {
            let tasks = groups.concat().len();
            assert_eq!(groups.len(), tasks.min(3), "{groups:?}");
            assert!(groups.iter().all(|group| !group.is_empty()), "{groups:?}");
        }
    }
    let regrouped = |event: &&Event| matches!(event, Event::Regroup { .. });
    assert!(run.events.iter().filter(regrouped).count() > 0);
    for (name, steps) in NAMES.into_iter().zip(STEPS) {
        assert_eq!(losses(&run.events, name).len(), steps);
    }
}

/// Over a base that every stage quantises as it reads its layers, and another one than without.
#[test]
fn stages_of_a_quantised_base_give_the_same_bits() {
    let adapters = adapters();
    let run_with = |count, quantization: Value| {
        train(|output_dir| {
            let mut config = config(&adapters, &stages(count, "lorapp", 2), output_dir);
            config["quantization"] = quantization;
            config
        })
    };
    let nf4 = json!({"type": "nf4", "skip": ["o_proj"]});
    let one = run_with(1, nf4.clone());
    assert_same(&run_with(3, nf4), &one);
    let float = run_with(1, json!(null));
    assert_ne!(losses(&one.events, "a"), losses(&float.events, "a"));
}

/// With gradient checkpointing too.
#[test]
fn checkpointing_stages_give_the_same_bits() {
    let adapters: Vec<Value> = (0..2).map(adapter).collect();
    let run_with = |checkpointing: bool, count| {
        train(|output_dir| {
            let mut config = config(&adapters, &stages(count, "lorapp", 2), output_dir);
            config["gradient_checkpointing"] = json!(checkpointing);
            config
        })
    };
    let one = run_with(false, 1);
    for name in ["a", "b"] {
        assert_same_training(name, &run_with(true, 4), &one);
    }
}

/// A task that diverges ends alone, whichever stage notices.
#[test]
fn a_diverging_adapter_fails_alone_over_stages() {
    let mut wild = adapter(1);
    wild["train"]["learning_rate"] = json!(1e9);
    wild["train"]["max_grad_norm"] = json!(0);
    wild["train"]["max_steps"] = json!(40);
    let adapters = [adapter(0), wild, adapter(2)];
    let pipeline = stages(2, "lorapp", 1);
    let beside = train(|output_dir| config(&adapters, &pipeline, output_dir));
    let failed = &beside.report.adapters[1];
    assert!(
        matches!(failed.outcome, Outcome::Failed { .. }),
        "{:?}",
        failed.outcome
    );
    let without = run(&[adapters[0].clone(), adapters[2].clone()], &pipeline);
    for name in ["a", "c"] {
        assert_same_training(name, &beside, &without);
    }
}

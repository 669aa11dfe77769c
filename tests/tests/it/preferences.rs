//! Objectives over preferred completions, against what TRL and PEFT make of the same rows.

use std::{
    fs,
    path::{Path, PathBuf},
};

use loraloom_model::PeftAdapter;
use loraloom_tests::{Fixture, TrainedRun, largest_relative_difference, train};
use loraloom_trainer::{Event, Rewards};
use serde_json::{Value, json};

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/llama-gqa/preferences")
}

fn read(path: &Path) -> Value {
    let text =
        fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).expect("JSON")
}

/// TRL's jobs as adapters.
fn jobs() -> Vec<Value> {
    let jobs = read(&directory().join("jobs.json"));
    let jobs = jobs.as_array().expect("a list").iter().cloned();
    jobs.map(|mut job| {
        job["init_from"] = json!(directory().join("init"));
        job
    })
    .collect()
}

fn name(job: &Value) -> &str {
    job["name"].as_str().expect("a name")
}

fn config(adapters: &[Value], output_dir: &Path) -> Value {
    let mut config = Fixture::open("llama-gqa").config(&[], output_dir);
    config["adapters"] = json!(adapters);
    config["datasets"] = json!({
        "pairs": {"path": directory().join("pairs.jsonl")},
        "rated": {"path": directory().join("rated.jsonl")},
        "data": config["datasets"]["data"],
    });
    config
}

/// Losses, gradient norms and rewards of an adapter's steps.
fn steps(run: &TrainedRun, adapter: &str) -> Vec<(f64, f64, Rewards)> {
    let steps = run.events.iter().filter_map(|event| match event {
        Event::Step {
            adapter: of,
            loss,
            grad_norm,
            rewards,
            ..
        } if of == adapter => Some((*loss, *grad_norm, rewards.expect("rewards"))),
        _ => None,
    });
    steps.collect()
}

/// All jobs in one batch: losses within 1e-6 and the rounding of rewards at every step, rewards and log-probabilities as near as `float32` sums
/// are, A and B within 1e-4 after 30.
#[test]
#[expect(clippy::print_stdout, reason = "figures are printed")]
fn losses_rewards_and_weights_are_those_of_trl() {
    let jobs = jobs();
    let run = train(|output_dir| config(&jobs, output_dir));
    for job in &jobs {
        let name = name(job);
        let of_job = directory().join("jobs").join(name);
        let expected = read(&of_job.join("steps.json"));
        let expected = expected.as_array().expect("a list");
        let found = steps(&run, name);
        assert_eq!(found.len(), expected.len(), "{name}");
        let (mut worst_loss, mut worst_reward) = (0.0_f64, 0.0_f64);
        for ((loss, norm, rewards), expected) in found.iter().zip(expected) {
            let number = |key: &str| expected[key].as_f64();
            let trl = number("loss").expect("a loss");
            // A margin is made of sums in `float32` as large as the log-probabilities.
            let log_probs: f64 = ["logps/chosen", "logps/rejected"]
                .map(|key| number(key).unwrap_or(0.0).abs())
                .iter()
                .sum();
            let beta = job["objective"]["beta"].as_f64().unwrap_or(0.1);
            let rounding = 2.0 * beta * log_probs * f64::from(f32::EPSILON);
            let bound = 1e-6 * trl.abs().max(1.0) + rounding;
            worst_loss = worst_loss.max((loss - trl).abs() / bound);
            let trl = number("grad_norm").expect("a norm");
            assert!((norm - trl).abs() <= 1e-4 * trl, "{name}: {norm}, {trl}");
            for (key, found) in [
                ("rewards/chosen", rewards.chosen),
                ("rewards/rejected", rewards.rejected),
                ("rewards/margins", rewards.margins),
                ("rewards/accuracies", rewards.accuracies),
                ("logps/chosen", rewards.log_probs_chosen),
                ("logps/rejected", rewards.log_probs_rejected),
                ("kl", rewards.kl),
            ] {
                let Some(trl) = number(key) else { continue };
                // Equal rewards are a matter of rounding.
                if key == "rewards/accuracies" && number("rewards/margins") == Some(0.0) {
                    continue;
                }
                let found = found.or((key == "kl").then_some(0.0));
                let found = found.unwrap_or_else(|| panic!("{name} has no {key}"));
                let scale = number("logps/chosen").unwrap_or(1.0).abs().max(1.0);
                worst_reward = worst_reward.max((found - trl).abs() / scale);
            }
        }
        let expected = PeftAdapter::load(&of_job.join("final")).expect("PEFT's adapter");
        let weights = largest_relative_difference(&run.adapter(name), &expected);
        println!(
            "{name}: loss {worst_loss:.1e}, rewards {worst_reward:.1e}, weights {weights:.1e}"
        );
        assert!(
            worst_loss <= 1.0,
            "{name}: losses differ by {worst_loss:.2} of what they may"
        );
        assert!(
            worst_reward <= 2e-6,
            "{name}: rewards differ by {worst_reward:.2e}"
        );
        assert!(weights <= 1e-4, "{name}: weights differ by {weights:.2e}");
    }
}

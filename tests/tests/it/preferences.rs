//! Objectives over preferred completions, against what TRL and PEFT make of the same rows.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use loraloom_config::RunConfig;
use loraloom_model::PeftAdapter;
use loraloom_tests::{
    Fixture, TrainedRun, assert_close, device, largest_relative_difference, losses, train,
};
use loraloom_trainer::{Event, Outcome, Rewards, Run, SavedRun, inspect};
use serde_json::{Value, json};

const BASE: &str = "llama-gqa";

fn directory(base: &str) -> PathBuf {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    fixtures.join(base).join("preferences")
}

fn read(path: &Path) -> Value {
    let text =
        fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).expect("JSON")
}

/// TRL's jobs as adapters.
fn jobs(base: &str) -> Vec<Value> {
    let jobs = read(&directory(base).join("jobs.json"));
    let jobs = jobs.as_array().expect("a list").iter().cloned();
    jobs.map(|mut job| {
        let targets = job["lora"]["target_modules"].to_string();
        let init = if targets.contains("lm_head") {
            "init-head"
        } else {
            "init"
        };
        job["init_from"] = json!(directory(base).join(init));
        job
    })
    .collect()
}

fn name(job: &Value) -> &str {
    job["name"].as_str().expect("a name")
}

/// A file of the first 12 rows.
fn first_rows(base: &str, dataset: &str, output_dir: &Path) -> PathBuf {
    let rows = directory(base).join(dataset).with_extension("jsonl");
    let rows = fs::read_to_string(rows).expect("rows");
    let rows: Vec<&str> = rows.lines().take(12).collect();
    let path = output_dir.with_file_name(format!("{dataset}-validation.jsonl"));
    fs::write(&path, rows.join("\n")).expect("written");
    path
}

fn config(adapters: &[Value], output_dir: &Path) -> Value {
    config_over(BASE, adapters, output_dir)
}

fn config_over(base: &str, adapters: &[Value], output_dir: &Path) -> Value {
    let mut config = Fixture::open(base).config(&[], output_dir);
    config["adapters"] = json!(adapters);
    let dataset = |name: &str| {
        let path = directory(base).join(name).with_extension("jsonl");
        json!({"path": path, "validation": first_rows(base, name, output_dir)})
    };
    config["datasets"]["pairs"] = dataset("pairs");
    config["datasets"]["rated"] = dataset("rated");
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

/// Loss and rewards of an adapter's last evaluation.
fn evaluated(run: &TrainedRun, adapter: &str) -> (f64, Rewards) {
    let mut evaluations = run.events.iter().rev().filter_map(|event| match event {
        Event::Eval {
            adapter: of,
            loss,
            rewards,
            ..
        } if of == adapter => loss.zip(*rewards),
        _ => None,
    });
    evaluations.next().expect("an evaluation")
}

/// All jobs in one batch: losses within 1e-6 and the rounding of rewards at every step, rewards and log-probabilities as near as `float32` sums
/// are, A and B within 1e-4 after 30.
#[test]
fn losses_rewards_and_weights_are_those_of_trl() {
    assert_trl(BASE, 1);
}

#[test]
fn bounded_logits_are_those_of_trl() {
    assert_trl("gemma2", 1);
}

/// TRL takes whole batches.
#[test]
fn batches_in_micro_batches_are_those_of_trl() {
    assert_trl(BASE, 2);
}

#[expect(clippy::print_stdout, reason = "figures are printed")]
fn assert_trl(base: &str, microbatches: usize) {
    let jobs = jobs(base);
    let run = train(|output_dir| {
        let mut config = config_over(base, &jobs, output_dir);
        config["pipeline"] = json!({"stages": ["cpu"], "microbatches": microbatches});
        config
    });
    for job in &jobs {
        let name = name(job);
        let of_job = directory(base).join("jobs").join(name);
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
            assert!(loss.is_finite(), "{name}: {loss}");
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
                assert!(found.is_finite(), "{name}: {key} {found}");
                // A batch may have completions of one side alone.
                let scale =
                    ["logps/chosen", "logps/rejected"].map(|key| number(key).unwrap_or(0.0).abs());
                let scale = scale[0].max(scale[1]).max(1.0);
                worst_reward = worst_reward.max((found - trl).abs() / scale);
            }
        }
        // The mean over tokens is one over all rows, TRL's one over batches of them.
        let trl = read(&of_job.join("eval.json"));
        let has_token_means = ["orpo", "orpo-head", "cpo", "cpo-hinge", "dpo-sft"].contains(&name);
        let (loss, rewards) = evaluated(&run, name);
        let number = |key: &str| trl[key].as_f64().expect("a number");
        let bound = if has_token_means { 0.1 } else { 2e-6 };
        let (found, expected) = (loss, number("eval_loss"));
        let error = (found - expected).abs() / expected.max(1.0);
        assert!(error <= bound, "{name}: evaluated {found}, TRL {expected}");
        // TRL's are means over batches, which have different numbers of desirable rows.
        if !name.starts_with("kto") {
            let found = rewards.chosen.expect("a reward");
            let expected = number("eval_rewards/chosen");
            let error = (found - expected).abs();
            assert!(error <= 2e-5, "{name}: reward {found}, TRL {expected}");
            let accuracies = rewards.accuracies.expect("pairs");
            assert!(
                (accuracies - number("eval_rewards/accuracies")).abs() < 1e-6,
                "{name}"
            );
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

/// A loss is a mean over the rows of a step.
#[test]
fn accumulated_batches_are_one_batch() {
    let jobs: Vec<Value> = jobs(BASE)
        .into_iter()
        .filter(|job| ["dpo", "orpo", "kto-apo"].contains(&name(job)))
        .collect();
    let trained = |batch: usize, times: usize| {
        let run = train(|output_dir| {
            let mut jobs = jobs.clone();
            for job in &mut jobs {
                job["train"]["batch_size"] = json!(batch);
                job["train"]["gradient_accumulation_steps"] = json!(times);
                job["train"]["max_steps"] = json!(6);
            }
            config(&jobs, output_dir)
        });
        let of_job = |job| {
            let steps = steps(&run, name(job)).into_iter();
            steps.flat_map(|(loss, norm, _)| [loss, norm]).collect()
        };
        jobs.iter().map(of_job).collect::<Vec<Vec<f64>>>()
    };
    for ((job, whole), parts) in jobs.iter().zip(trained(4, 1)).zip(trained(2, 2)) {
        assert_close(name(job), &parts, &whole, 1e-5);
    }
}

/// Of every objective, with adapters of the output projection, other scales and ranks.
fn eight() -> Vec<Value> {
    let train = json!({"batch_size": 4, "max_seq_len": 64, "max_steps": 6, "learning_rate": 2e-3});
    let adapter = |name: &str, dataset: &str, lora: Value, objective: Value, more: Value| {
        let mut train = train.clone();
        for (key, value) in more.as_object().expect("a mapping") {
            train[key] = value.clone();
        }
        json!({"name": name, "dataset": dataset, "lora": lora, "objective": objective, "train": train, "seed": 3})
    };
    let all = json!(["q_proj", "v_proj", "down_proj"]);
    let lora = |r: usize| json!({"r": r, "lora_alpha": 16, "target_modules": all});
    vec![
        adapter("sft", "data", lora(1), json!({"type": "sft"}), json!({})),
        adapter(
            "sft-plus",
            "data",
            lora(8),
            json!({}),
            json!({"loraplus_lr_ratio": 4.0}),
        ),
        adapter("dpo", "pairs", lora(64), json!({"type": "dpo"}), json!({})),
        adapter(
            "dpo-rs",
            "pairs",
            json!({"r": 16, "use_rslora": true, "target_modules": ["o_proj", "up_proj"]}),
            json!({"type": "dpo", "loss_type": ["ipo", "sft"], "beta": 0.3}),
            json!({"gradient_accumulation_steps": 2, "batch_size": 3}),
        ),
        adapter(
            "dpo-head",
            "pairs",
            json!({"r": 4, "target_modules": ["q_proj", "lm_head"]}),
            json!({"type": "dpo", "precompute_ref_log_probs": true}),
            json!({}),
        ),
        adapter(
            "kto",
            "rated",
            lora(2),
            json!({"type": "kto"}),
            json!({"batch_size": 5}),
        ),
        adapter(
            "orpo",
            "pairs",
            lora(32),
            json!({"type": "orpo"}),
            json!({"loraplus_lr_ratio": 2.0}),
        ),
        adapter(
            "simpo",
            "pairs",
            lora(4),
            json!({"type": "simpo"}),
            json!({}),
        ),
    ]
}

/// One after another, together, and over two stages in two micro-batches.
#[test]
fn an_adapter_has_the_bits_that_it_has_alone_whatever_its_neighbours_learn() {
    let jobs = eight();
    let stages = |config: &mut Value, stages: &[&str]| {
        config["pipeline"] = json!({"stages": stages, "microbatches": 2});
    };
    let together = train(|output_dir| {
        let mut config = config(&jobs, output_dir);
        stages(&mut config, &["cpu"]);
        config
    });
    let over_two = train(|output_dir| {
        let mut config = config(&jobs, output_dir);
        stages(&mut config, &["cpu", "cpu"]);
        config
    });
    for job in &jobs {
        let alone = train(|output_dir| {
            let mut config = config(std::slice::from_ref(job), output_dir);
            config["datasets"]
                .as_object_mut()
                .expect("a mapping")
                .retain(|name, _| *name == job["dataset"]);
            stages(&mut config, &["cpu"]);
            config
        });
        let name = name(job);
        let expected = alone.adapter(name);
        for (run, what) in [(&together, "together"), (&over_two, "over two stages")] {
            assert!(run.adapter(name) == expected, "{name} {what}");
            let of = |run: &TrainedRun| losses(&run.events, name);
            assert_eq!(of(run), of(&alone), "{name} {what}");
        }
    }
}

/// Every sequence passes once for all adapters with the same rows and the base as their reference; SFT's and SimPO's
/// never.
#[test]
fn adapters_over_the_same_pairs_share_the_passes_of_their_reference() {
    let of_pairs = |name: &str, objective: Value, seed: u64| {
        json!({
            "name": name, "dataset": "pairs", "objective": objective, "seed": seed,
            "lora": {"r": 2}, "train": {"batch_size": 4, "max_seq_len": 64, "num_epochs": 2},
        })
    };
    let passes = |adapters: &[Value]| {
        let run = train(|output_dir| {
            let mut config = config(adapters, output_dir);
            config["datasets"] = json!({"pairs": {"path": directory(BASE).join("pairs.jsonl")}});
            config
        });
        let sequences = run.events.iter().map(|event| match event {
            Event::Reference { sequences, .. } => *sequences,
            _ => 0,
        });
        sequences.sum::<usize>()
    };
    let many = [
        of_pairs("a", json!({"type": "dpo"}), 0),
        of_pairs("b", json!({"type": "dpo", "beta": 0.5}), 1),
        of_pairs(
            "c",
            json!({"type": "dpo", "precompute_ref_log_probs": true}),
            2,
        ),
        of_pairs("d", json!({"type": "simpo"}), 2),
    ];
    assert_eq!(passes(&many[..1]), 82);
    assert_eq!(passes(&many), 82);
    assert_eq!(passes(&many[3..]), 0);
}

#[test]
fn rows_of_another_objective_are_refused() {
    let refusal = |dataset: &str, objective: &str| {
        let directory = tempfile::tempdir().expect("a directory");
        let adapter = json!({"name": "a", "dataset": dataset, "objective": {"type": objective}});
        let config = config(&[adapter], &directory.path().join("run"));
        let path = directory.path().join("config.json");
        fs::write(&path, config.to_string()).expect("written");
        let config = RunConfig::load(&path, &[]).expect("a configuration").config;
        let error = inspect(&config, None).expect_err("a refusal");
        (error.to_string(), error.hint().expect("a hint"))
    };
    let (error, hint) = refusal("data", "dpo");
    assert_eq!(
        error,
        "adapter `a`: objective `dpo` needs rows with a chosen and a rejected completion, but dataset `data` has \
         rows without preferences"
    );
    assert!(hint.contains("`chosen`"), "{hint}");
    for (dataset, objective, hint) in [
        ("pairs", "sft", "dpo"),
        ("pairs", "kto", "dpo"),
        ("rated", "sft", "kto"),
        ("rated", "orpo", "kto"),
        ("data", "kto", "label is `true` or `false`"),
        ("pairs", "cit", "dpo"),
        ("data", "cit", "is_origin"),
    ] {
        let (error, found) = refusal(dataset, objective);
        assert!(
            error.contains(dataset) && error.contains(objective),
            "{error}"
        );
        assert!(found.contains(hint), "{found}");
    }
}

/// Trains until an adapter's third step, and returns what is saved.
fn interrupted(config: RunConfig) -> SavedRun {
    let output_dir = config.output_dir.clone();
    let begun = Run::prepare(config, &[device()]).expect("the run is prepared");
    interrupted_at(3, begun, &output_dir)
}

fn interrupted_at(last: usize, run: Run, output_dir: &Path) -> SavedRun {
    let stop = AtomicBool::new(false);
    let stopped = run.train(&stop, &mut |event| {
        if matches!(event, Event::Step { step, .. } if *step == last) {
            stop.store(true, Relaxed);
        }
    });
    assert!(stopped.expect("the run is interrupted").interrupted);
    SavedRun::claim(output_dir).expect("a checkpoint")
}

/// Another adapter in place of that which it began from would be another reference.
#[test]
fn a_changed_reference_ends_the_adapter() {
    let parts = tempfile::tempdir().expect("a directory");
    let init = parts.path().join("init");
    fs::create_dir(&init).expect("a directory");
    let copy = |from: PathBuf| {
        for file in ["adapter_config.json", "adapter_model.safetensors"] {
            fs::copy(from.join(file), init.join(file)).expect("a copy");
        }
    };
    copy(directory(BASE).join("init"));
    let mut job = eight().swap_remove(2);
    job["init_from"] = json!(init);
    job["train"]["max_steps"] = json!(12);
    let run = parts.path().join("run");
    let load = |job: &Value| {
        let path = parts.path().join("config.json");
        let mut config = config(std::slice::from_ref(job), &run);
        let datasets = config["datasets"].as_object_mut().expect("a mapping");
        datasets.retain(|name, _| *name == job["dataset"]);
        fs::write(&path, config.to_string()).expect("written");
        RunConfig::load(&path, &[]).expect("a configuration").config
    };
    let resume =
        |job: &Value, saved| Run::resume(load(job), &[device()], saved).expect("the run goes on");
    let saved = interrupted(load(&job));
    let mut saved = interrupted_at(8, resume(&job, saved), &run);
    let mut without = job.clone();
    without["init_from"] = Value::Null;
    copy(directory(BASE).join("jobs/dpo/final"));
    for (job, now) in [
        (&job, "the adapter of `init_from`"),
        (&without, "the base model"),
    ] {
        let report = resume(job, saved).train(&AtomicBool::new(false), &mut |_| {});
        let report = report.expect("the run ends");
        let Outcome::Failed { reason, .. } = &report.adapters[0].outcome else {
            panic!("{report:?}");
        };
        assert!(
            reason.starts_with("its reference was the adapter of `init_from`")
                && reason.contains(&format!("now is {now}")),
            "{reason}"
        );
        saved = SavedRun::claim(&run).expect("a checkpoint");
    }
}

/// Also with an adapter as it began as the reference, which is read and computed again.
#[test]
fn an_interrupted_run_ends_with_the_bits_of_a_whole_one() {
    let mut jobs = eight();
    jobs[2]["init_from"] = json!(directory(BASE).join("init"));
    let whole = train(|output_dir| config(&jobs, output_dir));
    let parts = tempfile::tempdir().expect("a directory");
    let output_dir = parts.path().join("run");
    let load = || {
        let path = parts.path().join("config.json");
        fs::write(&path, config(&jobs, &output_dir).to_string()).expect("written");
        RunConfig::load(&path, &[]).expect("a configuration").config
    };
    let saved = interrupted(load());
    let resumed = Run::resume(load(), &[device()], saved).expect("the run goes on");
    resumed
        .train(&AtomicBool::new(false), &mut |_| {})
        .expect("the run ends");
    for job in &jobs {
        let last = output_dir.join("adapters").join(name(job)).join("last");
        let found = PeftAdapter::load(&last).expect("an adapter");
        assert!(found == whole.adapter(name(job)), "{}", name(job));
    }
}

/// Means over all validation rows, however many are in a batch of them.
#[test]
fn an_evaluation_does_not_depend_on_its_batches() {
    let jobs = [("dpo", "pairs"), ("kto", "rated")].map(|(objective, dataset)| {
        [3, 12].map(|batch_size| {
            json!({
                "name": format!("{objective}-{batch_size}"), "dataset": dataset,
                "objective": {"type": objective, "reference": "base"},
                "init_from": directory(BASE).join("init"),
                "lora": {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj", "down_proj"]},
                "train": {"batch_size": batch_size, "max_seq_len": 64, "max_steps": 1, "learning_rate": 0},
            })
        })
    });
    let all: Vec<Value> = jobs.iter().flatten().cloned().collect();
    let run = train(|output_dir| {
        let mut config = config(&all, output_dir);
        config["datasets"]
            .as_object_mut()
            .expect("a mapping")
            .remove("data");
        config
    });
    for [few, many] in &jobs {
        let [(one, few_rewards), (other, many_rewards)] =
            [few, many].map(|job| evaluated(&run, name(job)));
        assert!((one - other).abs() < 2e-2, "{one} {other}");
        let values = |rewards: &Rewards| {
            let Rewards {
                chosen,
                rejected,
                accuracies,
                log_probs_chosen,
                log_probs_rejected,
                ..
            } = *rewards;
            [
                chosen,
                rejected,
                accuracies,
                log_probs_chosen,
                log_probs_rejected,
            ]
            .map(|v| v.unwrap_or(0.0))
        };
        for (few, many) in values(&few_rewards).iter().zip(values(&many_rewards)) {
            assert!(
                (few - many).abs() <= 1e-5 * many.abs().max(1.0),
                "{few} {many}"
            );
        }
        // Which completions are mismatched depends on the batch.
        if let Some((few, many)) = few_rewards.kl.zip(many_rewards.kl) {
            assert!(
                few > 0.0 && (0.5..2.0).contains(&(few / many)),
                "{few} {many}"
            );
        }
    }
}

//! Nothing that is configured is silently left out, nothing else moves.

use std::{
    collections::BTreeSet,
    fs,
    io::ErrorKind,
    sync::atomic::{AtomicBool, Ordering},
};

use loraloom_config::RunConfig;
use loraloom_model::{PeftAdapter, Projection};
use loraloom_tests::{Fixture, assert_same_training, device, train};
use loraloom_trainer::{Event, Outcome, Run, SavedRun};
use serde_json::{Value, json};

/// After two steps every targeted A, B and magnitude of every layer has moved, and no other module has any. That the
/// base does not move in memory either is seen in `frozen`.
#[test]
fn two_steps_move_every_target_and_nothing_else() {
    for fixture in Fixture::with_jobs() {
        let weights = |file: &str| fs::read(fixture.directory.join(file)).ok();
        let base = weights("model.safetensors");
        for job in fixture.jobs() {
            let mut adapter = job.adapter();
            adapter["train"]["max_steps"] = json!(2);
            adapter["train"]["warmup_steps"] = json!(0);
            adapter["train"]["lr_scheduler_type"] = json!("constant");
            adapter["train"]["lr_scheduler_kwargs"] = json!(null);
            let run = train(|output_dir| fixture.config(&[adapter], output_dir));
            let before = PeftAdapter::load(&job.directory.join("init")).expect("PEFT's adapter");
            let after = run.adapter(&job.name);
            let expected = targets(&before, &job.fields["lora"]["target_modules"]);
            assert_eq!(after.modules.keys().cloned().collect::<Vec<_>>(), expected);
            for (module, after) in &after.modules {
                let before = &before.modules[module];
                let frozen = job.fields["lora"]["lora_fa"] == json!(true);
                if frozen && module != Projection::EmbedTokens.path() {
                    assert_eq!(before.a, after.a, "{} {module} A", job.name);
                } else {
                    assert_ne!(before.a, after.a, "{} {module} A", job.name);
                }
                assert_ne!(before.b, after.b, "{} {module} B", job.name);
                let magnitudes = [&before.magnitude, &after.magnitude];
                let use_dora = job.fields["lora"]["use_dora"] == json!(true);
                assert_eq!(magnitudes[0].is_some(), use_dora, "{} {module}", job.name);
                assert_eq!(
                    magnitudes[0] != magnitudes[1],
                    use_dora,
                    "{} {module}",
                    job.name
                );
            }
        }
        assert_eq!(
            weights("model.safetensors"),
            base,
            "the base is never written"
        );
    }
}

/// An adapter of one end of the model, alone and beside one of a layer.
#[test]
fn adapters_of_one_end_train() {
    let fixture = Fixture::open("llama-gqa");
    let adapter = |name: &str| {
        json!({
            "name": name, "dataset": "data", "lora": {"r": 2, "lora_alpha": 4, "target_modules": name},
            "train": {"batch_size": 2, "max_seq_len": 32, "max_steps": 4, "learning_rate": 1e-2},
        })
    };
    let all = ["lm_head", "embed_tokens", "v_proj"].map(adapter);
    let together = train(|output_dir| fixture.config(&all, output_dir));
    for end in &all[..2] {
        let name = end["name"].as_str().expect("a name");
        let alone = train(|output_dir| fixture.config(std::slice::from_ref(end), output_dir));
        assert_eq!(alone.report.adapters[0].outcome, Outcome::Done);
        assert_eq!(alone.adapter(name).modules.len(), 1);
        assert_same_training(name, &alone, &together);
    }
}

/// Behind an output projection of zeros nothing reaches q and v: the run says so and fails the task.
/// The adapter of the MLP beside it is trained.
#[test]
fn an_adapter_that_no_training_reaches_fails() {
    let fixture = Fixture::open("llama-gqa");
    let model = fixture.without_output_projections();
    let adapter = |name: &str, targets: &[&str]| {
        json!({
            "name": name, "dataset": "data",
            "lora": {"r": 4, "lora_alpha": 8, "target_modules": targets},
            "train": {"batch_size": 2, "max_seq_len": 32, "max_steps": 8, "learning_rate": 1e-3},
        })
    };
    let adapters = [
        adapter("attention", &["q_proj", "v_proj"]),
        adapter("mlp", &["down_proj"]),
    ];
    let run = train(|output_dir| {
        let mut config = fixture.config(&adapters, output_dir);
        config["model"] = json!(model.path());
        config
    });
    let [attention, mlp] = &run.report.adapters[..] else {
        panic!("{:?}", run.report.adapters);
    };
    let Outcome::Failed { reason, .. } = &attention.outcome else {
        panic!("{:?}", attention.outcome);
    };
    assert!(reason.contains("no gradient reaches"), "{reason}");
    assert!(reason.contains("q_proj"), "{reason}");
    assert_eq!(attention.steps, 2);
    let failed = run.events.iter().find_map(|event| match event {
        Event::AdapterFailed { step, .. } => Some(*step),
        _ => None,
    });
    assert_eq!(failed, Some(2));
    assert!(matches!(mlp.outcome, Outcome::Done), "{:?}", mlp.outcome);
}

/// Weights that stay for another reason are not said to be out of reach, and what diverges is told with
/// its losses.
#[test]
fn settings_that_keep_an_adapter_from_learning_are_named() {
    let fixture = Fixture::open("llama-gqa");
    let adapter = |name: &str, lora: Value, train: Value| {
        let mut adapter = json!({
            "name": name, "dataset": "data",
            "lora": {"r": 4, "lora_alpha": 8, "lora_dropout": 0.0, "target_modules": ["q_proj", "v_proj"]},
            "train": {"batch_size": 2, "max_seq_len": 32, "max_steps": 8, "learning_rate": 1e-3,
                      "lr_scheduler_type": "constant"},
        });
        for (part, settings) in [("lora", lora), ("train", train)] {
            let settings = settings.as_object().expect("settings").clone();
            adapter[part]
                .as_object_mut()
                .expect("settings")
                .extend(settings);
        }
        adapter
    };
    let trained = |key: &str, value: f64| adapter(key, json!({}), json!({ key: value }));
    let shaped = |key: &str, value: f64| adapter(key, json!({ key: value }), json!({}));
    let mut tiny = trained("learning_rate", 1e-12);
    tiny["name"] = json!("tiny_rate");
    let adapters = [
        trained("learning_rate", 1e9),
        tiny,
        trained("max_grad_norm", 1e-30),
        trained("adam_epsilon", 1e20),
        trained("weight_decay", 1e30),
        shaped("lora_dropout", 0.999_999_999),
        shaped("lora_alpha", 1e38),
    ];
    let run = train(|output_dir| fixture.config(&adapters, output_dir));
    let told = run.report.adapters.iter().map(|adapter| {
        let Outcome::Failed { reason, .. } = &adapter.outcome else {
            panic!("{}: {:?}", adapter.name, adapter.outcome);
        };
        let mut reason = reason.clone();
        for (loss, name) in [(adapter.first_loss, "FIRST"), (adapter.last_loss, "LAST")] {
            if let Some(loss) = loss {
                reason = reason.replacen(&format!("{loss:.4}"), name, 1);
            }
        }
        format!("{} after {} steps: {reason}", adapter.name, adapter.steps)
    });
    insta::assert_snapshot!(told.collect::<Vec<_>>().join("
"), @r"
    learning_rate after 2 steps: the first step was too large (the loss was FIRST, then LAST, at a learning rate of 1000000000.0): afterwards model.layers.0.self_attn.q_proj.lora_A, model.layers.1.self_attn.q_proj.lora_A have no gradient; lower `train.learning_rate`
    tiny_rate after 2 steps: the weights do not change (the loss was FIRST, then LAST): a learning rate of 1e-12 changes them by less than the precision of float32; raise `train.learning_rate`
    max_grad_norm after 2 steps: the weights do not change (the loss was FIRST, then LAST): `train.max_grad_norm` 1e-30 scales gradients below `train.adam_epsilon` 1e-8; raise it, or set it to 0 to turn clipping off
    adam_epsilon after 2 steps: the weights do not change (the loss was FIRST, then LAST): `train.adam_epsilon` 1e20 is far above their gradients; lower it
    weight_decay after 2 steps: loss NaN, gradient norm NaN after a loss of LAST, at a learning rate of 1.000e-3: `train.weight_decay` 1e30 subtracts more than the whole weight; lower it
    lora_dropout after 2 steps: the weights do not change (the loss was FIRST, then LAST): `lora.lora_dropout` 0.999999999 drops the adapter's whole input; lower it
    lora_alpha after 0 steps: loss 6.1661, gradient norm inf at the first step: check the weights of the model and of `init_from` for damage, the range of `dtype`, and the scale of 2.5e37 (`lora.lora_alpha`, `lora.r`)
    ");
}

/// The first B of a long warm-up are so small that their gradients of A do not show beside its values.
#[test]
fn a_long_warm_up_is_no_fault() {
    let adapter = json!({
        "name": "a", "dataset": "data",
        "lora": {"r": 4, "lora_alpha": 8, "lora_dropout": 0.0, "target_modules": "all-linear"},
        "train": {"batch_size": 1, "max_seq_len": 32, "max_steps": 1_000_000, "learning_rate": 1e-6,
                  "warmup_steps": 1_000_000},
    });
    let directory = tempfile::tempdir().expect("a temporary directory");
    let config = Fixture::open("llama-gqa").config(&[adapter], &directory.path().join("run"));
    let path = directory.path().join("config.json");
    fs::write(&path, config.to_string()).expect("the configuration is written");
    let config = RunConfig::load(&path, &[])
        .expect("a valid configuration")
        .config;
    let run = Run::prepare(config, &[device()]).expect("the run is prepared");
    let stop = AtomicBool::new(false);
    let report = run.train(&stop, &mut |event| {
        if let Event::Step { step: 20, .. } = event {
            stop.store(true, Ordering::Relaxed);
        }
    });
    let report = report.expect("the run ends");
    assert_eq!(report.adapters[0].outcome, Outcome::Interrupted);
    assert!(report.adapters[0].steps >= 20, "{report:?}");
}

/// A run that goes on after its first step still knows the values that its adapters began with.
#[test]
fn an_adapter_that_no_training_reaches_fails_after_a_restart() {
    let fixture = Fixture::open("llama-gqa");
    let model = fixture.without_output_projections();
    let adapter = json!({
        "name": "attention", "dataset": "data",
        "lora": {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]},
        "train": {"batch_size": 2, "max_seq_len": 32, "max_steps": 8, "learning_rate": 1e-3},
        "save": {"steps": 1, "keep": 8},
    });
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut config = fixture.config(&[adapter], &directory.path().join("run"));
    config["model"] = json!(model.path());
    let path = directory.path().join("config.json");
    fs::write(&path, config.to_string()).expect("the configuration is written");
    let config = || {
        let loaded = RunConfig::load(&path, &[]);
        loaded.expect("a valid configuration").config
    };

    let run = Run::prepare(config(), &[device()]).expect("the run is prepared");
    run.train(&AtomicBool::new(false), &mut |_| {})
        .expect("the run ends");
    // As if it had been killed after the first step.
    for step in 2..=8 {
        let later = directory.path().join(format!("run/checkpoints/{step}"));
        fs::remove_dir_all(&later)
            .or_else(|error| match error.kind() {
                ErrorKind::NotFound => Ok(()),
                _ => Err(error),
            })
            .expect("removed");
    }
    let saved = SavedRun::claim(&directory.path().join("run")).expect("a checkpoint");
    assert_eq!(saved.iteration(), 1);
    let run = Run::resume(config(), &[device()], saved).expect("the run goes on");
    let report = run.train(&AtomicBool::new(false), &mut |_| {});
    let report = report.expect("the run ends");
    let Outcome::Failed { reason, .. } = &report.adapters[0].outcome else {
        panic!("{:?}", report.adapters[0].outcome);
    };
    assert!(reason.contains("no gradient reaches"), "{reason}");
}

/// B begins as zeros, so that A keeps its first values in the first step: those of the task's seed.
#[test]
fn an_adapter_begins_with_the_values_of_its_seed() {
    let fixture = Fixture::open("llama-gqa");
    let adapter = |name: &str, seed: u64| {
        json!({
            "name": name, "dataset": "data", "seed": seed,
            "lora": {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"},
            "train": {"batch_size": 2, "max_seq_len": 32, "max_steps": 1, "learning_rate": 1e-3,
                      "weight_decay": 0.0},
        })
    };
    let adapters = [adapter("one", 1), adapter("again", 1), adapter("two", 2)];
    let run = train(|output_dir| fixture.config(&adapters, output_dir));
    let [one, again, two] = ["one", "again", "two"].map(|name| run.adapter(name));
    for (module, weights) in &one.modules {
        assert_eq!(weights.a, again.modules[module].a, "{module}");
        assert_ne!(weights.a, two.modules[module].a, "{module}");
    }
}
/// All targeted modules, from the names in the configuration and the layers PEFT knows.
fn targets(adapter: &PeftAdapter, names: &Value) -> Vec<String> {
    let names: Vec<&str> = names
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|name| name.as_str())
        .collect();
    let mut layers: BTreeSet<usize> = adapter
        .modules
        .keys()
        .filter_map(|module| module.split('.').nth(2)?.parse().ok())
        .collect();
    // An adapter of the model's ends may have no layer.
    layers.insert(0);
    let mut modules: Vec<String> = layers
        .into_iter()
        .flat_map(|layer| Projection::ALL.map(|projection| (layer, projection)))
        .filter(|(_, projection)| names.contains(&projection.name()))
        .map(|(layer, projection)| projection.module(layer))
        .collect();
    modules.sort();
    modules.dedup();
    modules
}

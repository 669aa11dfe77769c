//! Schedules of the learning rate are transformers'.

use std::{fs, path::Path};

use serde_json::{Value, json};

use super::support::{GOOD, load, load_named, plain};

/// Learning rates of `get_scheduler`, which `tests/fixtures/make_schedules.py` has frozen. The same formulas in double
/// precision differ by a few roundings.
#[test]
fn learning_rates_are_those_of_transformers() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/schedules.json");
    let cases = fs::read_to_string(path).expect("the fixture");
    let cases: Vec<Value> = serde_json::from_str(&cases).expect("the fixture");
    assert!(cases.len() > 100, "{} cases", cases.len());
    let mut largest = 0.0_f64;
    for case in cases {
        let (given, expected) = (&case["train"], case["learning_rates"].as_array().unwrap());
        let config = json!({
            "model": "m", "datasets": {"d": {"path": "p"}},
            "adapters": [{"name": "a", "train": given}],
        });
        let loaded = load_named("run.json", &config.to_string(), &[]);
        let loaded = loaded.unwrap_or_else(|error| panic!("{given}: {error}"));
        let train = &loaded.config.adapters[0].train;
        let total = train.max_steps.expect("a number of steps");
        assert_eq!(expected.len(), total, "{given}");
        for (step, expected) in expected.iter().enumerate() {
            let (found, expected) = (
                train.learning_rate_at(step, total),
                expected.as_f64().expect("a number"),
            );
            let error = (found - expected).abs() / expected.abs().max(1e-15);
            assert!(error <= 1e-12, "{given} at {step}: {found} {expected}");
            largest = largest.max(error);
        }
    }
    println!("largest relative difference {largest:e}");
}

#[test]
fn keywords_that_a_schedule_does_not_have_are_refused() {
    let mut lines = Vec::new();
    for (kind, kwargs) in [
        ("cosine", "{min_lr: 1e-5}"),
        ("linear", "{num_cycles: 2}"),
        ("polynomial", "{power: 2, min_lr_rate: 0.1}"),
        ("inverse_sqrt", "{timescal: 3}"),
        ("inverse_sqrt", "{timescale: 0}"),
        ("cosine_with_min_lr", "{}"),
        ("cosine_with_min_lr", "{min_lr: 1e-5, min_lr_rate: 0.1}"),
        ("cosine_with_min_lr", "{min_lr: 1e-3}"),
        ("cosine_with_min_lr", "{min_lr_rate: 2}"),
        ("polynomial", "{lr_end: 1e-3}"),
        ("warmup_stable_decay", "{num_stable_steps: 4}"),
        (
            "warmup_stable_decay",
            "{num_decay_steps: 4, decay_type: sqrt}",
        ),
    ] {
        let train = format!(
            "batch_size: 8\n    lr_scheduler_type: {kind}\n    lr_scheduler_kwargs: {kwargs}"
        );
        let error = load(&GOOD.replace("batch_size: 8", &train), &[]).unwrap_err();
        lines.push(format!("{kind} {kwargs}\n  {}", plain(&error)));
        lines.extend(error.hint().map(|hint| format!("  hint: {hint}")));
    }
    insta::assert_snapshot!(lines.join("\n"));
}

#[test]
fn an_adapter_can_drop_the_keywords_of_defaults() {
    let text = GOOD.replace(
        "batch_size: 8",
        "lr_scheduler_type: cosine_with_min_lr\n    lr_scheduler_kwargs: {min_lr_rate: 0.1}",
    );
    let error = load(&text, &["adapters.a.train.lr_scheduler_type=linear"]).unwrap_err();
    assert!(error.to_string().contains("no such keyword"), "{error}");
    let sets = [
        "adapters.a.train.lr_scheduler_type=linear",
        "adapters.a.train.lr_scheduler_kwargs=null",
    ];
    let adapters = load(&text, &sets).expect("a configuration").config.adapters;
    assert_eq!(adapters[0].train.lr_scheduler_kwargs.min_lr_rate, None);
    assert_eq!(adapters[1].train.lr_scheduler_kwargs.min_lr_rate, Some(0.1));
}

#[test]
fn grids_have_keywords() {
    let text = GOOD.replace("batch_size: 8", "lr_scheduler_type: cosine_with_min_lr")
        + "sweep:\n  - name: s\n    grid: {train: {lr_scheduler_kwargs: {min_lr_rate: [0.1, 0.2]}}}\n";
    let text = text.replace(
        "  - name: b",
        "  - name: b\n    train: {lr_scheduler_type: cosine}",
    );
    let text = text.replace(
        "  - name: a",
        "  - name: a\n    train: {lr_scheduler_type: cosine}",
    );
    let adapters = load(&text, &[]).expect("a configuration").config.adapters;
    let found = adapters[2..].iter().map(|adapter| {
        let kwargs = &adapter.train.lr_scheduler_kwargs;
        (adapter.name.as_str(), kwargs.min_lr_rate)
    });
    assert_eq!(
        found.collect::<Vec<_>>(),
        [
            ("s-min_lr_rate_0.1", Some(0.1)),
            ("s-min_lr_rate_0.2", Some(0.2))
        ]
    );
}

#[test]
fn start_values_have_the_names_of_peft() {
    let lora = |text: &str| {
        let loaded = load(&GOOD.replace("r: 8", &format!("r: 8\n      {text}")), &[]);
        loaded.map(|loaded| loaded.config.adapters[1].lora.clone())
    };
    for (text, name) in [
        ("lora_alpha: 8", None),
        ("init_lora_weights: true", None),
        ("init_lora_weights: gaussian", Some("gaussian")),
        ("init_lora_weights: orthogonal", Some("orthogonal")),
        ("init_lora_weights: eva", Some("eva")),
        (
            "init_lora_weights: pissa\n      lora_dropout: 0",
            Some("pissa"),
        ),
        (
            "init_lora_weights: pissa_niter_4\n      lora_dropout: 0",
            Some("pissa_niter_4"),
        ),
        (
            "init_lora_weights: olora\n      lora_dropout: 0",
            Some("olora"),
        ),
    ] {
        let found = lora(text).expect(text).init_lora_weights;
        assert_eq!(found.name().as_deref(), name);
    }
    let odd = GOOD.replace("r: 8", "r: 3\n      init_lora_weights: orthogonal");
    for (error, problem) in [
        (
            lora("init_lora_weights: false").err(),
            "must be true or a name, such as gaussian",
        ),
        (
            lora("init_lora_weights: pissa_niter_0").err(),
            "`0` in `pissa_niter_0` must be a whole number from 1 to 1000",
        ),
        (
            lora("init_lora_weights: pissa_niter_1001").err(),
            "`1001` in `pissa_niter_1001` must be a whole number from 1 to 1000",
        ),
        (
            lora("init_lora_weights: loftq").err(),
            "unknown value `loftq`",
        ),
        (
            lora("init_lora_weights: 3").err(),
            "expected true, gaussian, orthogonal, eva, pissa, pissa_niter_K, olora or slora",
        ),
        (load(&odd, &[]).err(), "needs an even r, as in PEFT, got 3"),
        (
            lora("eva_config: {rho: 0.5}").err(),
            "must be finite and at least 1, got 0.5",
        ),
        (
            lora("eva_config: {tau: 1.5}").err(),
            "must be between 0 and 1, got 1.5",
        ),
    ] {
        let error = error.expect(problem).to_string();
        assert!(error.contains(problem), "{error}");
    }
}

#[test]
fn loraplus_has_the_defaults_of_peft() {
    let train = |text: &str| {
        let loaded = load(&GOOD.replace("batch_size: 8", text), &[]);
        loaded.map(|loaded| loaded.config.adapters[0].train.clone())
    };
    let plus = train("loraplus_lr_ratio: 16").expect("a configuration");
    assert_eq!(plus.loraplus_lr_ratio, Some(16.0));
    assert!((plus.loraplus_lr_embedding() - 1e-6).abs() < 1e-20);
    for (text, problem) in [
        ("loraplus_lr_embedding: 1e-5", "needs loraplus_lr_ratio"),
        ("loraplus_lr_ratio: 0", "must be finite and above 0, got 0"),
    ] {
        let error = train(text).expect_err(text).to_string();
        assert!(error.contains(problem), "{error}");
    }
}

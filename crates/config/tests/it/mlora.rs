//! mLoRA's configurations as they are.
#![expect(clippy::float_cmp, reason = "what is read is exactly what is written")]

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::support::{fixture, plain};
use loraloom_config::{
    LoadOptions, Loaded, LossType, LrSchedulerType, ObjectiveSettings, ObjectiveType, Reference,
    RunConfig, TargetModule, Validation,
};

const FILE: &str = "mlora/two_adapters.yaml";

fn options() -> LoadOptions {
    LoadOptions {
        base_model: Some("base".into()),
        ..LoadOptions::default()
    }
}

/// Loads the fixture after an edit, from a copy of its directory.
fn edited(from: &str, to: &str) -> Result<Loaded, loraloom_config::ConfigError> {
    let directory = tempfile::tempdir().unwrap();
    for name in ["rows.json", "prompt.yaml", "preferences.yaml"] {
        fs::copy(fixture("mlora").join(name), directory.path().join(name)).unwrap();
    }
    let text = fs::read_to_string(fixture(FILE)).unwrap();
    assert!(text.contains(from), "{from:?} is not in the fixture");
    let path = directory.path().join("mlora.yaml");
    fs::write(&path, text.replacen(from, to, 1)).unwrap();
    RunConfig::load_with(&path, &options())
}

#[test]
fn tasks_become_adapters() {
    let config = RunConfig::load_with(&fixture(FILE), &options())
        .unwrap()
        .config;
    assert_eq!(config.model, Path::new("base"));
    assert_eq!(config.output_dir, Path::new("runs/two_adapters"));
    assert_eq!(config.scheduler.max_adapters, Some(2));

    let rows = &config.datasets["numbers"];
    assert_eq!(rows.path, [fixture("mlora/rows.json")]);
    let template =
        "Question: {{ data_point['instruction'] }}\nAnswer: {{ data_point['output'] }}\n";
    assert_eq!(rows.template.as_deref(), Some(template));
    assert_eq!(rows.validation, Validation::Fraction(0.0));

    let [narrow, wide] = config.adapters.as_slice() else {
        panic!("two adapters")
    };
    assert_eq!(
        (narrow.name.as_str(), narrow.dataset.as_str()),
        ("narrow", "numbers")
    );
    assert_eq!(
        (
            narrow.lora.r,
            narrow.lora.lora_alpha,
            narrow.lora.lora_dropout
        ),
        (8, 16.0, 0.05)
    );
    assert_eq!(
        narrow.lora.target_modules,
        [TargetModule::QProj, TargetModule::VProj]
    );
    assert_eq!(
        (
            narrow.train.batch_size,
            narrow.train.gradient_accumulation_steps
        ),
        (2, 2)
    );
    assert_eq!(
        (narrow.train.max_seq_len, narrow.train.num_epochs),
        (256, 10.0)
    );
    assert_eq!(narrow.train.learning_rate, 3e-4);
    assert_eq!(narrow.train.lr_scheduler_type, LrSchedulerType::Constant);
    assert_eq!(narrow.train.weight_decay, 0.01, "torch's default");
    assert_eq!(narrow.train.max_grad_norm, 0.0, "mLoRA does not clip");
    assert!(narrow.train.shuffle && narrow.train.train_on_prompt);
    assert_eq!(narrow.save.steps, 1001, "2001 micro-batches, two a step");

    assert_eq!(
        (wide.name.as_str(), wide.dataset.as_str()),
        ("wide", "ordered")
    );
    assert_eq!(wide.train.lr_scheduler_type, LrSchedulerType::Cosine);
    assert_eq!(wide.train.warmup(100), 0);
    assert!(!wide.train.shuffle);
    assert_eq!(wide.lora.target_modules.len(), 7);
    assert_eq!(wide.save.steps, 500);
}

#[test]
fn differences_are_warned_of() {
    let warnings = RunConfig::load_with(&fixture(FILE), &options())
        .unwrap()
        .warnings;
    let text = warnings.join("\n");
    insta::assert_snapshot!(text);
}

#[test]
fn a_t_max_of_the_whole_training_needs_no_warning() {
    // 5 rows, 2 a step: 3 steps an epoch, 3 epochs.
    let warnings = edited("t_max: 100000\n    eta_min: 1e-6", "t_max: 9")
        .unwrap()
        .warnings;
    assert!(
        warnings.iter().all(|warning| !warning.contains("cosine")),
        "{warnings:?}"
    );
}

#[test]
fn loraplus_has_a_learning_rate_of_b() {
    let loaded = edited("type: \"lora\"", "type: loraplus\n    lr_ratio: 8").unwrap();
    let ratios = loaded
        .config
        .adapters
        .iter()
        .map(|a| a.train.loraplus_lr_ratio);
    assert_eq!(ratios.collect::<Vec<_>>(), [Some(8.0), None]);
}

/// A task over the preferences of `rows.json`, in this directory.
fn preferences(directory: &Path, task: &str) -> Loaded {
    for name in ["rows.json", "preferences.yaml"] {
        fs::copy(fixture("mlora").join(name), directory.join(name)).unwrap();
    }
    let modules = "target_modules: {q_proj: true}";
    let text = format!(
        "datasets: [{{name: d, data: rows.json, prompt: preferences.yaml, prompt_type: preference}}]\n\
         adapters:\n  \
         - {{name: a, type: lora, optimizer: adamw, lr: 1e-4, r: 4, alpha: 8, dropout: 0.05, {modules}}}\n  \
         - {{name: sft, type: lora, path: adapters/sft, r: 4, alpha: 8, dropout: 0.05, {modules}}}\n\
         tasks:\n  \
         - {{{task}, adapter: a, dataset: d, batch_size: 2, mini_batch_size: 2, num_epochs: 1}}\n"
    );
    let path = directory.join("mlora.yaml");
    fs::write(&path, text).unwrap();
    RunConfig::load_with(&path, &options()).unwrap()
}

/// The objective of the only adapter that is trained, and the warnings.
fn preference(task: &str) -> (ObjectiveSettings, Vec<String>) {
    let directory = tempfile::tempdir().unwrap();
    let loaded = preferences(directory.path(), task);
    let [adapter] = &loaded.config.adapters[..] else {
        panic!("one adapter is trained");
    };
    (adapter.objective.clone(), loaded.warnings)
}

#[test]
fn a_reference_that_is_there_is_begun_from_and_compared_with() {
    let directory = tempfile::tempdir().unwrap();
    let adapter = directory.path().join("adapters/sft");
    fs::create_dir_all(&adapter).unwrap();
    fs::write(adapter.join("adapter_model.safetensors"), "").unwrap();
    let loaded = preferences(directory.path(), "type: dpo, reference: sft");
    let [trained] = &loaded.config.adapters[..] else {
        panic!("one adapter is trained");
    };
    assert_eq!(trained.init_from, Some(adapter));
    assert_eq!(trained.objective.reference, Some(Reference::Init));
    insta::assert_snapshot!("reference_that_is_there", loaded.warnings[0]);
}

#[test]
fn preference_losses_keep_their_settings_and_dropout() {
    let meaning = |of: &ObjectiveSettings| (of.loss(), of.reference, of.disables_dropout());
    let beta = Some(0.3);
    let expected = ObjectiveSettings {
        r#type: ObjectiveType::Dpo,
        beta,
        reference: Some(Reference::Base),
        disable_dropout: Some(false),
        ..ObjectiveSettings::default()
    };
    let keys = "loss_type: sigmoid, beta: 0.3, label_smoothing: 0.0";
    let (base, _) = preference(&format!("type: dpo, reference: base, {keys}"));
    assert_eq!(meaning(&base), meaning(&expected));
    let (of_adapter, warnings) = preference(&format!("type: dpo, reference: sft, {keys}"));
    assert_eq!(meaning(&of_adapter), meaning(&expected));
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    insta::assert_snapshot!("reference_adapters", warnings[0]);

    let expected = ObjectiveSettings {
        r#type: ObjectiveType::Cpo,
        loss_type: Some(vec![LossType::Hinge]),
        beta,
        disable_dropout: Some(false),
        ..ObjectiveSettings::default()
    };
    let (hinge, _) = preference(&keys.replace("sigmoid", "hinge, type: cpo"));
    assert_eq!(meaning(&hinge), meaning(&expected));
    let (smooth, warnings) = preference("type: cpo, label_smoothing: 0.1");
    let expected = ObjectiveSettings {
        loss_type: Some(vec![LossType::Sigmoid]),
        beta: None,
        label_smoothing: Some(0.1),
        ..expected
    };
    assert_eq!(meaning(&smooth), meaning(&expected));
    assert!(warnings[0].contains("label_smoothing"), "{warnings:?}");
}

#[test]
fn dora_is_that_of_peft() {
    let loaded = edited("type: \"lora\"", "type: dora").unwrap();
    let dora = loaded.config.adapters.iter().map(|a| a.lora.use_dora);
    assert_eq!(dora.collect::<Vec<_>>(), [true, false]);
    let warned = loaded.warnings.iter().any(|text| text.contains("DoRA"));
    assert!(warned, "{:?}", loaded.warnings);
}

#[test]
fn the_import_is_a_configuration_of_its_own() {
    let config = RunConfig::load_with(&fixture(FILE), &options())
        .unwrap()
        .config;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("imported.yaml");
    fs::write(&path, config.to_yaml().unwrap()).unwrap();
    let loaded = RunConfig::load(&path, &[]).unwrap();
    assert_eq!(
        (loaded.config, loaded.warnings),
        (config.absolute().unwrap(), Vec::new())
    );
}

#[test]
fn overrides_apply_to_the_translation() {
    let overrides = ["model=other", "adapters.wide.lora.r=4", "output_dir=x"].map(str::to_owned);
    let config = RunConfig::load(&fixture(FILE), &overrides).unwrap().config;
    assert_eq!(config.model, PathBuf::from("other"));
    assert_eq!(config.output_dir, PathBuf::from("x"));
    assert_eq!(config.adapters[1].lora.r, 4);
}

#[test]
fn a_base_model_is_needed() {
    let error = RunConfig::load(&fixture(FILE), &[]).unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("an mLoRA configuration does not name a base model"),
        "{error}"
    );
    assert!(error.hint().unwrap().contains("--base-model"));
}

#[test]
fn what_cannot_be_translated_is_refused_with_the_reason() {
    let edits = [
        ("type: \"lora\"", "type: vera"),
        ("type: \"lora\"", "type: loraplus"),
        ("type: \"lora\"", "type: lora\n    lr_ratio: 8"),
        ("type: \"lora\"", "type: lore"),
        ("type: \"train\"", "type: train\n    beta: 0.1"),
        ("type: \"train\"", "type: dpo\n    reference: narow"),
        ("type: \"train\"", "type: dpo\n    loss_type: ipo"),
        ("type: \"train\"", "type: dpo\n    loss_type: hinge"),
        ("type: \"train\"", "type: dpo\n    label_smoothing: 0.1"),
        ("type: \"train\"", "type: cpo\n    loss_type: ipo"),
        ("type: \"train\"", "type: cpo\n    reference: base"),
        ("type: \"train\"", "type: cpo\n    beta: 0"),
        ("type: \"train\"", "type: cit\n    beta: 0.1"),
        (
            "type: \"train\"",
            "type: cit\n    contrastive_pooling_method: mean",
        ),
        ("type: \"train\"", "type: train\n    lambda: 1"),
        ("type: \"train\"", "type: ppo"),
        ("    optimizer: \"adamw\"\n    lr: 3e-4\n", ""),
        ("    optimizer: \"adamw\"\n    lr: 3e-4\n", "    lr: 3e-4\n"),
        ("optimizer: \"adamw\"", "optimizer: sgd"),
        ("optimizer: \"adamw\"", "optimizer: adamv"),
        ("optimizer: \"adamw\"", "optimiser: adamw"),
        ("lrscheduler: \"cosine\"\n", "\n"),
        ("eta_min: 1e-6", "eta_min: 2"),
        ("preprocess: \"shuffle\"", "preprocess: sort"),
        ("prompt_type: \"instruction\"", "prompt_type: preference"),
        ("prompt_type: \"instruction\"", "prompt_type: ppo"),
        ("prompt: \"prompt.yaml\"", "prompt: absent.yaml"),
        ("prompt: \"prompt.yaml\"", "prompt: rows.json"),
        ("mini_batch_size: 2", "mini_batch_size: 3"),
        ("mini_batch_size: 2", "mini_batch_size: 0"),
        ("adapter: \"wide\"", "adapter: narrow"),
        ("adapter: \"wide\"", "adapter: wid"),
        ("dataset: \"ordered\"", "dataset: order"),
        ("name: \"ordered\"", "name: numbers"),
        ("cutoff_len: 128", "cutof_len: 128"),
        ("concurrency_num: 2", "concurency_num: 2"),
        ("concurrency_num: 2", "concurrency_num: 0"),
        ("q_proj: true", "query_key_value: true"),
        ("q_proj: true", "q_proj: 1"),
        ("r: 8", "r: 0"),
    ];
    let mut lines = Vec::new();
    for (from, to) in edits {
        let error = edited(from, to).expect_err(to);
        lines.push(format!("{to:?}\n  error: {}", plain(&error)));
    }
    let text = lines.join("\n");
    insta::assert_snapshot!(text);
}

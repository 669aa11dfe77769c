//! The JSON schema and the starter configuration agree with what loads.

use std::path::Path;

use loraloom_config::{
    ConfigError, LoadOptions, Loaded, RunConfig, StarterDataset, json_schema, starter,
};
use serde_json::Value;

fn properties<'a>(schema: &'a Value, name: &str) -> Vec<&'a str> {
    let object = if name.is_empty() {
        schema
    } else {
        &schema["$defs"][name]
    };
    assert_eq!(object["additionalProperties"], Value::Bool(false), "{name}");
    let properties = object["properties"]
        .as_object()
        .expect("an object with properties");
    properties.keys().map(String::as_str).collect()
}

fn check(schema: &Value, name: &str, keys: &[&str]) {
    let (mut found, mut expected) = (properties(schema, name), keys.to_vec());
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected, "{name}");
}

#[test]
fn schema_has_every_key_of_quantization() {
    let keys = ["type", "double_quant", "skip"];
    check(&json_schema(), "QuantizationConfig", &keys);
}

#[test]
fn schema_has_every_keyword_of_schedules() {
    check(
        &json_schema(),
        "LrSchedulerKwargs",
        &[
            "min_lr",
            "min_lr_rate",
            "num_cycles",
            "lr_end",
            "power",
            "timescale",
            "num_decay_steps",
            "num_stable_steps",
            "warmup_type",
            "decay_type",
            "min_lr_ratio",
        ],
    );
}

#[test]
fn schema_has_every_key_of_objectives() {
    let objective = [
        "type",
        "loss_type",
        "loss_weights",
        "beta",
        "label_smoothing",
        "reference",
        "precompute_ref_log_probs",
        "disable_dropout",
        "desirable_weight",
        "undesirable_weight",
        "cpo_alpha",
        "simpo_gamma",
        "lambda",
        "temperature",
    ];
    check(&json_schema(), "ObjectiveSettings", &objective);
}

#[test]
fn schema_has_every_key_and_none_that_is_refused() {
    let schema = json_schema();
    let check = |name: &str, keys: &[&str]| check(&schema, name, keys);
    let run = [
        "model",
        "output_dir",
        "device",
        "dtype",
        "seed",
        "gradient_checkpointing",
        "pipeline",
        "quantization",
        "scheduler",
        "datasets",
        "defaults",
        "adapters",
        "sweep",
    ];
    check("", &run);
    let pipeline = [
        "stages",
        "balance",
        "schedule",
        "microbatches",
        "extra_warmup",
        "token_file",
        "step_deadline",
    ];
    check("PipelineFile", &pipeline);
    let scheduler = [
        "policy",
        "memory_limit",
        "max_slowdown",
        "max_adapters",
        "aging",
    ];
    check("SchedulerConfig", &scheduler);
    let sweep = ["name", "base", "grid", "adapters", "early_stopping"];
    check("SweepFile", &sweep);
    let stopping = ["metric", "grace_period", "reduction_factor", "divergence"];
    check("EarlyStoppingFile", &stopping);
    check(
        "DatasetFile",
        &["path", "columns", "template", "validation"],
    );
    let shared = [
        "dataset",
        "priority",
        "tenant",
        "seed",
        "lora",
        "objective",
        "train",
        "eval",
        "save",
    ];
    check("DefaultsFile", &shared);
    check(
        "AdapterConfig",
        &[&shared[..], &["name", "init_from"]].concat(),
    );
    check(
        "LoraSettings",
        &[
            "r",
            "lora_alpha",
            "lora_dropout",
            "target_modules",
            "use_rslora",
            "use_dora",
            "init_lora_weights",
            "eva_config",
            "slora_config",
            "lora_fa",
        ],
    );
    let train = [
        "batch_size",
        "gradient_accumulation_steps",
        "max_seq_len",
        "num_epochs",
        "max_steps",
        "learning_rate",
        "lr_scheduler_type",
        "lr_scheduler_kwargs",
        "warmup_steps",
        "warmup_ratio",
        "loraplus_lr_ratio",
        "loraplus_lr_embedding",
        "weight_decay",
        "adam_beta1",
        "adam_beta2",
        "adam_epsilon",
        "max_grad_norm",
        "label_smoothing_factor",
        "shuffle",
        "train_on_prompt",
    ];
    check("TrainSettings", &train);
    check("EvalSettings", &["steps", "patience"]);
    check("SaveSettings", &["steps", "keep"]);
}

#[test]
fn every_key_of_the_schema_is_described() {
    let schema = json_schema();
    let definitions = schema["$defs"].as_object().unwrap();
    let files = definitions.iter().filter(|(name, _)| {
        ["File", "Config", "Settings"]
            .iter()
            .any(|end| name.ends_with(end))
    });
    for (name, object) in files
        .map(|(name, object)| (name.as_str(), object))
        .chain([("", &schema)])
    {
        for (key, property) in object["properties"].as_object().unwrap() {
            assert!(
                property["description"].is_string(),
                "{name}.{key}: {property}"
            );
        }
    }
}

#[test]
fn a_grid_has_every_setting_that_adapters_of_a_sweep_may_differ_in() {
    let schema = json_schema();
    let grid = &schema["$defs"]["SweepFile"]["properties"]["grid"];
    let text = grid.to_string();
    for path in [
        "lora.r",
        "lora.target_modules",
        "train.learning_rate",
        "train.batch_size",
    ] {
        assert!(text.contains(&format!("\"{path}\"")), "{path}: {text}");
    }
    for key in ["shuffle", "max_seq_len", "train_on_prompt", "seed"] {
        assert!(!text.contains(key), "{key}: {text}");
    }
}

#[test]
fn words_of_the_schema_are_those_that_load() {
    let schema = json_schema().to_string();
    for word in [
        "constant_with_warmup",
        "bfloat16",
        "prompt",
        "completion",
        "conversations",
        "one_f_one_b",
        "gpipe",
        "auto",
        "best_effort_fifo",
        "eval_loss",
    ] {
        assert!(schema.contains(&format!("\"{word}\"")), "{word}");
    }
}

/// As if the file was in the working directory.
fn from_here(text: &str) -> Result<Loaded, ConfigError> {
    RunConfig::load_yaml(text, Path::new("starter.yaml"), &LoadOptions::default())
}

#[test]
fn the_starter_configuration_loads() {
    let datasets = [
        StarterDataset {
            name: "arithmetic",
            path: Path::new("data/arithmetic.jsonl"),
        },
        StarterDataset {
            name: "it's odd",
            path: Path::new("some where/odd: #1.jsonl"),
        },
    ];
    let text = starter(
        Path::new("assets/tiny-llama"),
        Path::new("runs/first"),
        &datasets[..1],
    );
    let loaded = from_here(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert_eq!(loaded.warnings, Vec::<String>::new());
    let names: Vec<_> = loaded
        .config
        .adapters
        .iter()
        .map(|a| a.name.as_str())
        .collect();
    assert_eq!(names, ["arithmetic-r4", "arithmetic-r16"]);
    assert_eq!(loaded.config.model, Path::new("assets/tiny-llama"));
    assert_eq!(loaded.config.output_dir, Path::new("runs/first"));
    assert!(!text.contains("{{"), "{text}");

    let odd = starter(Path::new("no"), Path::new("runs/first"), &datasets);
    let text = odd.replace("it''s odd-r", "odd-r");
    let config = from_here(&text)
        .unwrap_or_else(|error| panic!("{error}\n{text}"))
        .config;
    assert_eq!(config.model, Path::new("no"));
    assert_eq!(
        config.datasets["it's odd"].path,
        [Path::new("some where/odd: #1.jsonl")]
    );
}

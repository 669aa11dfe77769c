//! PEFT adapter directories that are refused: other methods, damaged and inconsistent files.

use std::{collections::HashMap, fs};

use loraloom_model::{ModelError, PeftAdapter};
use safetensors::{Dtype, tensor::TensorView};
use serde_json::{Value, json};
use tempfile::TempDir;

/// An adapter directory with these keys changed in its configuration and these tensors.
fn written(keys: &Value, tensors: &[(&str, Dtype, Vec<usize>, Vec<u8>)]) -> TempDir {
    let mut config = json!({"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 2, "lora_alpha": 4,
        "target_modules": ["q_proj"]});
    for (key, value) in keys.as_object().expect("an object") {
        config[key] = value.clone();
    }
    let directory = tempfile::tempdir().expect("a directory");
    fs::write(
        directory.path().join("adapter_config.json"),
        config.to_string(),
    )
    .expect("written");
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        let view = TensorView::new(*dtype, shape.clone(), bytes).expect("consistent");
        (format!("base_model.model.{name}"), view)
    });
    let weights = safetensors::serialize(views, None::<HashMap<_, _>>).expect("serializable");
    fs::write(directory.path().join("adapter_model.safetensors"), weights).expect("written");
    directory
}

fn zeros(name: &'static str, shape: &[usize]) -> (&'static str, Dtype, Vec<usize>, Vec<u8>) {
    (
        name,
        Dtype::F32,
        shape.to_vec(),
        vec![0; 4 * shape.iter().product::<usize>()],
    )
}

#[test]
fn magnitudes_are_those_of_dora() {
    let factors = |module: &'static [&'static str; 3], width| {
        vec![
            zeros(module[0], &[2, 3]),
            zeros(module[1], &[4, 2]),
            zeros(module[2], &[width]),
        ]
    };
    let q = &[
        "q_proj.lora_A.weight",
        "q_proj.lora_B.weight",
        "q_proj.lora_magnitude_vector",
    ];
    let named = &[
        "q_proj.lora_A.x.weight",
        "q_proj.lora_B.x.weight",
        "q_proj.lora_magnitude_vector.x.weight",
    ];
    let dora = json!({"use_dora": true});
    for names in [q, named] {
        let adapter = PeftAdapter::load(written(&dora, &factors(names, 4)).path()).expect("DoRA");
        assert_eq!(adapter.modules["q_proj"].magnitude, Some(vec![0.0; 4]));
        assert_eq!(adapter.num_params(), 2 * 3 + 4 * 2 + 4);
    }
    let refused = |keys: &Value, tensors: &[_]| {
        let error = PeftAdapter::load(written(keys, tensors).path());
        error.expect_err("refused").to_string()
    };
    let plain = json!({"use_dora": false});
    assert!(refused(&plain, &factors(q, 4)).contains("has a `lora_magnitude_vector`"));
    assert!(refused(&dora, &factors(q, 4)[..2]).contains("has no `lora_magnitude_vector`"));
    assert!(refused(&dora, &factors(q, 3)).contains("lora_magnitude_vector [d_out]"));
    assert!(refused(&dora, &factors(q, 4)[2..]).contains("has no `lora_A.weight`"));
    let embedding = [
        zeros("model.embed_tokens.lora_embedding_A", &[2, 3]),
        zeros("model.embed_tokens.lora_embedding_B", &[4, 2]),
        zeros("model.embed_tokens.lora_magnitude_vector", &[4]),
    ];
    let keys = json!({"use_dora": true, "target_modules": ["embed_tokens"]});
    assert!(refused(&keys, &embedding).contains("embedding"));
}

#[test]
fn options_that_change_the_computation_are_refused_by_name() {
    let (a, b) = (
        zeros("q_proj.lora_A.weight", &[2, 3]),
        zeros("q_proj.lora_B.weight", &[4, 2]),
    );
    let load = |keys: &Value| PeftAdapter::load(written(keys, &[a.clone(), b.clone()]).path());
    let tolerated = json!({"future_key": {"x": 1}, "bias": "none", "modules_to_save": null,
        "init_lora_weights": "gaussian", "loftq_config": {}, "use_dora": false,
        "megatron_core": "megatron.core", "layer_replication": null, "task_type": null});
    load(&tolerated).unwrap();
    for (key, value) in [
        ("bias", json!("all")),
        ("bias", json!("lora_only")),
        ("modules_to_save", json!(["lm_head"])),
        ("fan_in_fan_out", json!(true)),
        ("lora_bias", json!(true)),
        ("layer_replication", json!([[0, 4], [2, 5]])),
        ("target_parameters", json!(["experts.gate_up_proj"])),
        ("trainable_token_indices", json!([1, 2])),
        ("alora_invocation_tokens", json!([5])),
        ("use_qalora", json!(true)),
        ("kasa_config", json!({"a": 1})),
        ("peft_type", json!("VERA")),
        ("task_type", json!("SEQ_CLS")),
        ("init_lora_weights", json!("pissa")),
        ("init_lora_weights", json!("pissa_niter_4")),
        ("init_lora_weights", json!("olora")),
        ("init_lora_weights", json!("corda")),
        ("init_lora_weights", json!("loftq")),
    ] {
        let error = load(&json!({key: value})).expect_err(key);
        let converts = error.hint().unwrap().contains("path_initial_model");
        assert_eq!(converts, key == "init_lora_weights", "{key}");
        let error = error.to_string();
        assert!(
            error.contains(key) && error.contains(&value.to_string()),
            "{key}: {error}"
        );
        assert!(error.contains("adapter_config.json"), "{error}");
    }
    for (keys, needed) in [
        (json!({"r": 0}), "`r` is 0"),
        (json!({"rank_pattern": {"q_proj": 0}}), "`q_proj` is 0"),
        (
            json!({"rank_pattern": {"(": 1}}),
            "`rank_pattern` has the pattern `(`",
        ),
        (
            json!({"target_modules": "(?=x)"}),
            "`target_modules` has the pattern",
        ),
        (
            json!({"target_modules": null}),
            "`target_modules` is missing",
        ),
        (json!({"target_modules": 3}), "a list of module names"),
        (json!({"lora_dropout": 1.5}), "lora_dropout"),
        (
            json!({"r": "two"}),
            "adapter_config.json: `r` is \"two\", expected a whole number",
        ),
        (
            json!({"rank_pattern": {"q_proj": "two"}}),
            "`rank_pattern.q_proj` is \"two\"",
        ),
        (
            json!({"target_modules": ".*", "layers_to_transform": [0]}),
            "layers_to_transform",
        ),
        (json!({"target_modules": ["v_proj"]}), "does not match it"),
        (
            json!({"rank_pattern": {"q_proj": 3}}),
            "adapter_model.safetensors: `q_proj` has rank 2, the adapter configuration says 3",
        ),
    ] {
        let error = load(&keys).expect_err(needed).to_string();
        assert!(error.contains(needed), "{keys}: {error}");
    }
}

#[test]
fn tensors_that_are_not_an_adapter_are_errors() {
    let a = || zeros("q_proj.lora_A.weight", &[2, 3]);
    let b = || zeros("q_proj.lora_B.weight", &[4, 2]);
    let named = |factor| match factor {
        "a" => zeros("q_proj.lora_A.default.weight", &[2, 3]),
        _ => zeros("q_proj.lora_B.default.weight", &[4, 2]),
    };
    let load = |tensors: &[_]| PeftAdapter::load(written(&json!({}), tensors).path());
    assert_eq!(
        load(&[a(), b()]).unwrap(),
        load(&[named("a"), named("b")]).unwrap()
    );

    let mut nan = b();
    nan.3[4..8].copy_from_slice(&f32::INFINITY.to_le_bytes());
    let mut integers = b();
    integers.1 = Dtype::I32;
    for (what, tensors) in [
        ("no `lora_B.weight`", vec![a()]),
        ("no `lora_A.weight`", vec![b()]),
        ("no LoRA weights", vec![]),
        (
            "lora_B [4, 3]",
            vec![a(), zeros("q_proj.lora_B.weight", &[4, 3])],
        ),
        ("lora_A [6]", vec![zeros("q_proj.lora_A.weight", &[6]), b()]),
        (
            "lora_A [0, 3]",
            vec![
                zeros("q_proj.lora_A.weight", &[0, 3]),
                zeros("q_proj.lora_B.weight", &[4, 0]),
            ],
        ),
        ("value inf in `lora_B` at element 1", vec![a(), nan]),
        ("is I32, expected one of", vec![a(), integers]),
        (
            "no `lora_embedding_B`",
            vec![
                a(),
                b(),
                zeros("model.embed_tokens.lora_embedding_A", &[2, 3]),
            ],
        ),
        (
            "lora_magnitude_vector",
            vec![a(), b(), zeros("q_proj.lora_magnitude_vector.weight", &[4])],
        ),
        (
            "lora_B.bias",
            vec![a(), b(), zeros("q_proj.lora_B.bias", &[4])],
        ),
        (
            "lm_head.weight",
            vec![a(), b(), zeros("lm_head.weight", &[4, 3])],
        ),
        ("lora_B.weight", vec![named("a"), b()]),
    ] {
        let error = load(&tensors).expect_err(what).to_string();
        assert!(error.contains(what), "{what}: {error}");
    }
}

#[test]
fn missing_and_damaged_files_are_told_apart() {
    let directory = written(&json!({}), &[]);
    let path = |file: &str| directory.path().join(file);
    fs::write(path("adapter_model.safetensors"), b"junk").unwrap();
    let error = PeftAdapter::load(directory.path()).unwrap_err();
    assert!(matches!(error, ModelError::Safetensors { .. }), "{error}");
    fs::write(
        path("adapter_model.safetensors"),
        "version https://git-lfs.github.com/spec/v1\n",
    )
    .unwrap();
    let error = PeftAdapter::load(directory.path()).unwrap_err();
    assert!(matches!(error, ModelError::LfsPointer { .. }), "{error}");
    fs::rename(path("adapter_model.safetensors"), path("adapter_model.bin")).unwrap();
    let error = PeftAdapter::load(directory.path()).unwrap_err();
    assert!(
        matches!(error, ModelError::PickleOnly { .. }) && error.hint().is_some(),
        "{error}"
    );
    fs::remove_file(path("adapter_config.json")).unwrap();
    let error = PeftAdapter::load(directory.path()).unwrap_err();
    assert!(matches!(error, ModelError::Read { .. }), "{error}");
}

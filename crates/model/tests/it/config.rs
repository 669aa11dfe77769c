//! `config.json` against what transformers makes of it.

use std::path::PathBuf;

use loraloom_model::{
    Architecture, LayerRotation, LlamaConfig, ModelError, Multipliers, RopeScaling, TensorDtype,
    parameter_shapes,
};
use serde_json::{Value, json};

fn base() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 64,
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4
    })
}

fn with(keys: &Value) -> String {
    let mut config = base();
    for (key, value) in keys.as_object().expect("an object") {
        config[key] = value.clone();
    }
    config.to_string()
}

#[test]
fn resolves_as_transformers_does() {
    let cases: Vec<Value> = serde_json::from_str(include_str!("../fixtures/configs.json")).unwrap();
    assert!(cases.len() > 10);
    for case in &cases {
        // Written by hand, and as transformers 5 writes the same configuration.
        for written in ["config", "saved"] {
            let name = format!("{} ({written})", case["name"]);
            let config = LlamaConfig::from_json(&case[written].to_string()).unwrap();
            assert_eq!(
                config.num_key_value_heads, case["num_key_value_heads"],
                "{name}"
            );
            assert_eq!(config.head_dim, case["head_dim"], "{name}");
            assert_eq!(
                config.max_position_embeddings, case["max_position_embeddings"],
                "{name}"
            );
            assert_eq!(
                config.tie_word_embeddings, case["tie_word_embeddings"],
                "{name}"
            );
            assert_eq!(json!(config.rms_norm_eps), case["rms_norm_eps"], "{name}");
            assert_eq!(json!(config.rope.theta), case["rope_theta"], "{name}");
            assert_eq!(config.rope.scaling, RopeScaling::Default, "{name}");
            assert_eq!(
                json!(config.sliding_window),
                case["sliding_window"],
                "{name}"
            );
            let rotated = config
                .rotations
                .iter()
                .map(|one| *one != LayerRotation::None);
            assert_eq!(
                json!(rotated.collect::<Vec<_>>()),
                case["rotated"],
                "{name}"
            );
            assert_eq!(json!(config.rope.rotary_dim), case["rotary_dim"], "{name}");
            let local = config.local_rope.as_ref().map(|rope| rope.theta);
            assert_eq!(json!(local), case["local_theta"], "{name}");
            let is_local = |layer: &LayerRotation| *layer == LayerRotation::Local;
            let layers: Vec<_> = config.rotations.iter().map(is_local).collect();
            assert_eq!(json!(layers), case["local_layers"], "{name}");
            let softcaps = [config.attention_softcap, config.logit_softcap];
            assert_eq!(json!(softcaps), case["softcaps"], "{name}");
            let Multipliers {
                embedding,
                residual,
                logits,
            } = config.multipliers;
            let of_heads = 1.0 / (config.head_dim as f64).sqrt();
            let of_scores = config.score_scale.unwrap_or(of_heads);
            for (found, key) in [
                (embedding.unwrap_or(1.0), "embedding_multiplier"),
                (of_scores, "score_scale"),
                (residual.unwrap_or(1.0), "residual_multiplier"),
                (1.0 / logits.unwrap_or(1.0), "logits_scaling"),
            ] {
                let expected = case[key].as_f64().unwrap();
                assert!(
                    (found / expected - 1.0).abs() < 1e-12,
                    "{name}, {key}: {found}"
                );
            }
            assert_eq!(json!(config.bos_token_id), case["bos_token_id"], "{name}");
            assert_eq!(json!(config.eos_token_ids), case["eos_token_ids"], "{name}");
            let dtype = config.dtype.map(|dtype| dtype.to_string());
            assert_eq!(json!(dtype), case["dtype"], "{name}");
            let shapes: serde_json::Map<String, Value> = parameter_shapes(&config)
                .into_iter()
                .map(|(name, shape)| (name, json!(shape)))
                .collect();
            assert_eq!(Value::Object(shapes), case["shapes"], "{name}");
        }
    }
}

#[test]
fn older_rope_keys_and_dtype_are_read() {
    let config = with(&json!({
        "torch_dtype": "bfloat16", "rope_theta": 500_000.0, "max_position_embeddings": 131_072,
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    }));
    let config = LlamaConfig::from_json(&config).unwrap();
    assert_eq!(config.architecture, Architecture::Llama);
    assert_eq!(config.dtype, Some(TensorDtype::Bfloat16));
    assert_eq!(
        config.rope.scaling,
        RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 8192
        }
    );
    let ratio = with(&json!({
        "max_position_embeddings": 128,
        "rope_scaling": {"type": "yarn", "factor": null, "original_max_position_embeddings": 32}
    }));
    let scaling = LlamaConfig::from_json(&ratio).unwrap().rope.scaling;
    let RopeScaling::Yarn { factor, .. } = scaling else {
        panic!("{scaling:?}")
    };
    assert!((factor - 4.0).abs() < 1e-12, "{factor}");
}

/// Training can say what of the file it leaves out.
#[test]
fn dropout_of_the_model_is_known() {
    let both = json!({"attention_dropout": 0.1, "resid_pdrop": 0.2, "embd_pdrop": 0.3});
    let of = |keys: &Value| LlamaConfig::from_json(&with(keys)).unwrap().dropout;
    assert_eq!(of(&both), [("attention_dropout", 0.1)]);
    let mut phi = both;
    phi["architectures"] = json!(["Phi3ForCausalLM"]);
    phi["model_type"] = json!("phi3");
    let found = [("attention_dropout", 0.1), ("resid_pdrop", 0.2)];
    assert_eq!(of(&phi), found);
    assert_eq!(
        of(&json!({"attention_dropout": 0.0, "resid_pdrop": null})),
        []
    );
}

#[test]
fn what_would_be_computed_wrongly_is_refused_by_name() {
    let heads = json!({"num_attention_heads": 3});
    for (keys, needed) in [
        (
            json!({"architectures": ["GemmaForCausalLM"]}),
            "GemmaForCausalLM",
        ),
        (
            json!({"architectures": ["LlamaForSequenceClassification"]}),
            "SequenceClassification",
        ),
        (
            json!({"architectures": [], "model_type": "mixtral"}),
            "mixtral",
        ),
        (
            json!({"model_type": "mistral"}),
            "`model_type` says `mistral`",
        ),
        (json!({"hidden_act": "gelu"}), "gelu"),
        (
            json!({"quantization_config": {"quant_method": "gptq", "bits": 3}}),
            "quantization_config.bits",
        ),
        (
            json!({"partial_rotary_factor": 0.5}),
            "partial_rotary_factor",
        ),
        (
            json!({"rope_parameters": {"partial_rotary_factor": 0.5}}),
            "partial_rotary_factor",
        ),
        (
            json!({"rope_scaling": {"type": "longrope"}}),
            "`short_factor` is missing",
        ),
        (
            json!({"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}}),
            "`short_factor` has 1 numbers, expected 8",
        ),
        (json!({"rope_scaling": {"rope_type": "su"}}), "`su`"),
        (
            json!({"rope_scaling": {"type": "linear"}}),
            "`factor` is missing",
        ),
        (
            json!({"rope_scaling": {"type": "dynamic", "factor": null}}),
            "`factor` is missing",
        ),
        (
            json!({"rope_scaling": {"type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}}),
            "`factor` is missing",
        ),
        (
            json!({"rope_parameters": {"rope_type": "yarn", "original_max_position_embeddings": 32}}),
            "`factor` is missing",
        ),
        (
            json!({"rope_scaling": {"type": "linear", "factor": 0.0}}),
            "`factor` is 0",
        ),
        (
            json!({"rope_parameters": {"full_attention": {"rope_type": "default"}}}),
            "layer type",
        ),
        (json!({"dtype": "int8"}), "int8"),
        (heads, "is 64, not a multiple of num_attention_heads 3"),
        (
            json!({"num_key_value_heads": 3}),
            "is 4, not a multiple of num_key_value_heads 3",
        ),
        (json!({"head_dim": 15}), "is 15"),
        (json!({"hidden_size": 0}), "`hidden_size` is 0"),
        (json!({"hidden_size": null}), "`hidden_size` is missing"),
        (
            json!({"num_hidden_layers": 1_000_000_000}),
            "more than 4096",
        ),
        (
            json!({"vocab_size": u64::MAX}),
            "`vocab_size` is 18446744073709551615",
        ),
        (json!({"rms_norm_eps": -1.0}), "rms_norm_eps"),
        (json!({"rope_theta": 0.0}), "rope_theta"),
        (
            json!({"eos_token_id": "</s>"}),
            "a token id or a list of token ids",
        ),
    ] {
        let message = LlamaConfig::from_json(&with(&keys))
            .expect_err("accepted")
            .to_string();
        assert!(message.contains(needed), "{keys}: {message}");
    }
    let unsupported = LlamaConfig::from_json(&with(&json!({"architectures": ["X"]}))).unwrap_err();
    assert!(unsupported.hint().unwrap().contains("Qwen3ForCausalLM"));
}

#[test]
fn wrong_types_and_nulls_are_refused_by_key() {
    let granite = |key: &str| json!({"architectures": ["GraniteForCausalLM"], "model_type": "granite", key: null});
    let no_rope = |layers: Value| {
        json!({"architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3",
            "no_rope_layers": layers})
    };
    for (keys, needed) in [
        (
            json!({"vocab_size": "many"}),
            "`vocab_size` is \"many\", expected a whole number",
        ),
        (
            json!({"rope_scaling": {"type": "linear", "factor": [2]}}),
            "`rope_scaling.factor` is [2], expected a number",
        ),
        (
            json!({"rope_scaling": "yarn"}),
            "`rope_scaling` is \"yarn\", expected a mapping",
        ),
        (
            json!({"rope_theta": null}),
            "`rope_theta` is null, expected a number",
        ),
        (
            json!({"rope_parameters": {"rope_theta": null}}),
            "`rope_parameters.rope_theta` is null",
        ),
        (
            json!({"tie_word_embeddings": null}),
            "`tie_word_embeddings` is null",
        ),
        (
            granite("embedding_multiplier"),
            "`embedding_multiplier` is null",
        ),
        (
            granite("attention_multiplier"),
            "`attention_multiplier` is null",
        ),
        (
            granite("residual_multiplier"),
            "`residual_multiplier` is null",
        ),
        (granite("logits_scaling"), "`logits_scaling` is null"),
        (
            no_rope(json!([1, 2])),
            "`no_rope_layers` has 2, expected 0 or 1",
        ),
        (
            no_rope(json!([1])),
            "`no_rope_layers` has 1 entries for 2 layers",
        ),
        (
            no_rope(json!([1, -1])),
            "`no_rope_layers` is [1,-1], expected 0 or 1",
        ),
    ] {
        let message = LlamaConfig::from_json(&with(&keys))
            .expect_err("accepted")
            .to_string();
        assert!(message.contains(needed), "{keys}: {message}");
    }
}

#[test]
fn gemma3_scales_its_global_layers_only() {
    let of = |keys: Value| {
        let mut config = json!({"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text",
            "sliding_window_pattern": 2});
        for (key, value) in keys.as_object().expect("an object") {
            config[key] = value.clone();
        }
        LlamaConfig::from_json(&with(&config))
    };
    let linear = json!({"rope_type": "linear", "factor": 8.0});
    let config = of(json!({"rope_scaling": linear})).unwrap();
    assert_eq!(config.rope.scaling, RopeScaling::Linear { factor: 8.0 });
    let local = config.local_rope.unwrap();
    assert_eq!(
        (local.scaling, json!(local.theta)),
        (RopeScaling::Default, json!(1e4))
    );
    // What is not nested is no parameter of either kind of layer.
    let config = of(json!({"rope_parameters": linear})).unwrap();
    assert_eq!(config.rope.scaling, RopeScaling::Default);
    let nested =
        json!({"sliding_attention": {"rope_theta": 7.0}, "full_attention": {"rope_theta": 9.0}});
    let config = of(json!({"rope_scaling": linear, "rope_parameters": nested})).unwrap();
    assert_eq!(
        json!([config.rope.theta, config.local_rope.unwrap().theta]),
        json!([9.0, 7.0])
    );
    for (keys, needed) in [
        (json!({"hidden_activation": "gelu"}), "`hidden_activation`"),
        (
            json!({"use_bidirectional_attention": true}),
            "use_bidirectional_attention",
        ),
        (json!({"query_pre_attn_scalar": 0}), "query_pre_attn_scalar"),
        (
            json!({"query_pre_attn_scalar": null}),
            "`query_pre_attn_scalar` is null",
        ),
        (
            json!({"rope_local_base_freq": 0}),
            "`rope_local_base_freq` is 0, expected a number above 1",
        ),
        (
            json!({"rope_local_base_freq": null}),
            "`rope_local_base_freq` is null",
        ),
        (
            json!({"attn_logit_softcapping": -1.0}),
            "attn_logit_softcapping",
        ),
        (
            json!({"final_logit_softcapping": 0.0}),
            "final_logit_softcapping",
        ),
        (
            json!({"sliding_window_pattern": 0}),
            "sliding_window_pattern",
        ),
    ] {
        let message = of(keys.clone()).expect_err("accepted").to_string();
        assert!(message.contains(needed), "{keys}: {message}");
    }
}

#[test]
fn phi3_has_longrope_under_its_older_names() {
    let of = |rope: Value, keys: Value| {
        let mut config = json!({"architectures": ["Phi3ForCausalLM"], "model_type": "phi3",
            "max_position_embeddings": 131_072, "attention_bias": true});
        for (key, value) in keys.as_object().expect("an object") {
            config[key] = value.clone();
        }
        config["rope_scaling"] = rope;
        LlamaConfig::from_json(&with(&config))
    };
    let factors = |name: &str| json!({"type": name, "short_factor": vec![1.5; 8], "long_factor": vec![2.5; 8]});
    for name in ["su", "yarn", "longrope"] {
        let config = of(factors(name), json!({})).unwrap();
        // It has no such key.
        assert!(config.fused && !config.qkv_bias && !config.output_bias);
        let RopeScaling::LongRope {
            short_factor,
            long_factor,
            attention_factor,
            original_max_position_embeddings,
        } = config.rope.scaling
        else {
            panic!("{name} is {:?}", config.rope.scaling);
        };
        assert_eq!(json!([short_factor[0], long_factor[7]]), json!([1.5, 2.5]));
        assert_eq!(original_max_position_embeddings, 4096);
        let expected = (1.0 + 32f64.ln() / 4096f64.ln()).sqrt();
        assert!((attention_factor - expected).abs() < 1e-12);
    }
    for (key, value, expected) in [
        ("factor", 4.0, (1.0 + 4f64.ln() / 4096f64.ln()).sqrt()),
        ("attention_factor", 1.25, 1.25),
    ] {
        let mut rope = factors("longrope");
        rope[key] = json!(value);
        let RopeScaling::LongRope {
            attention_factor, ..
        } = of(rope, json!({})).unwrap().rope.scaling
        else {
            panic!("another scaling");
        };
        assert!((attention_factor - expected).abs() < 1e-12, "{key}");
    }
    let mut unnamed = factors("longrope");
    unnamed["type"] = Value::Null;
    let unnamed = of(unnamed, json!({})).unwrap_err().to_string();
    assert!(unnamed.contains("`rope_type` is missing"), "{unnamed}");
    let mut zero = factors("longrope");
    zero["factor"] = json!(0);
    let zero = of(zero, json!({})).unwrap_err().to_string();
    assert!(zero.contains("`factor` is 0"), "{zero}");
    let odd = of(Value::Null, json!({"partial_rotary_factor": 0.6})).unwrap_err();
    assert!(odd.to_string().contains("partial_rotary_factor"), "{odd}");
}

#[test]
fn windows_that_contradict_the_layers_are_refused() {
    let qwen = json!({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2",
        "num_key_value_heads": 2});
    for (keys, needed) in [
        (
            json!({"layer_types": ["full_attention"]}),
            "has 1 entries for 2 layers",
        ),
        (
            json!({"layer_types": ["full_attention", "sliding_attention"]}),
            "layer 1",
        ),
        (
            json!({"layer_types": ["full_attention", "linear_attention"]}),
            "linear_attention",
        ),
        (
            json!({"use_sliding_window": true, "sliding_window": 0}),
            "`sliding_window` is 0",
        ),
    ] {
        let mut all = qwen.clone();
        all.as_object_mut()
            .unwrap()
            .append(&mut keys.as_object().unwrap().clone());
        let message = LlamaConfig::from_json(&with(&all))
            .expect_err("accepted")
            .to_string();
        assert!(message.contains(needed), "{keys}: {message}");
    }
    let alternating = json!({"architectures": ["MistralForCausalLM"], "model_type": "mistral",
        "num_key_value_heads": 4, "sliding_window": 8,
        "layer_types": ["full_attention", "sliding_attention"]});
    let error = LlamaConfig::from_json(&with(&alternating)).unwrap_err();
    assert!(error.to_string().contains("full_attention"), "{error}");
}

#[test]
fn a_directory_says_which_file_is_wrong() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("config.json");
    let error = LlamaConfig::from_directory(directory.path()).unwrap_err();
    assert!(matches!(error, ModelError::Read { .. }), "{error}");
    assert!(error.hint().unwrap().contains("config.json"));

    std::fs::write(&path, "{").unwrap();
    let error = LlamaConfig::from_directory(directory.path()).unwrap_err();
    assert!(
        error.to_string().contains("config.json: invalid JSON"),
        "{error}"
    );

    std::fs::write(
        &path,
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
    )
    .unwrap();
    let error = LlamaConfig::from_directory(directory.path()).unwrap_err();
    assert!(matches!(error, ModelError::LfsPointer { .. }), "{error}");

    let adapter = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/adapters/plain");
    let error = LlamaConfig::from_directory(&adapter).unwrap_err();
    assert!(matches!(error, ModelError::AdapterAsBase { .. }), "{error}");
}

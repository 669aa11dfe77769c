//! Checkpoints that other tools have quantised, against their own code, which `tests/fixtures/make_quantized.py` asked.

use std::{fs, path::Path};

use batchlora::Nf4;
use burn::tensor::FloatDType;
use loraloom_model::{
    Backbone, Checkpoint, LlamaConfig, ModelError, Projection, Quantization, TensorDtype, cost,
};
use safetensors::{Dtype, SafeTensors, serialize_to_file, tensor::TensorView};
use tempfile::TempDir;

use crate::decoder::{
    logits::forward,
    support::{device, fixture, host},
};

const IDS: [u32; 8] = [1, 7, 30, 7, 20, 5, 60, 9];

/// Directories of the fixtures, by name.
fn all() -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(fixture("quantized")).expect("fixtures");
    let mut found: Vec<_> = entries
        .map(|entry| entry.expect("an entry").path())
        .collect();
    found.sort();
    assert_eq!(found.len(), 15, "{found:?}");
    found
}

fn load(directory: &Path, config: &LlamaConfig) -> Backbone {
    let checkpoint = Checkpoint::open(directory).expect("a checkpoint");
    checkpoint
        .verify(config)
        .expect("as its configuration says");
    Backbone::load(&checkpoint, config, 0..1, FloatDType::F32, &device()).expect("a backbone")
}

/// Weights to the bit, and logits as of transformers over them.
#[test]
fn weights_have_the_values_that_the_tools_compute() {
    for directory in all() {
        let what = directory.display();
        let config = LlamaConfig::from_directory(&directory).expect("a configuration");
        let model = load(&directory, &config);
        let bytes = fs::read(directory.join("dequantized.safetensors")).expect("a file");
        let file = SafeTensors::deserialize(&bytes).expect("safetensors");
        let mut compared = 0;
        for projection in Projection::applied(false) {
            let name = format!("{}.weight", projection.module(0));
            let Ok(expected) = file.tensor(&name) else {
                continue;
            };
            let found = model.weight(&model.layers()[0], *projection);
            let found = host(found.expect("a weight").transpose());
            assert_eq!(found.len(), expected.shape().iter().product::<usize>());
            let size = expected.dtype().bitsize() / 8;
            for (at, (found, word)) in found.iter().zip(expected.data().chunks(size)).enumerate() {
                let expected = match expected.dtype() {
                    Dtype::BF16 => half::bf16::from_le_bytes([word[0], word[1]]).to_f32(),
                    Dtype::F16 => half::f16::from_le_bytes([word[0], word[1]]).to_f32(),
                    _ => f32::from_le_bytes([word[0], word[1], word[2], word[3]]),
                };
                assert!(
                    (found - expected).abs() <= 0.0,
                    "{what}, {name} at {at}: {found} {expected}"
                );
            }
            compared += 1;
        }
        assert_eq!(compared, 2, "{what}");
        let expected = file.tensor("logits").expect("logits");
        let (words, _) = expected.data().as_chunks();
        let expected = words.iter().map(|word| f32::from_le_bytes(*word));
        let found = forward(&[model], &config, &[&IDS]);
        assert_eq!(found.len(), IDS.len() * config.vocab_size);
        for (found, expected) in found.iter().zip(expected) {
            assert!(
                (found - expected).abs() <= 1e-5 * (1.0 + expected.abs()),
                "{what}: {found} {expected}"
            );
        }
    }
}

/// The key `quantization` stores the dense weights in NF4: those of the type that they had in the file.
#[test]
fn weights_can_be_quantised_again() {
    for directory in all() {
        let what = directory.display();
        let config = LlamaConfig::from_directory(&directory).expect("a configuration");
        let dtype = config.dtype.expect("a type");
        let dense = load(&directory, &config);
        let quantization = Quantization {
            double_quant: true,
            skip: Vec::new(),
        };
        let config = config.with_quantization(quantization).expect("not in NF4");
        let quantized = load(&directory, &config);
        assert!(
            quantized.weight_bytes() < dense.weight_bytes() / 2,
            "{what}"
        );
        for projection in [Projection::K, Projection::Down] {
            let [dense, quantized] = [&dense, &quantized].map(|model| {
                let weight = model.weight(&model.layers()[0], projection);
                weight.expect("a weight").transpose()
            });
            let (shape, values) = (dense.dims(), host(dense));
            let dtype = if dtype == TensorDtype::Float16 {
                FloatDType::F16
            } else {
                FloatDType::BF16
            };
            let expected = Nf4::quantize(&values, shape, dtype, true).dequantize();
            assert!(host(quantized) == expected, "{what}: {projection:?}");
        }
    }
}

const LAYER: &str = "model.layers.0.mlp.down_proj";

/// Name, type, shape and bytes.
type Stored = (String, Dtype, Vec<usize>, Vec<u8>);

/// A copy of a fixture whose tensors are changed, and its configuration.
fn changed(name: &str, change: impl Fn(&mut Vec<Stored>)) -> (TempDir, LlamaConfig) {
    let (source, copy) = (
        fixture("quantized").join(name),
        TempDir::new().expect("a directory"),
    );
    fs::copy(source.join("config.json"), copy.path().join("config.json")).expect("a copy");
    let bytes = fs::read(source.join("model.safetensors")).expect("a file");
    let file = SafeTensors::deserialize(&bytes).expect("safetensors");
    let tensors = file.tensors().into_iter();
    let mut tensors: Vec<Stored> = tensors
        .map(|(name, view)| {
            let (shape, bytes) = (view.shape().to_vec(), view.data().to_vec());
            (name, view.dtype(), shape, bytes)
        })
        .collect();
    change(&mut tensors);
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        let view = TensorView::new(*dtype, shape.clone(), bytes).expect("a tensor");
        (name.clone(), view)
    });
    serialize_to_file(views, None, &copy.path().join("model.safetensors")).expect("written");
    let config = LlamaConfig::from_directory(copy.path()).expect("a configuration");
    (copy, config)
}

/// The error of a fixture with a tensor that is changed or, with `None`, taken out.
fn damaged(
    name: &str,
    tensor: &str,
    change: impl Fn(Vec<usize>, Vec<u8>) -> Option<(Vec<usize>, Vec<u8>)>,
) -> ModelError {
    let (copy, config) = changed(name, |tensors| {
        let at = tensors.iter().position(|one| one.0 == tensor);
        let at = at.expect("a tensor of the fixture");
        let (key, dtype, shape, bytes) = tensors.remove(at);
        tensors.extend(change(shape, bytes).map(|(shape, bytes)| (key, dtype, shape, bytes)));
    });
    let checkpoint = Checkpoint::open(copy.path()).expect("a checkpoint");
    checkpoint.verify(&config).expect_err("refused")
}

#[test]
fn parts_that_contradict_each_other_are_refused_with_tensor_and_reason() {
    let part = |ending: &str| format!("{LAYER}.{ending}");
    let gone = |_, _| None;
    let shorter = |mut shape: Vec<usize>, mut bytes: Vec<u8>| {
        let row = bytes.len() / shape[0];
        shape[0] -= 1;
        bytes.truncate(bytes.len() - row);
        Some((shape, bytes))
    };
    let first = |value: u8| {
        move |shape, mut bytes: Vec<u8>| {
            bytes[0] = value;
            Some((shape, bytes))
        }
    };
    let cases = [
        (
            damaged("fp8-block", &part("weight_scale_inv"), gone),
            "`weight_scale_inv` is missing",
        ),
        (
            damaged("fp8-block", &part("weight_scale_inv"), shorter),
            "`weight_scale_inv` has the shape [1, 3]",
        ),
        (
            damaged("fp8-block", &part("weight"), shorter),
            "its shape is [191, 320], not [192, 320]",
        ),
        (
            damaged("ct-w8a8", &part("weight_scale"), shorter),
            "`weight_scale` has the shape [191, 1]",
        ),
        (
            damaged("bnb-int8", &part("SCB"), shorter),
            "`SCB` has the shape [191]",
        ),
        (
            damaged("ct-w4a16", &part("weight_shape"), gone),
            "`weight_shape` is missing",
        ),
        (
            damaged("ct-w4a16", &part("weight_shape"), first(1)),
            "`weight_shape` is [1, 320], not [192, 320]",
        ),
        (
            damaged("ct-w4a16", &part("weight_packed"), shorter),
            "`weight_packed` is I32 [191, 40], not I32 [192, 40]",
        ),
        (
            damaged("ct-w4a16-asym", &part("weight_zero_point"), shorter),
            "`weight_zero_point` is I32 [23, 5], not I32 [24, 5]",
        ),
        (
            damaged("gptq-sym", &part("qzeros"), gone),
            "`qzeros` is missing",
        ),
        (
            damaged("gptq-sym", &part("qweight"), shorter),
            "codes of 4 or 8 bits do not fill",
        ),
        (
            damaged("gptq-sym", &part("g_idx"), first(99)),
            "`g_idx` names a group that does not exist",
        ),
        (
            damaged("awq", &part("scales"), shorter),
            "`qzeros` is I32 [5, 24], not I32 [4, 24]",
        ),
        (
            damaged("awq", &part("qweight"), shorter),
            "`qweight` is [319, 24], which is not of [192, 320]",
        ),
    ];
    for (error, expected) in cases {
        let text = error.to_string();
        assert!(text.contains(expected), "{text} has not: {expected}");
        assert!(text.contains(LAYER), "{text}");
        assert!(error.hint().is_some(), "{text}");
    }
}

/// `config.json` says whether weights are quantised, and a weight in floating point has no scales.
#[test]
fn configuration_and_weights_must_agree() {
    let verify = |directory: &Path, config: &LlamaConfig| {
        let checkpoint = Checkpoint::open(directory).expect("a checkpoint");
        checkpoint.verify(config).map_err(|error| error.to_string())
    };
    let directory = fixture("quantized").join("gptq-sym");
    let mut config = LlamaConfig::from_directory(&directory).expect("a configuration");
    let stored = config.stored.take();
    let error = verify(&directory, &config).expect_err("refused");
    assert!(error.contains("has no `quantization_config`"), "{error}");

    let mut float = LlamaConfig::from_directory(&fixture("llama-gqa")).expect("a configuration");
    float.stored = stored;
    let error = verify(&fixture("llama-gqa"), &float).expect_err("refused");
    assert!(
        error.contains("of GPTQ, and no weight is stored so"),
        "{error}"
    );

    let (copy, config) = changed("fp8-block", |tensors| {
        let weight = tensors
            .iter_mut()
            .find(|one| one.0 == format!("{LAYER}.weight"));
        let (_, dtype, _, bytes) = weight.expect("a weight");
        *dtype = Dtype::BF16;
        *bytes = vec![0; 2 * bytes.len()];
    });
    let error = verify(copy.path(), &config).expect_err("refused");
    assert!(
        error.contains("in floating point, and there are parts"),
        "{error}"
    );

    // Scales of a cache are known, and so are biases of zeros; weights of layers that do not exist are not.
    let added = |name: &str, dtype, bytes: Vec<u8>| {
        let (copy, config) = changed("fp8-block", |tensors| {
            let shape = vec![bytes.len() / dtype_size(dtype)];
            tensors.push((name.to_owned(), dtype, shape, bytes.clone()));
        });
        verify(copy.path(), &config)
    };
    added("model.layers.0.self_attn.k_scale", Dtype::F32, vec![1; 4]).expect("known");
    added(
        "model.layers.0.self_attn.q_proj.bias",
        Dtype::BF16,
        vec![0; 384],
    )
    .expect("zeros");
    for (name, bytes) in [
        ("model.layers.0.self_attn.q_proj.bias", vec![1; 384]),
        ("model.layers.1.mlp.down_proj.weight_scale_inv", vec![0; 4]),
    ] {
        let error = added(name, Dtype::BF16, bytes).expect_err("refused");
        assert!(error.contains(name), "{error}");
    }
}

fn dtype_size(dtype: Dtype) -> usize {
    dtype.bitsize() / 8
}

/// A file must have the groups and zero points that its configuration names, and NF4 where that says NF4.
#[test]
fn parts_that_the_file_promises_are_required() {
    for (name, ending) in [
        ("gptq-desc-act", "g_idx"),
        ("ct-w4a16-g-idx", "weight_g_idx"),
        ("ct-w4a16-asym", "weight_zero_point"),
    ] {
        let error = damaged(name, &format!("{LAYER}.{ending}"), |_, _| None).to_string();
        assert!(error.contains(&format!("`{ending}` is missing")), "{error}");
    }
    // Without activation ordering the groups follow each other.
    let (copy, config) = changed("gptq-sym", |tensors| {
        tensors.retain(|one| !one.0.ends_with("g_idx"));
    });
    load(copy.path(), &config);

    let nf4 = LlamaConfig::from_directory(&fixture("nf4/llama-gqa")).expect("a configuration");
    let verify = |name: &str, stored: &LlamaConfig| {
        let directory = fixture(name);
        let mut config = LlamaConfig::from_directory(&directory).expect("a configuration");
        config.stored.clone_from(&stored.stored);
        config.quantization.clone_from(&stored.quantization);
        let checkpoint = Checkpoint::open(&directory).expect("a checkpoint");
        checkpoint.verify(&config).expect_err("refused").to_string()
    };
    let error = verify("quantized/fp8-block", &nf4);
    assert!(error.contains("it is not in NF4, as"), "{error}");
    let fp8 = LlamaConfig::from_directory(&fixture("quantized/fp8-block"));
    let error = verify("nf4/llama-gqa", &fp8.expect("a configuration"));
    assert!(
        error.contains("it is in NF4, and `quantization_config` says otherwise"),
        "{error}"
    );
}

/// A layer that bitsandbytes left in floating point stays so, whatever names the file has for such layers.
#[test]
fn layers_in_floating_point_of_an_nf4_model_stay_so() {
    let directory = fixture("llama-gqa");
    let mut config = LlamaConfig::from_directory(&directory).expect("a configuration");
    let bytes = |config: &LlamaConfig| {
        let checkpoint = Checkpoint::open(&directory).expect("a checkpoint");
        let model = Backbone::load(&checkpoint, config, 0..2, FloatDType::F32, &device());
        model.expect("a backbone").weight_bytes()
    };
    let float = bytes(&config);
    let nf4 = LlamaConfig::from_directory(&fixture("nf4/llama-gqa")).expect("a configuration");
    config.quantization = nf4.quantization;
    assert!(bytes(&config) < float);
    config.stored = nf4.stored;
    assert_eq!(bytes(&config), float);
}

/// Every byte of a quantised model counts for its digest.
#[test]
fn parts_are_in_the_digest() {
    let digest = |ending: &str, byte: u8| {
        let (copy, config) = changed("gptq-sym", |tensors| {
            let part = tensors
                .iter_mut()
                .find(|one| one.0 == format!("{LAYER}.{ending}"));
            part.expect("a part").3[0] ^= byte;
        });
        let checkpoint = Checkpoint::open(copy.path()).expect("a checkpoint");
        checkpoint.digest(&config).expect("a digest")
    };
    let same = digest("scales", 0);
    assert_eq!(digest("qzeros", 0), same);
    for ending in ["qweight", "qzeros", "scales"] {
        assert_ne!(digest(ending, 1), same, "{ending}");
    }
}

#[test]
fn other_formats_are_refused_by_name() {
    for (method, key, value) in [
        ("hqq", "quant_method", "\"hqq\""),
        ("gptq", "bits", "3"),
        ("gptq", "checkpoint_format", "\"gptq_v2\""),
        ("awq", "version", "\"gemv\""),
        ("awq", "format", "\"gemv_fast\""),
        ("compressed-tensors", "format", "\"nvfp4-pack-quantized\""),
        (
            "compressed-tensors",
            "sparsity_config",
            "{\"format\":\"sparse-24-bitmask\"}",
        ),
        (
            "compressed-tensors",
            "transform_config",
            "{\"config_groups\":{}}",
        ),
        ("fp8", "weight_block_size", "[0, 128]"),
    ] {
        let mut json: serde_json::Value = serde_json::from_slice(
            &fs::read(fixture("llama-gqa").join("config.json")).expect("a file"),
        )
        .expect("JSON");
        json["quantization_config"] = serde_json::json!({"quant_method": method});
        json["quantization_config"][key] = serde_json::from_str(value).expect("JSON");
        let error = LlamaConfig::from_json(&json.to_string()).expect_err("refused");
        let expected = format!("`quantization_config.{key}` = {}", value.replace(' ', ""));
        assert!(error.to_string().contains(&expected), "{error}");
    }
}

/// As older files say that nothing is sparse.
#[test]
fn dense_models_of_compressed_tensors_may_say_so() {
    let path = fixture("quantized").join("ct-w4a16/config.json");
    let text = fs::read_to_string(path).expect("a file");
    let mut json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    json["quantization_config"]["sparsity_config"] =
        serde_json::json!({"format": "dense", "global_sparsity": 0.1, "ignore": []});
    let config = LlamaConfig::from_json(&json.to_string()).expect("a configuration");
    let stored = config.stored.expect("quantised");
    assert_eq!(stored.name, "compressed-tensors");
    assert_eq!(stored.group_sizes, [64]);
}

/// The sum over the shapes of Llama-3.1-8B: half a byte, an eighth of that in scales of 8 bits, and some numbers a weight.
#[test]
fn a_large_output_projection_is_counted_in_nf4_with_a_copy_of_a_part() {
    let config = LlamaConfig::named("llama-3.1-8b").expect("a shape");
    let bytes = |skip: &[&str]| {
        let quantization = Quantization {
            double_quant: true,
            skip: skip.iter().map(|&name| name.to_owned()).collect(),
        };
        let config = config.clone().with_quantization(quantization);
        let config = config.expect("layers");
        let all = 0..config.num_hidden_layers;
        let copy = cost::dense_copy_bytes(&config, &all, 2);
        (cost::weight_bytes(&config, &all, 2), copy)
    };
    let head = 128_256 * 4096;
    let (weights, copy) = bytes(&["lm_head"]);
    assert_eq!(copy, 14_336 * 4096 * 2);
    let (smaller, part) = bytes(&[]);
    let scales = head / 64 + head / 64 / 256 * 4 + (16 + 257) * 4;
    assert_eq!(weights - smaller, head * 2 - head / 2 - scales);
    assert!(smaller < 5_000_000_000, "{smaller}");
    // An eighth of its rows, in whole blocks.
    assert_eq!(part, 16_064 * 4096 * 2);
}

#[test]
fn names_of_layers_to_skip_are_whole_parts_of_paths() {
    let covers = |skip: &str, module: &str| {
        let quantization = Quantization {
            double_quant: true,
            skip: vec![skip.to_owned()],
        };
        quantization.covers(module)
    };
    let module = "model.layers.10.mlp.gate_up_proj";
    for skip in ["up_proj", "proj", "model.layers.1", "layers.1", ""] {
        assert!(covers(skip, module), "{skip}");
    }
    for skip in [
        module,
        "gate_up_proj",
        "mlp.gate_up_proj",
        "mlp",
        "model.layers.10",
        "model",
    ] {
        assert!(!covers(skip, module), "{skip}");
    }
    assert!(covers("other", "lm_head"));
    assert!(!covers("lm_head", "lm_head"));
    assert!(!covers("other", "model.embed_tokens"));
}

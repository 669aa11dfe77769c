//! Checkpoints that other tools have quantised, against their own code, which `tests/fixtures/make_quantized.py` asked.

use std::{fs, path::Path};

use burn::tensor::FloatDType;
use loraloom_model::{Backbone, Checkpoint, LlamaConfig, ModelError, Projection, Quantization};
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
    assert!(found.len() >= 12, "{found:?}");
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

/// The key `quantization` stores the dense weights in NF4.
#[test]
fn weights_can_be_quantised_again() {
    for directory in all() {
        let config = LlamaConfig::from_directory(&directory).expect("a configuration");
        let dense = load(&directory, &config).weight_bytes();
        let quantization = Quantization {
            double_quant: true,
            skip: Vec::new(),
        };
        let config = config.with_quantization(quantization).expect("not in NF4");
        assert!(load(&directory, &config).weight_bytes() < dense / 2);
    }
}

/// The error of a fixture with a tensor that is changed or, with `None`, taken out.
fn damaged(
    name: &str,
    tensor: &str,
    change: impl Fn(Vec<usize>, Vec<u8>) -> Option<(Vec<usize>, Vec<u8>)>,
) -> ModelError {
    let (source, copy) = (
        fixture("quantized").join(name),
        TempDir::new().expect("a directory"),
    );
    fs::copy(source.join("config.json"), copy.path().join("config.json")).expect("a copy");
    let bytes = fs::read(source.join("model.safetensors")).expect("a file");
    let file = SafeTensors::deserialize(&bytes).expect("safetensors");
    assert!(file.tensor(tensor).is_ok(), "{name} has no {tensor}");
    let parts = file.tensors().into_iter().filter_map(|(key, view)| {
        let (shape, bytes) = (view.shape().to_vec(), view.data().to_vec());
        let changed = if key == tensor {
            change(shape, bytes)
        } else {
            Some((shape, bytes))
        };
        let (shape, bytes) = changed?;
        Some((key, view.dtype(), shape, bytes))
    });
    let parts: Vec<_> = parts.collect();
    let views = parts.iter().map(|(key, dtype, shape, bytes)| {
        let view = TensorView::new(*dtype, shape.clone(), bytes).expect("a tensor");
        (key.clone(), view)
    });
    serialize_to_file(views, None, &copy.path().join("model.safetensors")).expect("written");
    let config = LlamaConfig::from_directory(copy.path()).expect("a configuration");
    let checkpoint = Checkpoint::open(copy.path()).expect("a checkpoint");
    checkpoint.verify(&config).expect_err("refused")
}

#[test]
fn parts_that_contradict_each_other_are_refused_with_tensor_and_reason() {
    const LAYER: &str = "model.layers.0.mlp.down_proj";
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
            "`weight_scale` is missing",
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
            "`weight_packed` is I32 [191, 40]",
        ),
        (
            damaged("ct-w4a16-asym", &part("weight_zero_point"), shorter),
            "`weight_zero_point` has 115 values, not 120",
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
            "`qzeros` has 120 values, not 96",
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

/// What says nothing of quantisation has no quantised weights, and a float weight has no scales.
#[test]
fn configuration_and_weights_must_agree() {
    let directory = fixture("quantized").join("gptq-sym");
    let mut config = LlamaConfig::from_directory(&directory).expect("a configuration");
    config.stored = None;
    let checkpoint = Checkpoint::open(&directory).expect("a checkpoint");
    let error = checkpoint.verify(&config).expect_err("refused").to_string();
    assert!(error.contains("has no `quantization_config`"), "{error}");
}

#[test]
fn other_formats_are_refused_by_name() {
    for (method, key, value) in [
        ("hqq", "quant_method", "\"hqq\""),
        ("gptq", "bits", "3"),
        ("gptq", "checkpoint_format", "\"gptq_v2\""),
        ("awq", "version", "\"gemv\""),
        ("compressed-tensors", "format", "\"nvfp4-pack-quantized\""),
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

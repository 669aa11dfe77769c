//! Weights in NF4 against bitsandbytes, which `tests/fixtures/make_nf4.py` asked.

use std::path::Path;

use batchlora::{FrozenWeight, Nf4, Nf4Scales};
use burn::tensor::{DType, FloatDType};
use loraloom_model::{Backbone, Checkpoint, HostTensor, LlamaConfig, ModelError, Projection};
use loraloom_tests::{Fixture, device};
use safetensors::{Dtype, SafeTensors, serialize_to_file, tensor::TensorView};
use tempfile::TempDir;

const TYPES: [(&str, FloatDType); 3] = [
    ("float32", FloatDType::F32),
    ("float16", FloatDType::F16),
    ("bfloat16", FloatDType::BF16),
];

/// Every quantised weight of the fixture: what it was, with its shape and type, what bitsandbytes stored and made of that.
fn each(mut of: impl FnMut(&str, &HostTensor<'_>, FloatDType, Nf4, Vec<f32>)) {
    let checkpoint = Checkpoint::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/nf4"))
        .expect("a fixture");
    let sources: Vec<_> = checkpoint
        .names()
        .filter_map(|name| name.strip_suffix(".source"))
        .collect();
    assert_eq!(sources.len(), 26);
    for name in sources {
        let source = checkpoint
            .tensor(&format!("{name}.source"))
            .expect("a fixture");
        let shape = [source.shape[0], source.shape[1]];
        let stored = checkpoint
            .nf4(&format!("{name}.weight"), shape)
            .expect("a fixture");
        let values = checkpoint
            .tensor(&format!("{name}.dequantized"))
            .expect("a fixture");
        let (_, dtype) = TYPES
            .into_iter()
            .find(|(key, _)| name.split('.').nth(1) == Some(key))
            .expect("a fixture");
        of(
            name,
            &source,
            dtype,
            stored.expect("a fixture"),
            values.to_f32(),
        );
    }
}

/// Numbers that are the same but for so many parts of the largest.
fn assert_near(what: &str, found: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let largest = expected
        .iter()
        .fold(0f32, |most, value| most.max(value.abs()));
    for (at, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!(
            (a - b).abs() <= tolerance * largest,
            "{what} at {at}: {a} {b}"
        );
    }
}

/// Numbers that are the same to the bit, zeros of both signs apart.
fn assert_same(what: &str, found: &[f32], expected: &[f32]) {
    assert_near(what, found, expected, 0.0);
}

#[test]
fn stored_weights_have_the_values_of_bitsandbytes_to_the_bit() {
    each(|name, _, _, stored, expected| {
        assert_same(name, &stored.dequantize(), &expected);
    });
}

#[test]
fn quantising_gives_the_codes_of_bitsandbytes() {
    each(|name, source, dtype, stored, _| {
        let double_quant = name.ends_with(".nested");
        let found = Nf4::quantize(&source.to_f32(), stored.shape(), dtype, double_quant);
        assert_eq!(found.codes(), stored.codes(), "{name}");
        assert_eq!(found.rounding(), stored.rounding(), "{name}");
        match (found.scales(), stored.scales()) {
            (Nf4Scales::Plain(found), Nf4Scales::Plain(expected)) => {
                assert_same(name, found, expected);
            }
            (
                Nf4Scales::Nested {
                    codes,
                    map,
                    absmax,
                    offset,
                },
                Nf4Scales::Nested {
                    codes: their_codes,
                    map: their_map,
                    absmax: their_absmax,
                    offset: their_offset,
                },
            ) => {
                assert_eq!(codes, their_codes, "{name}");
                // torch's linspace rounds in another way on every processor.
                assert_near(name, &map[..], &their_map[..], 2.0 * f32::EPSILON);
                // torch sums the mean in another order.
                let near = |a: f32, b: f32| {
                    (a - b).abs() <= 2.0 * f32::EPSILON * b.abs().max(their_offset.abs())
                };
                assert!(
                    near(*offset, *their_offset),
                    "{name}: {offset} {their_offset}"
                );
                assert_near(name, absmax, their_absmax, 4.0 * f32::EPSILON);
            }
            _ => panic!("{name}: other scales"),
        }
    });
}

/// The fast bodies against the plain one, for operands of every type that the device has.
#[test]
fn devices_make_the_same_values() {
    let device = device();
    each(|name, _, _, stored, expected| {
        let [d_out, d_in] = stored.shape();
        for (_, dtype) in TYPES {
            if !device.supports_dtype(dtype) {
                continue;
            }
            let dense = FrozenWeight::from_nf4(&stored, dtype, &device).dense();
            assert_eq!(dense.dims(), [d_in, d_out], "{name}");
            assert_eq!(dense.dtype(), DType::from(dtype), "{name}");
            let found: Vec<f32> = dense
                .transpose()
                .cast(DType::F32)
                .into_data()
                .try_into_vec()
                .expect("a fixture");
            let expected: Vec<f32> = match dtype {
                FloatDType::F16 => expected
                    .iter()
                    .map(|value| half::f16::from_f32(*value).to_f32())
                    .collect(),
                FloatDType::BF16 => expected
                    .iter()
                    .map(|value| half::bf16::from_f32(*value).to_f32())
                    .collect(),
                _ => expected.clone(),
            };
            assert_same(&format!("{name} as {dtype:?}"), &found, &expected);
        }
    });
}

/// Layers that the checkpoint has in floating point are quantised when they are read, but those that are skipped.
#[test]
fn a_float_checkpoint_is_quantised_as_bitsandbytes_does() {
    let (float, theirs) = (Fixture::open("llama-gqa"), Fixture::open("nf4/llama-gqa"));
    let mut config = LlamaConfig::from_directory(&float.directory).expect("a fixture");
    let stored = LlamaConfig::from_directory(&theirs.directory).expect("a fixture");
    let load = |fixture: &Fixture, config: &LlamaConfig| {
        let checkpoint = Checkpoint::open(&fixture.directory).expect("a fixture");
        checkpoint.verify(config).expect("a fixture");
        Backbone::load(&checkpoint, config, 0..2, FloatDType::F32, &device()).expect("a fixture")
    };
    let plain = load(&float, &config);
    config.quantization.clone_from(&stored.quantization);
    config.quantization.as_mut().expect("a fixture").skip =
        vec!["v_proj".to_owned(), "model.layers.1.mlp".to_owned()];
    let (ours, theirs) = (load(&float, &config), load(&theirs, &stored));
    for index in 0..2 {
        for linear in config.linears() {
            let weight = |backbone: &Backbone| -> Vec<f32> {
                let weight = backbone
                    .weight(&backbone.layers()[index], linear.projection)
                    .expect("a fixture");
                weight.into_data().try_into_vec().expect("a fixture")
            };
            let is_mlp = matches!(
                linear.projection,
                Projection::Gate | Projection::Up | Projection::Down
            );
            let skipped = linear.projection == Projection::V || (index == 1 && is_mlp);
            let expected = if skipped { &plain } else { &theirs };
            let (found, expected) = (weight(&ours), weight(expected));
            for (a, b) in found.iter().zip(&expected) {
                // Where two codes of a scale are nearly as near, bitsandbytes' library takes either.
                assert!(
                    (a - b).abs() <= 2e-3 * b.abs(),
                    "{index} {:?}: {a} {b}",
                    linear.projection
                );
            }
        }
    }
    let quantized = theirs.weight_bytes();
    let expected = loraloom_model::cost::weight_bytes(&stored, &(0..2), 4) as u64;
    assert_eq!(quantized, expected);
    assert!(quantized < plain.weight_bytes(), "{quantized}");
}

/// bitsandbytes quantised it, as `llm_int8_skip_modules` is an empty list.
#[test]
fn an_output_projection_in_nf4_stays_so_in_memory() {
    let fixture = Fixture::open("nf4/qwen2-sharded");
    let config = LlamaConfig::from_directory(&fixture.directory).expect("a fixture");
    let checkpoint = Checkpoint::open(&fixture.directory).expect("a fixture");
    let layers = 0..config.num_hidden_layers;
    let load = Backbone::load(
        &checkpoint,
        &config,
        layers.clone(),
        FloatDType::F32,
        &device(),
    );
    let found = load.expect("a fixture").weight_bytes();
    let bytes = |config| loraloom_model::cost::weight_bytes(config, &layers, 4);
    assert_eq!(found, bytes(&config) as u64);
    let mut without = config.clone();
    let skip = &mut without.quantization.as_mut().expect("a fixture").skip;
    skip.push("lm_head".to_owned());
    let (quantized, float) = (bytes(&config), bytes(&without));
    // Half a byte and an eighth of four for scales, of four bytes an element.
    assert!(quantized < float - 400 * 48 * 3, "{quantized} {float}");
}

/// A copy of a quantised checkpoint, with one tensor changed or taken out.
fn damaged(name: &str, change: impl Fn(Vec<u8>) -> Option<Vec<u8>>) -> ModelError {
    let source = Fixture::open("nf4/llama-gqa").directory;
    let copy = TempDir::new().expect("a fixture");
    std::fs::copy(source.join("config.json"), copy.path().join("config.json")).expect("a fixture");
    let file = std::fs::read(source.join("model.safetensors")).expect("a fixture");
    let tensors = SafeTensors::deserialize(&file).expect("a fixture");
    let mut parts: Vec<(String, Dtype, Vec<usize>, Vec<u8>)> = Vec::new();
    for (key, view) in tensors.tensors() {
        let is_it = key == name;
        let bytes = if is_it {
            change(view.data().to_vec())
        } else {
            Some(view.data().to_vec())
        };
        let Some(bytes) = bytes else { continue };
        let shape = if is_it {
            vec![bytes.len() * 8 / view.dtype().bitsize()]
        } else {
            view.shape().to_vec()
        };
        parts.push((key, view.dtype(), shape, bytes));
    }
    let views = parts.iter().map(|(key, dtype, shape, bytes)| {
        (
            key.clone(),
            TensorView::new(*dtype, shape.clone(), bytes).expect("a fixture"),
        )
    });
    serialize_to_file(views, None, &copy.path().join("model.safetensors")).expect("a fixture");
    let config = LlamaConfig::from_directory(copy.path()).expect("a fixture");
    let checkpoint = Checkpoint::open(copy.path()).expect("a fixture");
    checkpoint.verify(&config).expect_err("refused")
}

#[test]
fn a_state_that_lies_is_refused_with_tensor_and_reason() {
    const WEIGHT: &str = "model.layers.0.mlp.down_proj.weight";
    let state = format!("{WEIGHT}.quant_state.bitsandbytes__nf4");
    let replaced = |from: &'static str, to: &'static str| {
        move |bytes: Vec<u8>| {
            let text = String::from_utf8(bytes).expect("a fixture");
            assert!(text.contains(from), "{text}");
            Some(text.replace(from, to).into_bytes())
        }
    };
    let cut = |mut bytes: Vec<u8>| {
        bytes.truncate(bytes.len() - 4);
        Some(bytes)
    };
    let part = |ending: &str| format!("{WEIGHT}.{ending}");
    let cases: Vec<(ModelError, &str)> = vec![
        (
            damaged(&state, replaced("\"nf4\"", "\"fp4\"")),
            "`quant_type` is fp4, not nf4",
        ),
        (
            damaged(&state, replaced("64", "128")),
            "`blocksize` is 128, not 64",
        ),
        (
            damaged(&state, replaced("112", "111")),
            "`shape` is [48, 111], not [48, 112]",
        ),
        (
            damaged(&state, replaced("float32", "float8")),
            "`dtype` is \"float8\"",
        ),
        (
            damaged(&state, replaced("nested_offset", "offset_of")),
            "`nested_offset` is missing",
        ),
        (
            damaged(&state, replaced("256", "128")),
            "`nested_blocksize` is 128, not 256",
        ),
        (damaged(&state, cut), "is not as bitsandbytes writes it"),
        (
            damaged(&state, |_| None),
            "and no `model.layers.0.mlp.down_proj.weight.quant_state",
        ),
        (damaged(WEIGHT, cut), "it has 2684 bytes of codes, not 2688"),
        (
            damaged(&part("absmax"), cut),
            "`absmax` has 80 values, not 84",
        ),
        (damaged(&part("absmax"), |_| None), "absmax` is missing"),
        (
            damaged(&part("nested_absmax"), |_| None),
            "nested_absmax` is missing",
        ),
        (
            damaged(&part("nested_quant_map"), cut),
            "`nested_quant_map` has 255 values, not 256",
        ),
        (
            damaged(&part("quant_map"), |mut bytes| {
                bytes[5] ^= 1;
                Some(bytes)
            }),
            "`quant_map` is not that of NF4",
        ),
    ];
    for (error, expected) in cases {
        let text = error.to_string();
        assert!(text.contains(expected), "{text} has not: {expected}");
        assert!(text.contains(WEIGHT), "{text}");
        assert!(
            error.hint().is_some_and(|hint| hint.contains("NF4")),
            "{text}"
        );
    }
}

#[test]
fn an_output_projection_of_its_own_is_not_tied() {
    let fixture = Fixture::open("nf4/qwen2-sharded");
    let mut config = LlamaConfig::from_directory(&fixture.directory).expect("a fixture");
    config.tie_word_embeddings = true;
    let checkpoint = Checkpoint::open(&fixture.directory).expect("a fixture");
    let error = checkpoint.verify(&config).expect_err("refused");
    assert!(matches!(error, ModelError::NotTied(_)), "{error}");
}

#[test]
fn other_quantisations_are_refused_by_name() {
    let text =
        std::fs::read_to_string(Fixture::open("nf4/llama-gqa").directory.join("config.json"))
            .expect("a fixture");
    for (from, to, expected) in [
        (
            "\"bitsandbytes\"",
            "\"hqq\"",
            "`quantization_config.quant_method` = \"hqq\"",
        ),
        (
            "\"load_in_4bit\": true",
            "\"load_in_4bit\": false",
            "`quantization_config.load_in_4bit` = false",
        ),
        (
            "\"nf4\"",
            "\"fp4\"",
            "`quantization_config.bnb_4bit_quant_type` = \"fp4\"",
        ),
    ] {
        assert!(text.contains(from));
        let error = LlamaConfig::from_json(&text.replace(from, to)).expect_err("refused");
        assert!(error.to_string().contains(expected), "{error}");
    }
}

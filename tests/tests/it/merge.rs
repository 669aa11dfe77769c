//! Merged models are what PEFT merges; adapters in GGUF are what llama.cpp's converter writes.
//! `fixtures/make_merge.py` froze both; `fixtures/check_merged.py` and `check_gguf.py` have the programs
//! themselves read what is written, where Python can be had.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use loraloom_config::{DtypeChoice, RunConfig};
use loraloom_model::{
    Checkpoint, LlamaConfig, MergePart, MergeRecord, ModelError, PeftAdapter, TargetModules,
    TensorDtype, merge, parameter_shapes, write_gguf_lora,
};
use loraloom_tests::{Fixture, device};
use loraloom_trainer::{Generator, TrainerError, inspect};
use safetensors::{Dtype, SafeTensors, serialize_to_file, tensor::TensorView};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Of make_merge.py: name, base, adapter.
const CASES: [(&str, &str, &str); 7] = [
    ("patterns", "llama-gqa", "merge/patterns"),
    ("rslora", "llama-gqa", "llama-gqa/jobs/all-r4-rslora/final"),
    (
        "shards",
        "qwen2-sharded",
        "qwen2-sharded/jobs/all-r8-linear/final",
    ),
    (
        "tied",
        "llama-tied-rope-llama3",
        "llama-tied-rope-llama3/jobs/all-r8-clip/final",
    ),
    ("all-linear", "mistral-sliding", "merge/all-linear"),
    ("ends", "llama-gqa", "llama-gqa/jobs/ends-r8-dropout/final"),
    (
        "dora",
        "llama-gqa",
        "llama-gqa/jobs/ends-r4-dora-dropout/final",
    ),
];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures")
        .join(name)
}

fn part(directory: &Path, weight: f64) -> MergePart {
    MergePart {
        directory: directory.to_owned(),
        adapter: PeftAdapter::load(directory).expect("an adapter"),
        weight,
    }
}

fn merged(base: &Path, parts: &[MergePart], dtype: Option<TensorDtype>) -> (TempDir, PathBuf) {
    let parent = tempfile::tempdir().expect("a directory");
    let out = parent.path().join("above/merged");
    merge(base, parts, dtype, &out, &mut |_, _| ()).expect("merged");
    (parent, out)
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let words = bytes.as_chunks().0.iter();
    words.map(|word| f32::from_le_bytes(*word)).collect()
}

/// `W + Σ weight·scale·B·A` in float64, with each row scaled to its magnitude, if there is one.
fn reference(name: &str, base: &[f32], parts: &[MergePart]) -> Vec<f64> {
    let mut sum: Vec<f64> = base.iter().map(|value| f64::from(*value)).collect();
    for part in parts {
        let module = name.strip_suffix(".weight").unwrap_or_default();
        let Some(lora) = part.adapter.modules.get(module) else {
            continue;
        };
        for (index, sum) in sum.iter_mut().enumerate() {
            let (row, column) = if module == "model.embed_tokens" {
                (index % lora.d_out, index / lora.d_out)
            } else {
                (index / lora.d_in, index % lora.d_in)
            };
            for k in 0..lora.r {
                let a = f64::from(lora.a[k * lora.d_in + column]);
                let b = f64::from(lora.b[row * lora.r + k]);
                *sum += part.weight * lora.scale * b * a;
            }
        }
        for (row, magnitude) in sum
            .chunks_mut(lora.d_in)
            .zip(lora.magnitude.iter().flatten())
        {
            let norm = row.iter().map(|value| value * value).sum::<f64>().sqrt();
            for value in row {
                *value *= f64::from(*magnitude) / norm;
            }
        }
    }
    sum
}

/// Checks every weight against [`reference`], and unadapted ones for the bits of the base. Returns the names
/// of the adapted.
fn check_all(base: &Path, parts: &[MergePart], merged: &Path) -> BTreeSet<String> {
    let config = LlamaConfig::from_directory(base).expect("a model");
    let (base, merged) = (Checkpoint::open(base), Checkpoint::open(merged));
    let (base, merged) = (base.expect("a base"), merged.expect("merged"));
    assert!(base.names().eq(merged.names()));
    let mut adapted = BTreeSet::new();
    for (name, _) in parameter_shapes(&config) {
        let (before, after) = (base.tensor(&name), merged.tensor(&name));
        let (before, after) = (before.expect("there"), after.expect("there"));
        assert_eq!(before.shape, after.shape);
        if before == after {
            continue;
        }
        let expected = reference(&name, &before.to_f32(), parts);
        for (found, expected) in after.to_f32().iter().zip(expected) {
            let off = (f64::from(*found) - expected).abs();
            assert!(off <= 1e-6, "{name}: {found} is not {expected}");
        }
        adapted.insert(name);
    }
    let modules = parts.iter().flat_map(|part| part.adapter.modules.keys());
    let expected: BTreeSet<String> = modules.map(|module| format!("{module}.weight")).collect();
    assert_eq!(adapted, expected);
    adapted
}

#[test]
fn merged_weights_are_those_of_peft() {
    let frozen = fs::read(fixture("merge/expected.safetensors")).expect("a fixture");
    let frozen = SafeTensors::deserialize(&frozen).expect("safetensors");
    let mut compared = 0;
    for (case, base, adapter) in CASES {
        let (base, parts) = (fixture(base), [part(&fixture(adapter), 1.0)]);
        let (_parent, out) = merged(&base, &parts, None);
        let checkpoint = Checkpoint::open(&out).expect("merged");
        for name in check_all(&base, &parts, &out) {
            let expected = frozen.tensor(&format!("{case}/{name}")).expect("frozen");
            let found = checkpoint.tensor(&name).expect("there").to_f32();
            let rows = found.len() / expected.shape()[1];
            let columns = expected.shape()[1];
            let kept = [0, (rows - 1) / 2, rows - 1];
            let found = kept.map(|row| &found[row * columns..][..columns]).concat();
            for (found, expected) in found.iter().zip(floats(expected.data())) {
                let off = (found - expected).abs();
                assert!(off <= 1e-6, "{case}/{name}: {found}, by PEFT {expected}");
            }
            compared += 1;
        }
    }
    assert_eq!(compared, frozen.len());
}

#[test]
fn a_merged_directory_has_the_files_of_its_base() {
    for (base, adapter, copied) in [
        (
            "llama-gqa",
            "merge/patterns",
            &["chat_template.jinja", "model.safetensors"][..],
        ),
        (
            "qwen2-sharded",
            "qwen2-sharded/jobs/attn-r64/final",
            &[
                "model-00001-of-00003.safetensors",
                "model-00002-of-00003.safetensors",
                "model-00003-of-00003.safetensors",
                "model.safetensors.index.json",
            ],
        ),
    ] {
        let base = Fixture::open(base).directory;
        let parts = [part(&fixture(adapter), 1.0)];
        let (parent, out) = merged(&base, &parts, None);
        let mut expected = vec!["config.json", "tokenizer.json", "tokenizer_config.json"];
        expected.extend(copied);
        expected.sort_unstable();
        let entries = fs::read_dir(&out).expect("written");
        let mut found: Vec<String> = entries
            .map(|entry| entry.expect("an entry").file_name().into_string())
            .collect::<Result<_, _>>()
            .expect("names");
        found.sort();
        assert_eq!(found, expected);
        // Nothing is left beside it.
        let above = fs::read_dir(parent.path().join("above")).expect("made");
        assert_eq!(above.count(), 1);
        for name in expected {
            let (before, after) = (fs::read(base.join(name)), fs::read(out.join(name)));
            if Path::new(name)
                .extension()
                .is_none_or(|kind| kind != "safetensors")
            {
                let json = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).ok();
                let (before, after) = (before.expect("base"), after.expect("merged"));
                assert!(
                    before == after || json(&before) == json(&after),
                    "{name} is another"
                );
            }
        }
        let model = Checkpoint::open(&out).expect("merged");
        let record = MergeRecord::of(&model).expect("a record").expect("noted");
        let config = LlamaConfig::from_directory(&base).expect("a model");
        let digest = Checkpoint::open(&base).and_then(|base| base.digest(&config));
        assert_eq!(record.base, digest.expect("a digest"));
        assert_eq!(record.adapters[0].digest, parts[0].adapter.digest());
    }
}

#[test]
fn adapters_are_added_with_their_weights() {
    let base = fixture("llama-gqa");
    let parts = [
        part(&fixture("merge/patterns"), -0.5),
        part(&fixture("llama-gqa/jobs/mlp-r1/final"), 2.0),
        part(&fixture("llama-gqa/jobs/all-r4-rslora/final"), 1.0),
    ];
    let (_parent, out) = merged(&base, &parts, None);
    check_all(&base, &parts, &out);
}

/// Ties to even.
fn to_bfloat16(value: f32) -> u16 {
    let bits = value.to_bits();
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

#[test]
fn a_narrow_type_has_the_rounded_float32_sum() {
    let wide = fixture("llama-gqa");
    let (_parent, base) = merged(&wide, &[], Some(TensorDtype::Bfloat16));
    let parts = [part(&fixture("merge/patterns"), 1.0)];
    let (_parent, narrow) = merged(&base, &parts, None);
    let (_parent, sum) = merged(&base, &parts, Some(TensorDtype::Float32));
    for (directory, dtype) in [(&narrow, "bfloat16"), (&sum, "float32")] {
        let config = fs::read_to_string(directory.join("config.json")).expect("written");
        let config: Value = serde_json::from_str(&config).expect("JSON");
        assert_eq!(config["torch_dtype"], dtype);
        assert_eq!(config.get("dtype"), None);
    }
    check_all(&base, &[], &base);
    let [narrow, sum] = [narrow, sum].map(|path| Checkpoint::open(&path).expect("merged"));
    let mut elements = 0;
    for name in narrow.names() {
        let (found, sum) = (narrow.tensor(name), sum.tensor(name));
        let (found, sum) = (found.expect("there"), sum.expect("there").to_f32());
        assert_eq!(found.dtype, TensorDtype::Bfloat16);
        let found = found.bytes.as_chunks().0.iter();
        let found = found.map(|word| u16::from_le_bytes(*word));
        assert!(
            found.eq(sum.iter().map(|value| to_bfloat16(*value))),
            "{name}"
        );
        elements += sum.len();
    }
    assert!(elements > 10_000);
}

/// A copy of a model directory with other weights.
fn copied(base: &Path, change: impl FnOnce(&mut Vec<(String, TensorView<'_>)>)) -> TempDir {
    let copy = tempfile::tempdir().expect("a directory");
    for entry in fs::read_dir(base).expect("a base").flatten() {
        if entry.path().is_file() {
            fs::copy(entry.path(), copy.path().join(entry.file_name())).expect("copied");
        }
    }
    let path = base.join("model.safetensors");
    let bytes = fs::read(path).expect("weights");
    let mut tensors = SafeTensors::deserialize(&bytes)
        .expect("safetensors")
        .tensors();
    change(&mut tensors);
    let out = copy.path().join("model.safetensors");
    serialize_to_file(tensors, None, &out).expect("written");
    copy
}

#[test]
fn tensors_that_the_model_does_not_use_are_left_as_they_are() {
    const FREQUENCIES: [u8; 8] = [1, 2, 3, 4, 5, 6, 7, 8];
    let name = "model.layers.0.self_attn.rotary_emb.inv_freq";
    let base = copied(&fixture("llama-gqa"), |tensors| {
        let view = TensorView::new(Dtype::I64, vec![1], &FREQUENCIES);
        tensors.push((name.to_owned(), view.expect("one number")));
    });
    let parts = [part(&fixture("merge/patterns"), 1.0)];
    let (_parent, out) = merged(base.path(), &parts, Some(TensorDtype::Float16));
    let bytes = fs::read(out.join("model.safetensors")).expect("written");
    let tensors = SafeTensors::deserialize(&bytes).expect("safetensors");
    let kept = tensors.tensor(name).expect("kept");
    assert_eq!((kept.dtype(), kept.data()), (Dtype::I64, &FREQUENCIES[..]));
}

#[test]
fn what_cannot_be_merged_is_refused_and_leaves_nothing() {
    let (gqa, patterns) = (fixture("llama-gqa"), fixture("merge/patterns"));
    let parent = tempfile::tempdir().expect("a directory");
    let out = parent.path().join("out");
    let try_to = |base: &Path, parts: &[MergePart], dtype| {
        merge(base, parts, dtype, &out, &mut |_, _| ()).expect_err("merged")
    };

    let many = [part(&patterns, 1e9)];
    let error = try_to(&gqa, &many, Some(TensorDtype::Float16));
    let ModelError::NotFiniteSum {
        tensor,
        element,
        value,
        ..
    } = &error
    else {
        panic!("{error}");
    };
    assert!(error.hint().is_some_and(|hint| hint.contains("bfloat16")));
    let weights = Checkpoint::open(&gqa).expect("a base");
    let base = weights.tensor(tensor).expect("there").to_f32();
    let expected = reference(tensor, &base, &many)[*element];
    assert!((f64::from(*value) / expected - 1.0).abs() < 1e-5 && expected.abs() > 65504.0);

    let other = part(&fixture("qwen3/jobs/all-r4-cosine/final"), 1.0);
    let error = try_to(&gqa, &[other], None);
    assert!(
        error
            .hint()
            .is_some_and(|hint| hint.contains("another base")),
        "{error}"
    );

    let tied = fixture("llama-tied-rope-llama3");
    for (end, name) in [
        ("model.embed_tokens", "embed_tokens"),
        ("lm_head", "lm_head"),
    ] {
        let mut one = part(&tied.join("jobs/ends-r4/final"), 1.0);
        one.adapter.modules.retain(|module, _| module == end);
        one.adapter.config.target_modules = TargetModules::Names(vec![name.to_owned()]);
        let config = LlamaConfig::from_directory(&tied).expect("a model");
        let exported = write_gguf_lora(&one.adapter, &config, "a", &out).expect_err("exported");
        let ModelError::InFile { error: merged, .. } = try_to(&tied, &[one], None) else {
            panic!("no file named");
        };
        for error in [exported, *merged] {
            let ModelError::TiedModule(module) = error else {
                panic!("{error}");
            };
            assert_eq!(module, end);
        }
    }

    // DoRA's columns have its magnitudes: neither a part of it can be added nor another adapter.
    let dora = fixture("llama-gqa/jobs/ends-r4-dora-dropout/final");
    let [half, other] = [
        [part(&dora, 0.5), part(&patterns, 1.0)],
        [part(&dora, 1.0), part(&patterns, 1.0)],
    ];
    for parts in [&half[..1], &other] {
        let error = try_to(&gqa, parts, None);
        assert!(error.to_string().contains("a weight of 1"), "{error}");
    }
    let config = LlamaConfig::from_directory(&gqa).expect("a model");
    let error = write_gguf_lora(&other[0].adapter, &config, "a", &out).expect_err("exported");
    assert!(error.to_string().contains("use_dora"), "{error}");

    let quantised = copied(&gqa, |_| ());
    let path = quantised.path().join("config.json");
    let mut config: Value =
        serde_json::from_slice(&fs::read(&path).expect("a config")).expect("JSON");
    config["quantization_config"] = json!({"quant_method": "hqq"});
    fs::write(&path, config.to_string()).expect("written");
    let error = try_to(quantised.path(), &[part(&patterns, 1.0)], None);
    assert!(error.to_string().contains("hqq"), "{error}");
    for quantised in ["nf4/llama-gqa", "quantized/gptq-sym", "quantized/fp8-block"] {
        let quantised = fixture(quantised);
        let error = try_to(&quantised, &[part(&patterns, 1.0)], None);
        assert!(
            matches!(&error, ModelError::QuantizedBase(path) if *path == quantised),
            "{error}"
        );
    }

    assert_eq!(fs::read_dir(parent.path()).expect("there").count(), 0);
    fs::create_dir(&out).expect("made");
    fs::write(out.join("mine"), "mine").expect("written");
    let error = try_to(&gqa, &[part(&patterns, 1.0)], None);
    assert!(matches!(error, ModelError::OutputExists(_)), "{error}");
    fs::remove_file(out.join("mine")).expect("removed");
    merge(&gqa, &[part(&patterns, 1.0)], None, &out, &mut |_, _| ()).expect("an empty directory");
    assert_eq!(fs::read_dir(parent.path()).expect("there").count(), 1);
}

fn gguf(adapter: &PeftAdapter, base: &LlamaConfig, name: &str) -> Vec<u8> {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("above/adapter.gguf");
    let written = write_gguf_lora(adapter, base, name, &path).expect("written");
    let bytes = fs::read(&path).expect("there");
    assert_eq!(bytes.len() as u64, written);
    let again = write_gguf_lora(adapter, base, name, &path).expect_err("replaced");
    assert!(matches!(again, ModelError::OutputExists(_)), "{again}");
    assert_eq!(
        fs::read_dir(directory.path().join("above"))
            .expect("made")
            .count(),
        1
    );
    bytes
}

#[test]
fn gguf_files_are_those_of_llama_cpp() {
    for (frozen, base, job) in [
        ("llama", "llama-gqa", "attn-r8-cosine"),
        ("ends", "llama-gqa", "ends-r8-dropout"),
        ("qwen3", "qwen3", "all-r4-cosine"),
        ("granite", "granite", "all-r8-cosine"),
        ("olmo2", "olmo2", "all-r4-accumulate"),
        ("smollm3", "smollm3", "all-r8-linear"),
        ("gemma2", "gemma2", "all-r8-cosine"),
        ("gemma3", "gemma3", "all-r4-accumulate"),
        ("phi3", "phi3", "all-r8-cosine"),
    ] {
        let frozen = fs::read(fixture(&format!("gguf/{frozen}.gguf"))).expect("a fixture");
        let adapter = fixture(&format!("{base}/jobs/{job}/final"));
        let adapter = PeftAdapter::load(&adapter).expect("an adapter");
        let base = LlamaConfig::from_directory(&fixture(base)).expect("a model");
        // Named by the converter for the adapter's directory.
        assert!(gguf(&adapter, &base, "Final") == frozen, "{job}");
    }
    let adapter = PeftAdapter::load(&fixture("merge/all-linear")).expect("an adapter");
    let mistral = LlamaConfig::from_directory(&fixture("mistral-sliding")).expect("a model");
    let mut llama = mistral.clone();
    llama.architecture = loraloom_model::Architecture::Llama;
    assert!(gguf(&adapter, &mistral, "a") == gguf(&adapter, &llama, "a"));
}

/// llama.cpp scales by `alpha / r` of one alpha.
#[test]
fn other_scales_go_into_b_in_gguf() {
    for adapter in [
        "merge/patterns",
        "llama-gqa/jobs/all-r4-rslora/final",
        "llama-gqa/jobs/ends-r8-dropout/final",
    ] {
        let mut adapter = PeftAdapter::load(&fixture(adapter)).expect("an adapter");
        adapter.config.use_rslora = true;
        for lora in adapter.modules.values_mut() {
            lora.scale = adapter.config.scale(lora.r, lora.lora_alpha);
        }
        let base = LlamaConfig::from_directory(&fixture("llama-gqa")).expect("a model");
        let alpha = adapter.config.lora_alpha;
        let mut plain = adapter.clone();
        let mut folded = 0;
        for lora in plain.modules.values_mut() {
            let scale = alpha / lora.r as f64;
            let rest = lora.scale / scale;
            folded += usize::from((rest - 1.0).abs() > 0.1);
            for value in &mut lora.b {
                *value = (f64::from(*value) * rest) as f32;
            }
            (lora.lora_alpha, lora.scale) = (alpha, scale);
        }
        assert!(folded > 2);
        assert!(gguf(&adapter, &base, "a") == gguf(&plain, &base, "a"));
    }
}

#[test]
fn base_weights_saved_with_an_adapter_must_be_those_of_the_model() {
    let directory = fixture("llama-gqa/jobs/ends-r8-dropout/init");
    PeftAdapter::check_copies(&directory, &fixture("llama-gqa")).expect("copies");
    let other = PeftAdapter::check_copies(&directory, &fixture("mistral-sliding"));
    assert!(
        matches!(other, Err(ModelError::OtherCopy { .. })),
        "{other:?}"
    );
}

/// PEFT may save them rounded, and of tied weights the checkpoint has one.
#[test]
fn base_weights_saved_rounded_or_under_the_other_name_are_those_of_the_model() {
    for (model, module) in [
        ("llama-gqa", "model.embed_tokens"),
        ("llama-tied-rope-llama3", "lm_head"),
    ] {
        let base = fixture(model);
        let checkpoint = Checkpoint::open(&base).expect("a base");
        let own = checkpoint.tensor("model.embed_tokens.weight");
        let own = own.expect("there");
        let values = own.to_f32().into_iter();
        let narrow: Vec<u8> = values
            .flat_map(|value| to_bfloat16(value).to_le_bytes())
            .collect();
        for (dtype, bytes) in [(Dtype::F32, own.bytes), (Dtype::BF16, &narrow[..])] {
            let directory = tempfile::tempdir().expect("a directory");
            let name = format!("base_model.model.{module}.base_layer.weight");
            let view = TensorView::new(dtype, own.shape.to_vec(), bytes).expect("consistent");
            let path = directory.path().join("adapter_model.safetensors");
            serialize_to_file([(name, view)], None, &path).expect("written");
            let checked = PeftAdapter::check_copies(directory.path(), &base);
            assert!(checked.is_ok(), "{module} in {dtype:?}: {checked:?}");
        }
    }
}

/// The other model has the same shape, so nothing else tells.
#[test]
fn an_adapter_with_base_weights_of_another_model_neither_answers_nor_is_a_beginning() {
    let adapter = fixture("llama-gqa/jobs/ends-r8-dropout/init");
    let other = Fixture::open("mistral-sliding");
    let adapters = [adapter.clone()];
    let config = LlamaConfig::from_directory(&other.directory).expect("a model");
    let loaded = Generator::load(
        &other.directory,
        &config,
        DtypeChoice::Float32,
        &adapters,
        &device(),
    );
    let error = loaded.expect_err("it answers");
    assert!(
        matches!(error, TrainerError::Model(ModelError::OtherCopy { .. })),
        "{error}"
    );

    let directory = tempfile::tempdir().expect("a directory");
    let begun =
        json!({"name": "a", "dataset": "data", "init_from": adapter, "train": {"max_steps": 1}});
    let config = other.config(&[begun], &directory.path().join("run"));
    let path = directory.path().join("config.json");
    fs::write(&path, config.to_string()).expect("written");
    let config = RunConfig::load(&path, &[]).expect("valid").config;
    let Err(TrainerError::InitFrom { source, .. }) = inspect(&config, None) else {
        panic!("it begins");
    };
    assert!(
        matches!(*source, TrainerError::Model(ModelError::OtherCopy { .. })),
        "{source}"
    );
}

#[test]
fn weights_that_are_said_to_be_tied_must_be_the_same() {
    let model = copied(&fixture("llama-gqa"), |_| ());
    let path = model.path().join("config.json");
    let mut config: Value =
        serde_json::from_slice(&fs::read(&path).expect("a config")).expect("JSON");
    config["tie_word_embeddings"] = json!(true);
    fs::write(&path, config.to_string()).expect("written");
    let config = LlamaConfig::from_directory(model.path()).expect("a model");
    let checkpoint = Checkpoint::open(model.path()).expect("a checkpoint");
    let error = checkpoint.verify(&config).expect_err("two weights");
    assert!(matches!(error, ModelError::NotTied(_)), "{error}");
}

//! Safetensors checkpoints: what is read, and what damaged or hostile files lead to.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
};

use half::{bf16, f16};
use loraloom_model::{Checkpoint, LlamaConfig, ModelError, TensorDtype, parameter_shapes};
use safetensors::{Dtype, tensor::TensorView};
use tempfile::TempDir;

type Stored = (String, Dtype, Vec<usize>, Vec<u8>);

fn config(keys: &str) -> LlamaConfig {
    LlamaConfig::from_json(&format!(
        r#"{{"model_type": "llama", "vocab_size": 12, "hidden_size": 8, "intermediate_size": 6,
            "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1 {keys}}}"#
    ))
    .expect("valid")
}

fn float32(name: &str, shape: &[usize], value: f32) -> Stored {
    let bytes = value.to_le_bytes().repeat(shape.iter().product());
    (name.to_owned(), Dtype::F32, shape.to_vec(), bytes)
}

fn parameters(config: &LlamaConfig) -> Vec<Stored> {
    parameter_shapes(config)
        .iter()
        .map(|(name, shape)| float32(name, shape, 1.0))
        .collect()
}

fn bytes(tensors: &[Stored]) -> Vec<u8> {
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        (
            name,
            TensorView::new(*dtype, shape.clone(), bytes).expect("consistent"),
        )
    });
    safetensors::serialize(views, None::<HashMap<_, _>>).expect("serializable")
}

fn directory(files: &[(&str, Vec<u8>)]) -> TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    for (name, contents) in files {
        fs::write(directory.path().join(name), contents).expect("written");
    }
    directory
}

fn open(directory: &TempDir) -> Result<Checkpoint, ModelError> {
    Checkpoint::open(directory.path())
}

fn fixture(model: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/fixtures")
        .join(model)
}

/// Runs and adapters of earlier builds name their model by it.
#[test]
fn a_model_has_the_digest_that_it_always_had() {
    // Computed in Python from the definition: config.json, then parameters in the order of the layers.
    for (model, digest) in [
        (
            "llama-gqa",
            "d784d3273a7ae01f28a63d8e11e766faab3bb0b39cf1064617641d74e31f3797",
        ),
        (
            "qwen2-sharded",
            "5ff8d4f34331e488d597ffc40d99b21e684f2faad4ac973b695cbae66bc6d42e",
        ),
        (
            "qwen3",
            "30f2e2be8ce50a11065a9045420fce42a96a98ba47da1e1448011583545ba81c",
        ),
    ] {
        let directory = fixture(model);
        let config = LlamaConfig::from_directory(&directory).unwrap();
        let checkpoint = Checkpoint::open(&directory).unwrap();
        assert_eq!(checkpoint.digest(&config).unwrap(), digest, "{model}");
    }
}

#[test]
fn models_saved_by_transformers_are_complete() {
    let models = [
        "llama-gqa",
        "llama-tied-rope-llama3",
        "mistral-sliding",
        "qwen2-sharded",
        "qwen3",
        "granite",
        "olmo2",
        "smollm3",
        "gemma2",
        "gemma3",
        "phi3",
    ];
    for model in models {
        let directory = fixture(model);
        let config = LlamaConfig::from_directory(&directory).unwrap();
        let checkpoint = Checkpoint::open(&directory).unwrap();
        checkpoint.verify(&config).unwrap();
        assert_eq!(checkpoint.names().count(), parameter_shapes(&config).len());
        assert_eq!(checkpoint.dtype(), Some(TensorDtype::Float32));
    }
}

#[test]
fn every_type_widens_exactly() {
    let values: Vec<f32> = (0..10_000).map(|i| (i as f32 - 5000.0) / 64.0).collect();
    let halves: Vec<u8> = values
        .iter()
        .flat_map(|v| f16::from_f32(*v).to_le_bytes())
        .collect();
    let brains: Vec<u8> = values
        .iter()
        .flat_map(|v| bf16::from_f32(*v).to_le_bytes())
        .collect();
    let floats: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let shape = vec![100, 100];
    let directory = directory(&[(
        "model.safetensors",
        bytes(&[
            ("half".to_owned(), Dtype::F16, shape.clone(), halves),
            ("brain".to_owned(), Dtype::BF16, shape.clone(), brains),
            ("float".to_owned(), Dtype::F32, shape.clone(), floats),
            ("odd".to_owned(), Dtype::BF16, vec![0, 3], Vec::new()),
        ]),
    )]);
    let checkpoint = open(&directory).unwrap();
    let read = |name| checkpoint.tensor(name).unwrap().to_f32();
    assert_eq!(read("float"), values);
    let halves: Vec<f32> = values.iter().map(|v| f16::from_f32(*v).to_f32()).collect();
    assert_eq!(read("half"), halves);
    let brains: Vec<f32> = values.iter().map(|v| bf16::from_f32(*v).to_f32()).collect();
    assert_eq!(read("brain"), brains);
    assert!(read("odd").is_empty());
    assert_eq!(
        checkpoint.tensor("half").unwrap().dtype,
        TensorDtype::Float16
    );
    assert_eq!(checkpoint.tensor("brain").unwrap().to_f32().len(), 10_000);
}

#[test]
fn verification_names_what_is_wrong() {
    let config = config("");
    let good = parameters(&config);
    let verify = |tensors: &[Stored]| {
        let directory = directory(&[("model.safetensors", bytes(tensors))]);
        open(&directory).unwrap().verify(&config)
    };
    verify(&good).unwrap();

    let error = verify(&good[1..]).unwrap_err();
    assert!(matches!(&error, ModelError::MissingTensors { names, .. }
        if names == &["model.embed_tokens.weight"]));

    let mut transposed = good.clone();
    transposed[0].2.reverse();
    let error = verify(&transposed).unwrap_err();
    assert!(
        matches!(&error, ModelError::TensorShape { tensor, expected, found, .. }
        if tensor == "model.embed_tokens.weight" && expected == &[12, 8] && found == &[8, 12])
    );

    let mut quantised = good.clone();
    quantised[0] = (quantised[0].0.clone(), Dtype::U8, vec![12, 8], vec![0; 96]);
    let error = verify(&quantised).unwrap_err();
    assert!(
        matches!(&error, ModelError::TensorType { found, .. } if found == "U8"),
        "{error}"
    );
    assert!(error.hint().is_some());

    let mut biased = good.clone();
    biased.push(float32("model.layers.1.self_attn.q_proj.bias", &[8], 0.0));
    let error = verify(&biased).unwrap_err();
    assert!(
        error.to_string().contains("layers.1.self_attn.q_proj.bias"),
        "{error}"
    );

    let mut redundant = good;
    redundant.push(float32(
        "model.layers.0.self_attn.rotary_emb.inv_freq",
        &[2],
        0.0,
    ));
    verify(&redundant).unwrap();
}

#[test]
fn a_tied_head_is_ignored_and_an_untied_one_needed() {
    let untied = config("");
    let tied = config(r#", "tie_word_embeddings": true"#);
    let directory = directory(&[("model.safetensors", bytes(&parameters(&untied)))]);
    let checkpoint = open(&directory).unwrap();
    checkpoint.verify(&tied).unwrap();
    assert!(checkpoint.unexpected(&tied).is_empty());

    let without = self::directory(&[("model.safetensors", bytes(&parameters(&tied)))]);
    let error = open(&without).unwrap().verify(&untied).unwrap_err();
    assert!(error.to_string().contains("lm_head.weight"), "{error}");
}

#[test]
fn expect_compares_shapes() {
    let directory = directory(&[("model.safetensors", bytes(&[float32("w", &[2, 3], 2.0)]))]);
    let checkpoint = open(&directory).unwrap();
    assert_eq!(checkpoint.expect("w", &[2, 3]).unwrap().to_f32(), [2.0; 6]);
    assert!(matches!(
        checkpoint.expect("w", &[3, 2]),
        Err(ModelError::TensorShape { .. })
    ));
    assert!(matches!(
        checkpoint.expect("v", &[3, 2]),
        Err(ModelError::MissingTensors { .. })
    ));
}

fn index(places: &[(&str, &str)]) -> Vec<u8> {
    let map: HashMap<_, _> = places.iter().copied().collect();
    serde_json::json!({"metadata": {}, "weight_map": map})
        .to_string()
        .into_bytes()
}

#[test]
fn shards_and_their_index_must_agree() {
    let (a, b) = (
        bytes(&[float32("a", &[1], 1.0)]),
        bytes(&[float32("b", &[1], 2.0)]),
    );
    let name = "model.safetensors.index.json";
    let open_with = |index: Vec<u8>, b: Option<Vec<u8>>| {
        let mut files = vec![(name, index), ("a.safetensors", a.clone())];
        files.extend(b.map(|b| ("b.safetensors", b)));
        let directory = directory(&files);
        open(&directory)
    };
    let both = || index(&[("a", "a.safetensors"), ("b", "b.safetensors")]);
    let checkpoint = open_with(both(), Some(b.clone())).unwrap();
    assert_eq!(checkpoint.tensor("a").unwrap().to_f32(), [1.0]);
    assert_eq!(checkpoint.tensor("b").unwrap().to_f32(), [2.0]);

    let error = open_with(both(), None).unwrap_err();
    assert!(error.to_string().contains("b.safetensors"), "{error}");

    let wrong = index(&[("b", "a.safetensors"), ("a", "b.safetensors")]);
    let error = open_with(wrong, Some(b.clone())).unwrap_err().to_string();
    assert!(
        error.contains("places `a` in") && error.contains("b.safetensors"),
        "{error}"
    );

    for outside in [
        "../a.safetensors",
        "/etc/passwd",
        "",
        "sub/a.safetensors",
        "..",
    ] {
        let error = open_with(index(&[("a", outside)]), None).unwrap_err();
        assert!(
            error.to_string().contains("not a file name"),
            "{outside}: {error}"
        );
    }
    for garbage in [&b"{"[..], b"[]", b"{\"weight_map\": 3}", b"\xff\xfe"] {
        open_with(garbage.to_vec(), None).unwrap_err();
    }
    // In both files, and the index speaks of neither.
    let one = index(&[("b", "b.safetensors"), ("a", "a.safetensors")]);
    let directory = directory(&[
        (name, one),
        (
            "a.safetensors",
            bytes(&[float32("a", &[1], 0.0), float32("c", &[1], 1.0)]),
        ),
        (
            "b.safetensors",
            bytes(&[float32("b", &[1], 0.0), float32("c", &[1], 2.0)]),
        ),
    ]);
    assert!(
        matches!(open(&directory), Err(ModelError::InFile { error, .. })
        if matches!(*error, ModelError::DuplicateTensor { .. }))
    );
}

#[test]
fn directories_without_usable_weights_say_so() {
    let tensor = || bytes(&[float32("w", &[1], 1.0)]);
    assert!(open(&directory(&[("weights.safetensors", tensor())])).is_ok());
    let two = directory(&[("x.safetensors", tensor()), ("y.safetensors", tensor())]);
    assert!(
        matches!(open(&two), Err(ModelError::AmbiguousWeights { files, .. }) if files.len() == 2)
    );
    let pickle = directory(&[("pytorch_model.bin", vec![1])]);
    let error = open(&pickle).unwrap_err();
    assert!(matches!(error, ModelError::PickleOnly { .. }) && error.hint().is_some());
    assert!(matches!(
        open(&directory(&[])),
        Err(ModelError::NoWeights { .. })
    ));
    let adapter = directory(&[("adapter_config.json", vec![]), ("x.safetensors", tensor())]);
    assert!(matches!(
        open(&adapter),
        Err(ModelError::AdapterAsBase { .. })
    ));
    let error = Checkpoint::open(Path::new("does/not/exist")).unwrap_err();
    assert!(error.to_string().contains("does/not/exist"), "{error}");
}

fn with_header(header: &str, data: usize) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.resize(file.len() + data, 0);
    file
}

#[test]
fn damaged_files_are_errors() {
    let good = bytes(&[float32("w", &[4, 4], 1.0), float32("v", &[3], 1.0)]);
    // Cut anywhere, the file is an error and never a panic.
    for length in 0..good.len() {
        let directory = directory(&[("model.safetensors", good[..length].to_vec())]);
        assert!(
            matches!(open(&directory), Err(ModelError::Safetensors { .. })),
            "{length}"
        );
    }
    let entry = |name: &str, shape: &str, from: u64, to: u64| {
        format!(r#""{name}":{{"dtype":"F32","shape":{shape},"data_offsets":[{from},{to}]}}"#)
    };
    let mut long_header = good.clone();
    long_header[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    let mut longer = good.clone();
    longer.push(0);
    let overlapping = format!(
        "{{{},{}}}",
        entry("a", "[2]", 0, 8),
        entry("b", "[2]", 4, 12)
    );
    let gap = format!(
        "{{{},{}}}",
        entry("a", "[1]", 0, 4),
        entry("b", "[1]", 8, 12)
    );
    let backwards = format!("{{{}}}", entry("a", "[1]", 4, 0));
    let beyond = format!("{{{}}}", entry("a", "[4]", 0, 16));
    let lying = format!("{{{}}}", entry("a", "[3]", 0, 16));
    let overflow = format!("{{{}}}", entry("a", "[4294967296,4294967296,4]", 0, 16));
    let huge = format!("{{{}}}", entry("a", "[1]", 0, u64::MAX));
    for (what, file) in [
        ("header length", long_header),
        ("longer than its header says", longer),
        ("overlapping", with_header(&overlapping, 12)),
        ("gap", with_header(&gap, 12)),
        ("backwards", with_header(&backwards, 4)),
        ("beyond the end", with_header(&beyond, 8)),
        ("shape and size differ", with_header(&lying, 16)),
        ("overflow", with_header(&overflow, 16)),
        ("huge offset", with_header(&huge, 16)),
        ("no JSON", with_header("not json", 0)),
        ("no object", with_header("[]", 0)),
        (
            "unknown type",
            with_header(r#"{"a":{"dtype":"X","shape":[],"data_offsets":[0,0]}}"#, 0),
        ),
    ] {
        let directory = directory(&[("model.safetensors", file)]);
        let error = open(&directory).expect_err(what);
        assert!(
            matches!(error, ModelError::Safetensors { .. }),
            "{what}: {error}"
        );
        assert!(
            error.to_string().contains("model.safetensors"),
            "{what}: {error}"
        );
    }
}

#[test]
fn a_git_lfs_pointer_is_recognised() {
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n".to_vec();
    let directory = directory(&[("model.safetensors", pointer)]);
    let error = open(&directory).unwrap_err();
    assert!(matches!(error, ModelError::LfsPointer { .. }), "{error}");
    assert!(error.hint().unwrap().contains("git lfs pull"));
}

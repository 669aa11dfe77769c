//! PEFT adapter directories: what PEFT writes is read, what is written survives a round trip.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use loraloom_model::{
    LlamaConfig, LoraWeights, ModelError, PeftAdapter, PeftLoraConfig, PeftNotes, TargetModules,
};
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};

const ADAPTERS: [&str; 5] = ["plain", "rslora-all", "patterns", "one-layer-bf16", "regex"];
const Q: &str = "model.layers.0.self_attn.q_proj";

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/adapters")
}

fn base() -> LlamaConfig {
    let text = fs::read_to_string(fixtures().join("base_config.json")).expect("a fixture");
    LlamaConfig::from_json(&text).expect("valid")
}

/// First row of `scale · B·A`.
fn first_row(weights: &LoraWeights) -> Vec<f64> {
    let column = |i: usize| -> f64 {
        (0..weights.r)
            .map(|k| f64::from(weights.b[k]) * f64::from(weights.a[k * weights.d_in + i]))
            .sum()
    };
    (0..weights.d_in)
        .map(|i| weights.scale * column(i))
        .collect()
}

fn module(r: usize, lora_alpha: f64, d_in: usize, d_out: usize) -> LoraWeights {
    LoraWeights {
        magnitude: None,
        r,
        lora_alpha,
        scale: lora_alpha / r as f64,
        a: (0..r * d_in).map(|i| i as f32 / 7.0).collect(),
        b: (0..d_out * r).map(|i| -(i as f32) / 3.0).collect(),
        d_in,
        d_out,
    }
}

fn adapter(modules: &[(&str, LoraWeights)]) -> PeftAdapter {
    let names = modules
        .iter()
        .filter_map(|(path, _)| path.rsplit('.').next());
    PeftAdapter {
        config: PeftLoraConfig::new(2, 4.0, names.map(str::to_owned).collect()),
        modules: modules
            .iter()
            .map(|(path, w)| ((*path).to_owned(), w.clone()))
            .collect(),
        base: None,
    }
}

#[test]
fn adapters_saved_by_peft_mean_the_same_here() {
    let expected = fs::read_to_string(fixtures().join("expected.json")).unwrap();
    let expected: HashMap<String, HashMap<String, Value>> =
        serde_json::from_str(&expected).unwrap();
    assert_eq!(expected.len(), ADAPTERS.len());
    for name in ADAPTERS {
        let adapter = PeftAdapter::load(&fixtures().join(name)).unwrap();
        adapter.verify(&base()).unwrap();
        let expected = &expected[name];
        assert_eq!(adapter.modules.len(), expected.len(), "{name}");
        for (module, weights) in &adapter.modules {
            let expected = &expected[module];
            assert_eq!(json!(weights.r), expected["r"], "{name} {module}");
            assert_eq!(json!([weights.d_out, weights.d_in]), expected["shape"]);
            let scale = expected["scale"].as_f64().unwrap();
            assert!(
                (weights.scale - scale).abs() < 1e-12,
                "{name} {module}: {}",
                weights.scale
            );
            let row: Vec<f64> = serde_json::from_value(expected["first_row"].clone()).unwrap();
            for (found, wanted) in first_row(weights).iter().zip(&row) {
                assert!(
                    (found - wanted).abs() < 1e-12,
                    "{name} {module}: {found} {wanted}"
                );
            }
        }
    }
}

#[test]
fn what_is_saved_is_loaded_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    for name in ADAPTERS {
        let path = fixtures().join(name);
        assert_eq!(PeftNotes::read(&path).unwrap(), None);
        let mut adapter = PeftAdapter::load(&path).unwrap();
        adapter.base = Some("of a digest".to_owned());
        let saved = directory.path().join(name);
        adapter.save(&saved).unwrap();
        let loaded = PeftAdapter::load(&saved).unwrap();
        assert_eq!(loaded, adapter, "{name}");
        assert_eq!(loaded.digest(), adapter.digest());
        let notes = PeftNotes::read(&saved).unwrap().unwrap();
        assert_eq!(notes.base, adapter.base);
        for (module, weights) in &adapter.modules {
            let note = &notes.modules[module];
            assert!(note.has_scale(weights.scale) && !note.has_scale(weights.scale * 1.01));
        }
        // Of two modules none are alike, wherever they are.
        let factors = notes.modules.values().map(|note| &note.factors);
        let different: BTreeSet<_> = factors.collect();
        assert_eq!(different.len(), adapter.modules.len(), "{name}");
    }
}

#[test]
fn the_files_are_those_of_peft() {
    let directory = tempfile::tempdir().unwrap();
    let mut adapter = adapter(&[(Q, module(2, 4.0, 3, 5))]);
    adapter.config.lora_dropout = 0.05;
    adapter.config.base_model_name_or_path = Some("some/base".to_owned());
    adapter.save(&directory.path().join("new/one")).unwrap();

    let read = |file: &str| fs::read(directory.path().join("new/one").join(file)).unwrap();
    let config: Value = serde_json::from_slice(&read("adapter_config.json")).unwrap();
    assert_eq!(
        config,
        json!({
            "alpha_pattern": {}, "base_model_name_or_path": "some/base", "bias": "none",
            "exclude_modules": null, "fan_in_fan_out": false, "inference_mode": true,
            "init_lora_weights": true, "layers_pattern": null, "layers_to_transform": null,
            "lora_alpha": 4, "lora_dropout": 0.05, "modules_to_save": null, "peft_type": "LORA",
            "r": 2, "rank_pattern": {}, "revision": null, "target_modules": ["q_proj"],
            "task_type": "CAUSAL_LM", "use_dora": false, "use_rslora": false
        })
    );
    for (name, written) in [
        (Some("gaussian"), json!("gaussian")),
        (Some("orthogonal"), json!("orthogonal")),
        (None, json!(true)),
    ] {
        adapter.config.init_lora_weights = name.map(str::to_owned);
        let text = adapter.config.to_json().unwrap();
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["init_lora_weights"], written);
        assert_eq!(PeftLoraConfig::from_json(&text).unwrap(), adapter.config);
    }
    let weights = read("adapter_model.safetensors");
    let (_, metadata) = SafeTensors::read_metadata(&weights).unwrap();
    assert_eq!(metadata.metadata().as_ref().unwrap()["format"], "pt");
    let tensors = SafeTensors::deserialize(&weights).unwrap();
    assert_eq!(tensors.len(), 2);
    for (factor, shape) in [("lora_A", [2, 3]), ("lora_B", [5, 2])] {
        let tensor = tensors
            .tensor(&format!("base_model.model.{Q}.{factor}.weight"))
            .unwrap();
        assert_eq!((tensor.dtype(), tensor.shape()), (Dtype::F32, &shape[..]));
    }
}

#[test]
fn saving_twice_gives_the_same_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let adapter = PeftAdapter::load(&fixtures().join("rslora-all")).unwrap();
    let bytes = |name: &str| {
        let path = directory.path().join(name);
        adapter.save(&path).unwrap();
        ["adapter_config.json", "adapter_model.safetensors"]
            .map(|f| fs::read(path.join(f)).unwrap())
    };
    assert_eq!(bytes("a"), bytes("b"));
}

#[test]
fn modules_that_differ_get_patterns() {
    let directory = tempfile::tempdir().unwrap();
    let (k1, k11) = (
        "model.layers.1.self_attn.k_proj",
        "model.layers.11.self_attn.k_proj",
    );
    let adapter = adapter(&[
        (Q, module(2, 4.0, 3, 5)),
        (k1, module(3, 4.0, 3, 5)),
        (k11, module(2, 1.5, 3, 5)),
    ]);
    adapter.save(directory.path()).unwrap();
    let loaded = PeftAdapter::load(directory.path()).unwrap();
    assert_eq!(loaded.modules, adapter.modules);
    assert_eq!(loaded.config.rank_pattern, [(k1.to_owned(), 3)]);
    assert_eq!(loaded.config.alpha_pattern, [(k11.to_owned(), 1.5)]);
}

#[test]
fn replacing_keeps_other_files_and_leaves_nothing_behind() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("last");
    adapter(&[(Q, module(2, 4.0, 3, 5))]).save(&path).unwrap();
    fs::write(path.join("README.md"), "mine").unwrap();
    let second = adapter(&[(Q, module(2, 4.0, 4, 5))]);
    second.save(&path).unwrap();
    assert_eq!(PeftAdapter::load(&path).unwrap(), second);
    assert_eq!(fs::read_to_string(path.join("README.md")).unwrap(), "mine");
    let names: Vec<_> = fs::read_dir(parent.path())
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(names, ["last"]);
}

#[test]
fn a_file_is_not_replaced() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("notes");
    fs::write(&path, "mine").unwrap();
    let error = adapter(&[(Q, module(2, 4.0, 3, 5))])
        .save(&path)
        .unwrap_err();
    assert!(matches!(error, ModelError::Write { .. }), "{error}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
}

/// Of what is above an adapter's own directory nothing is made: it may have been taken away.
#[test]
fn a_directory_that_is_gone_is_not_made_again() {
    let parent = tempfile::tempdir().unwrap();
    let adapters = parent.path().join("adapters");
    let one = adapter(&[(Q, module(2, 4.0, 3, 5))]);
    let error = one.save(&adapters.join("name/last")).unwrap_err();
    assert!(matches!(error, ModelError::Write { .. }), "{error}");
    assert!(!adapters.exists());
    fs::create_dir(&adapters).unwrap();
    one.save(&adapters.join("name/last")).unwrap();
}

#[test]
fn an_interrupted_save_is_explained() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("last");
    fs::create_dir(parent.path().join("last.old-17")).unwrap();
    let error = PeftAdapter::load(&path).unwrap_err();
    assert!(
        matches!(error, ModelError::InterruptedSave { .. }),
        "{error}"
    );
    assert!(error.hint().unwrap().contains("last.old-17"));
}

#[test]
fn an_adapter_that_contradicts_itself_is_not_written() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("adapter");
    let good = adapter(&[(Q, module(2, 4.0, 3, 5))]);
    let refused = |change: &dyn Fn(&mut PeftAdapter, &mut LoraWeights)| {
        let mut adapter = good.clone();
        let mut weights = adapter.modules[Q].clone();
        change(&mut adapter, &mut weights);
        adapter.modules.insert(Q.to_owned(), weights);
        let error = adapter.save(&path).expect_err("written");
        assert!(!path.exists());
        error
    };
    let error = refused(&|_, w| w.a[4] = f32::NAN);
    assert!(
        matches!(error, ModelError::NotFinite { element: 4, .. }),
        "{error}"
    );
    let error = refused(&|_, w| w.b.truncate(3));
    assert!(
        matches!(error, ModelError::AdapterFactors { .. }),
        "{error}"
    );
    let error = refused(&|_, w| w.scale = 3.0);
    assert!(matches!(error, ModelError::AdapterScale { .. }), "{error}");
    let error = refused(&|a, _| a.config.use_rslora = true);
    assert!(matches!(error, ModelError::AdapterScale { .. }), "{error}");
    let error = refused(&|a, _| a.config.target_modules = TargetModules::Names(vec![]));
    assert!(matches!(error, ModelError::NotTargeted { .. }), "{error}");
    let empty = PeftAdapter {
        modules: BTreeMap::new(),
        ..good
    };
    assert!(matches!(
        empty.save(&path),
        Err(ModelError::EmptyAdapter { .. })
    ));
}

#[test]
fn an_adapter_must_fit_its_base() {
    let base = base();
    let load = || PeftAdapter::load(&fixtures().join("plain")).unwrap();
    let rename = |from: &str, to: &str| {
        let mut adapter = load();
        let weights = adapter.modules.remove(from).unwrap();
        adapter.modules.insert(to.to_owned(), weights);
        adapter.verify(&base).unwrap_err()
    };
    let error = rename(Q, "model.layers.2.self_attn.q_proj");
    assert!(matches!(error, ModelError::NoSuchModule { .. }), "{error}");
    let error = rename(Q, "model.norm");
    assert!(matches!(error, ModelError::NoSuchModule { .. }), "{error}");
    let error = rename(Q, "lm_head");
    assert!(matches!(error, ModelError::AdapterSize { .. }), "{error}");
    let error = rename(Q, "model.layers.0.self_attn.v_proj");
    assert!(matches!(
        &error,
        ModelError::AdapterSize {
            expected: [8, 16],
            found: [16, 16],
            ..
        }
    ));

    let mut partial = load();
    partial.modules.remove(Q);
    let error = partial.verify(&base).unwrap_err();
    assert!(matches!(&error, ModelError::MissingAdapterModules { modules } if modules == &[Q]));
}

/// `cp` over an adapter that a server reads: a mapped file would end the process.
#[test]
fn a_file_may_be_written_while_it_is_read() {
    let here = tempfile::tempdir().expect("a directory");
    let directory = here.path().join("adapter");
    let large = adapter(&[(Q, module(64, 64.0, 8192, 8192))]);
    large.save(&directory).expect("saved");
    let path = directory.join("adapter_model.safetensors");
    let bytes = fs::read(&path).expect("weights");
    let is_over = AtomicBool::new(false);
    let read = thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                fs::write(&path, &bytes).expect("written");
                thread::sleep(Duration::from_millis(2));
            }
        });
        let begun = Instant::now();
        let mut read = [0, 0];
        while begun.elapsed() < Duration::from_secs(1) {
            read[usize::from(PeftAdapter::load(&directory).is_ok())] += 1;
        }
        is_over.store(true, Ordering::Relaxed);
        read
    });
    assert!(read[0] + read[1] > 9, "{read:?} failed, read");
}

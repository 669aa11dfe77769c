//! `verify` passes what is whole, and names what is off.

use std::{
    fs,
    path::{Path, PathBuf},
};

use loraloom_config::RunConfig;
use loraloom_model::{Checkpoint, LlamaConfig, MergePart, PeftAdapter, TensorDtype, merge};
use loraloom_tests::{Fixture, train};
use loraloom_trainer::{CheckResult, Verdict, verify};
use safetensors::SafeTensors;
use serde_json::{Value, json};
use tempfile::TempDir;

const WEIGHTS: &str = "adapter_model.safetensors";
const Q: [&str; 2] = [
    "model.layers.0.self_attn.q_proj",
    "model.layers.1.self_attn.q_proj",
];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures")
        .join(name)
}

/// Adapters that PEFT saved, with their bases.
fn made_elsewhere() -> Vec<(PathBuf, PathBuf)> {
    let mut found = vec![
        (fixture("merge/patterns"), fixture("llama-gqa")),
        (fixture("merge/all-linear"), fixture("mistral-sliding")),
    ];
    for fixture in Fixture::with_jobs() {
        for job in fixture.jobs() {
            found.push((job.directory.join("final"), fixture.directory.clone()));
        }
    }
    found
}

/// An adapter as loraloom saves it, trained over `base`.
fn saved(adapter: &Path, base: &Path) -> (TempDir, PathBuf) {
    let mut adapter = PeftAdapter::load(adapter).expect("an adapter");
    let config = LlamaConfig::from_directory(base).expect("a model");
    let digest = Checkpoint::open(base).and_then(|base| base.digest(&config));
    adapter.base = Some(digest.expect("a digest"));
    let parent = tempfile::tempdir().expect("a directory");
    let directory = parent.path().join("adapter");
    adapter.save(&directory).expect("saved");
    (parent, directory)
}

fn results(path: &Path, model: Option<&Path>) -> Vec<CheckResult> {
    let configurations = |run: &Path| {
        let loaded = RunConfig::load(&run.join("config.resolved.yaml"), &[]);
        loaded
            .map(|loaded| vec![loaded.config])
            .map_err(|error| error.to_string())
    };
    verify(path, model, &configurations).expect("the base can be read")
}

/// Checks that came to this, by name.
fn with(results: &[CheckResult], verdict: Verdict) -> Vec<&'static str> {
    let results = results.iter().filter(|result| result.verdict == verdict);
    results.map(|result| result.name).collect()
}

/// Checks that the one failure has this name, and all these words.
#[track_caller]
fn assert_fails(what: &str, results: &[CheckResult], name: &str, words: &[&str]) {
    let mut failed = results
        .iter()
        .filter(|result| result.verdict == Verdict::Fails);
    let found = failed.find(|result| {
        result.name == name && words.iter().all(|word| result.message.contains(word))
    });
    assert!(found.is_some(), "{what}: {words:?} in {results:#?}");
}

/// Changes the values of one tensor of a safetensors file, and nothing else of it.
fn change(path: &Path, tensor: &str, change: impl FnOnce(&mut [u8])) {
    let mut bytes = fs::read(path).expect("a file");
    let (header, metadata) = SafeTensors::read_metadata(&bytes).expect("safetensors");
    let (start, end) = metadata.info(tensor).expect("there").data_offsets;
    change(&mut bytes[8 + header..][start..end]);
    fs::write(path, bytes).expect("written");
}

fn data(path: &Path, tensor: &str) -> Vec<u8> {
    let bytes = fs::read(path).expect("a file");
    let tensors = SafeTensors::deserialize(&bytes).expect("safetensors");
    tensors.tensor(tensor).expect("there").data().to_vec()
}

/// Swaps the values of two tensors of the same shape.
fn swap(path: &Path, [one, other]: [&str; 2]) {
    let (first, second) = (data(path, one), data(path, other));
    change(path, one, |bytes| bytes.copy_from_slice(&second));
    change(path, other, |bytes| bytes.copy_from_slice(&first));
}

fn edit(adapter: &Path, edit: impl FnOnce(&mut Value)) {
    let path = adapter.join("adapter_config.json");
    let mut config: Value =
        serde_json::from_slice(&fs::read(&path).expect("a config")).expect("JSON");
    edit(&mut config);
    fs::write(path, config.to_string()).expect("written");
}

fn factor(module: &str, factor: &str) -> String {
    format!("base_model.model.{module}.{factor}.weight")
}

/// A model of the shape of `base` with other weights.
fn other_model(base: &Path, adapter: &Path) -> (TempDir, PathBuf) {
    let parent = tempfile::tempdir().expect("a directory");
    let out = parent.path().join("other");
    let part = MergePart {
        directory: adapter.to_owned(),
        adapter: PeftAdapter::load(adapter).expect("an adapter"),
        weight: 1.0,
    };
    merge(base, &[part], None, &out, &mut |_, _| ()).expect("merged");
    (parent, out)
}

#[test]
fn base_weights_of_another_model_beside_an_adapter_are_found() {
    let adapter = fixture("llama-gqa/jobs/ends-r8-dropout/init");
    let found = results(&adapter, Some(&fixture("mistral-sliding")));
    let words = ["base_layer.weight", "is not the weight of the model"];
    assert_fails("copies of another base", &found, "base", &words);
    let found = results(&adapter, Some(&fixture("llama-gqa")));
    assert!(
        !with(&found, Verdict::Fails).contains(&"base"),
        "{found:#?}"
    );
}

#[test]
fn good_adapters_pass() {
    let adapters = made_elsewhere();
    assert!(adapters.len() > 18);
    for (adapter, base) in &adapters {
        let what = adapter.display();
        let found = results(adapter, Some(base));
        assert_eq!(with(&found, Verdict::Fails), [""; 0], "{what}: {found:#?}");
        assert_eq!(
            with(&found, Verdict::Unchecked),
            ["as saved", "base"],
            "{what}"
        );

        let (_parent, saved) = saved(adapter, base);
        let found = results(&saved, Some(base));
        let all = ["files", "effect", "as saved", "base", "logits"];
        assert_eq!(with(&found, Verdict::Holds), all, "{what}: {found:#?}");
    }
}

#[test]
fn faults_of_an_adapter_are_named() {
    for (adapter, base) in [
        ("llama-gqa/jobs/attn-r8-cosine/final", "llama-gqa"),
        ("llama-gqa/jobs/all-r4-rslora/final", "llama-gqa"),
        ("merge/patterns", "llama-gqa"),
        ("qwen2-sharded/jobs/all-r8-linear/final", "qwen2-sharded"),
    ] {
        let (original, base) = (fixture(adapter), fixture(base));
        let (_other, other) = other_model(&base, &original);
        let fails = |fault: &dyn Fn(&Path), model: &Path, name: &str, words: &[&str]| {
            let (_parent, saved) = saved(&original, &base);
            fault(&saved);
            assert_fails(adapter, &results(&saved, Some(model)), name, words);
        };
        let weights = |path: &Path| path.join(WEIGHTS);
        let b = Q.map(|module| factor(module, "lora_B"));
        let a = Q.map(|module| factor(module, "lora_A"));
        let zero = |bytes: &mut [u8]| bytes.fill(0);

        let fault = |path: &Path| change(&weights(path), &b[1], zero);
        fails(&fault, &base, "effect", &["lora_B is zero in 1 of", Q[1]]);
        let all = |path: &Path| {
            for module in PeftAdapter::load(path).expect("an adapter").modules.keys() {
                change(&weights(path), &factor(module, "lora_B"), zero);
            }
        };
        fails(&all, &base, "effect", &["lora_B is zero in"]);
        fails(&all, &base, "logits", &["equal the base's"]);

        let fault = |path: &Path| {
            swap(&weights(path), [&a[0], &a[1]]);
            swap(&weights(path), [&b[0], &b[1]]);
        };
        let words = [&*format!("`{}` has the factors of `{}`", Q[0], Q[1])];
        fails(&fault, &base, "as saved", &words);
        let fault = |path: &Path| swap(&weights(path), [&a[0], &a[1]]);
        fails(&fault, &base, "as saved", &[Q[0], "has different factors"]);

        let fault = |path: &Path| {
            edit(path, |config| {
                config["lora_alpha"] = json!(config["lora_alpha"].as_f64().expect("one") * 2.0);
            });
        };
        fails(&fault, &base, "as saved", &["lora_alpha", "saved with"]);
        let fault = |path: &Path| {
            edit(path, |config| {
                config["use_rslora"] = json!(!config["use_rslora"].as_bool().expect("one"));
            });
        };
        fails(&fault, &base, "as saved", &["use_rslora"]);

        fails(
            &|_| (),
            &other,
            "base",
            &["is not the model that it was trained over"],
        );
        fails(&|_| (), &fixture("qwen3"), "base", &["adapts"]);

        let nan = |bytes: &mut [u8]| bytes[..4].copy_from_slice(&f32::NAN.to_le_bytes());
        let fault = |path: &Path| change(&weights(path), &a[0], nan);
        fails(&fault, &base, "files", &[Q[0], "NaN"]);
        let fault = |path: &Path| edit(path, |config| config["r"] = json!(7));
        fails(&fault, &base, "files", &["rank"]);
        let fault = |path: &Path| {
            edit(path, |config| config["target_modules"] = json!(["q_proj"]));
        };
        fails(&fault, &base, "files", &["does not match it"]);
        let fault = |path: &Path| {
            let bytes = fs::read(weights(path)).expect("weights");
            fs::write(weights(path), &bytes[..bytes.len() - 1]).expect("written");
        };
        fails(&fault, &base, "files", &["not a valid safetensors"]);
        let fault = |path: &Path| fs::remove_file(weights(path)).expect("removed");
        fails(&fault, &base, "files", &["cannot read"]);
    }
    // Targets without weights.
    let base = fixture("llama-gqa");
    let (_parent, saved) = saved(&fixture("llama-gqa/jobs/qv-r4-betas/final"), &base);
    edit(&saved, |config| {
        config["target_modules"] = json!(["q_proj", "v_proj", "k_proj"]);
    });
    assert_fails(
        "k_proj",
        &results(&saved, Some(&base)),
        "base",
        &["2 modules without weights"],
    );
}

/// Without notes, zeros and the named base are seen; what is not is said.
#[test]
fn faults_of_an_adapter_that_was_made_elsewhere() {
    let base = fixture("llama-gqa");
    let original = fixture("llama-gqa/jobs/attn-r8-cosine/final");
    let copy = tempfile::tempdir().expect("a directory");
    for name in ["adapter_config.json", WEIGHTS] {
        fs::copy(original.join(name), copy.path().join(name)).expect("copied");
    }
    edit(copy.path(), |config| {
        config["base_model_name_or_path"] = json!(base);
    });
    let found = results(copy.path(), None);
    assert_eq!(with(&found, Verdict::Unchecked), ["as saved"], "{found:#?}");
    assert_eq!(
        with(&found, Verdict::Holds),
        ["files", "effect", "base", "logits"]
    );
    let (_parent, other) = other_model(&base, &original);
    let found = results(copy.path(), Some(&other));
    assert_fails("other", &found, "base", &["differs from"]);
    edit(copy.path(), |config| {
        config["base_model_name_or_path"] = json!("a/name");
    });
    let found = results(copy.path(), None);
    assert_eq!(
        with(&found, Verdict::Unchecked),
        ["as saved", "base"],
        "{found:#?}"
    );
    change(
        &copy.path().join(WEIGHTS),
        &factor(Q[0], "lora_B"),
        |bytes| bytes.fill(0),
    );
    assert_fails("zero", &results(copy.path(), None), "effect", &[Q[0]]);
}

#[test]
fn an_adapter_in_a_run_is_what_the_run_trained() {
    let fixture = Fixture::open("llama-gqa");
    let adapters = [
        json!({"name": "fresh", "dataset": "data", "train": {"max_steps": 2},
               "lora": {"r": 4, "lora_alpha": 6, "target_modules": ["q_proj", "up_proj"]}}),
        json!({"name": "begun", "dataset": "data", "train": {"max_steps": 2},
               "init_from": fixture.directory.join("../merge/patterns")}),
    ];
    let run = train(|output_dir| fixture.config(&adapters, output_dir));
    let adapter = |name: &str| {
        run.directory
            .path()
            .join("run/adapters")
            .join(name)
            .join("last")
    };
    for name in ["fresh", "begun"] {
        let found = results(&adapter(name), None);
        let all = ["files", "effect", "as saved", "run", "base", "logits"];
        assert_eq!(with(&found, Verdict::Holds), all, "{name}: {found:#?}");
    }
    let (_parent, other) = other_model(&fixture.directory, &adapter("fresh"));
    let found = results(&adapter("fresh"), Some(&other));
    assert_fails(
        "other",
        &found,
        "base",
        &["is not the model that it was trained over"],
    );

    // Another adapter in its place, whose own notes are right.
    let mut changed = run.adapter("fresh");
    changed.config.lora_alpha = 12.0;
    for lora in changed.modules.values_mut() {
        (lora.lora_alpha, lora.scale) = (12.0, 3.0);
    }
    changed.save(&adapter("fresh")).expect("saved");
    let found = results(&adapter("fresh"), None);
    let words = ["scale 3, not 4 and 1.5, in all 4 modules"];
    assert_fails("alpha", &found, "run", &words);
    changed.base = Some("0".repeat(64));
    changed.save(&adapter("fresh")).expect("saved");
    assert_fails(
        "base",
        &results(&adapter("fresh"), None),
        "base",
        &["the digest in the adapter"],
    );
}

#[test]
fn merged_models_are_base_and_adapters() {
    let base = fixture("llama-gqa");
    let parts = ["merge/patterns", "llama-gqa/jobs/mlp-r1/final"].map(|adapter| MergePart {
        directory: fixture(adapter),
        adapter: PeftAdapter::load(&fixture(adapter)).expect("an adapter"),
        weight: 0.75,
    });
    for dtype in [
        None,
        Some(TensorDtype::Bfloat16),
        Some(TensorDtype::Float16),
    ] {
        let parent = tempfile::tempdir().expect("a directory");
        let out = parent.path().join("merged");
        merge(&base, &parts, dtype, &out, &mut |_, _| ()).expect("merged");
        let found = results(&out, None);
        let all = ["files", "base", "effect", "weights", "logits", "logits"];
        assert_eq!(with(&found, Verdict::Holds), all, "{dtype:?}: {found:#?}");
    }

    let fails = |fault: &dyn Fn(&Path), model: Option<&Path>, name: &str, words: &[&str]| {
        let parent = tempfile::tempdir().expect("a directory");
        let out = parent.path().join("merged");
        merge(&base, &parts, None, &out, &mut |_, _| ()).expect("merged");
        fault(&out.join("model.safetensors"));
        assert_fails(name, &results(&out, model), name, words);
    };
    let names = Q.map(|module| format!("{module}.weight"));
    let names = [&*names[0], &*names[1]];
    let swapped = |path: &Path| swap(path, names);
    fails(&swapped, None, "weights", &names);
    let unmerged = |path: &Path| {
        for name in SafeTensors::deserialize(&fs::read(path).expect("a file"))
            .expect("safetensors")
            .names()
        {
            let plain = data(&base.join("model.safetensors"), name);
            change(path, name, |bytes| bytes.copy_from_slice(&plain));
        }
    };
    fails(&unmerged, None, "effect", &["equal the base's"]);
    fails(&unmerged, None, "logits", &["equal the base's"]);
    let nan = |path: &Path| {
        change(path, names[0], |bytes| {
            bytes[8..12].copy_from_slice(&f32::INFINITY.to_le_bytes());
        });
    };
    fails(&nan, None, "files", &[names[0], "element 2"]);
    let (_parent, other) = other_model(&base, &parts[0].directory);
    fails(
        &|_| (),
        Some(&other),
        "base",
        &["is not the model it was merged from"],
    );
    fails(&|_| (), Some(&fixture("qwen3")), "base", &["another shape"]);

    let found = results(&base.join("jobs"), None);
    assert_fails("nothing", &found, "files", &["neither"]);

    // A model that nobody says was merged.
    let found = results(&base, Some(&base));
    assert_fails("itself", &found, "effect", &["equal the base's"]);
    let found = results(&base, None);
    assert_eq!(
        with(&found, Verdict::Unchecked),
        ["record", "base"],
        "{found:#?}"
    );
}

/// What is gone since the merge is not a fault of the merged model.
#[test]
fn a_merged_model_outlives_its_adapter() {
    let base = fixture("llama-gqa");
    let (_parent, adapter) = saved(&fixture("merge/patterns"), &base);
    let (_other, out) = other_model(&base, &adapter);
    edit(&adapter, |config| config["lora_alpha"] = json!(5));
    let found = results(&out, None);
    assert_eq!(with(&found, Verdict::Unchecked), ["weights"], "{found:#?}");
    fs::remove_dir_all(&adapter).expect("removed");
    let found = results(&out, None);
    assert_eq!(with(&found, Verdict::Unchecked), ["weights"], "{found:#?}");
    assert_eq!(
        with(&found, Verdict::Holds),
        ["files", "base", "effect", "logits"]
    );
    // The base has a tokenizer, so that the model needs one.
    let tokenizer = out.join("tokenizer.json");
    let text = fs::read(&tokenizer).expect("read");
    fs::write(&tokenizer, &text[..text.len() / 2]).expect("written");
    let found = results(&out, None);
    assert_eq!(with(&found, Verdict::Fails), ["tokenizer"], "{found:#?}");
}

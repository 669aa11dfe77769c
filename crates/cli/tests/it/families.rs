//! Models with projections of their own.

use std::{fs, path::Path};

use crate::support::Workspace;

const CONFIG: &str = "\
model: phi3
output_dir: run
datasets: {rows: {path: phi3/data.jsonl, columns: {prompt: question, completion: answer}}}
defaults: {train: {max_steps: 2, batch_size: 2, max_seq_len: 64}}
adapters:
  - {name: all, dataset: rows, lora: {r: 4, target_modules: all-linear}}
  - {name: some, dataset: rows, lora: {r: 2, target_modules: [qkv_proj, down_proj]}}
";

fn workspace() -> Workspace {
    let here = Workspace::new();
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/phi3");
    fs::create_dir(here.path("phi3")).unwrap();
    for file in [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "data.jsonl",
    ] {
        fs::copy(fixture.join(file), here.path("phi3").join(file)).unwrap();
    }
    here.write("run.yaml", CONFIG);
    here
}

#[test]
fn fused_projections_are_targets_by_their_names() {
    let here = workspace();
    let check = here.run(&["check", "run.yaml"]);
    assert_eq!(check.code, 0, "{}", check.all());
    assert!(
        check
            .stdout
            .contains("r 4 on qkv_proj, o_proj, gate_up_proj, down_proj, "),
        "{}",
        check.stdout
    );
    let plan = here.run(&["plan", "run.yaml", "--json"]).json();
    let train = here.run(&["train", "run.yaml", "--quiet"]);
    assert_eq!(train.code, 0, "{}", train.all());
    let parameters = |name: &str| {
        let path = format!("run/adapters/{name}/last/adapter_model.safetensors");
        let bytes = fs::read(here.path(&path)).unwrap();
        let header = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        (bytes.len() - 8 - header as usize) / 4
    };
    // Weights and two moments of each, in float32.
    assert_eq!(
        plan["stages"][0]["adapter_bytes"],
        12 * (parameters("all") + parameters("some"))
    );
    for name in ["all", "some"] {
        let path = format!("run/adapters/{name}/last");
        let verify = here.run(&["verify", &path]);
        assert_eq!(verify.code, 0, "{}", verify.all());
        let count = format!(" {} parameters", parameters(name));
        assert!(verify.stdout.contains(&count), "{}", verify.stdout);
    }
    let config =
        fs::read_to_string(here.path("run/adapters/all/last/adapter_config.json")).unwrap();
    let config: serde_json::Value = serde_json::from_str(&config).unwrap();
    let modules = ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"];
    assert_eq!(config["target_modules"], serde_json::json!(modules));
    let resolved = fs::read_to_string(here.path("run/config.resolved.yaml")).unwrap();
    assert!(
        resolved.contains("target_modules: all-linear"),
        "{resolved}"
    );
}

#[test]
fn modules_that_the_model_lacks_are_refused() {
    let here = workspace();
    // Without the key they are Llama's.
    for other in [", target_modules: [qkv_proj, up_proj]", ""] {
        let config = CONFIG.replace(", target_modules: [qkv_proj, down_proj]", other);
        here.write("run.yaml", config);
        for command in ["check", "plan", "train"] {
            let run = here.run(&[command, "run.yaml"]);
            assert_eq!(run.code, 2, "{command} {other}: {}", run.all());
            let said = run.all();
            assert!(said.contains("adapter `some` targets `"), "{said}");
            assert!(said.contains("which the model does not have"), "{said}");
            let hint =
                "set it to some of qkv_proj, o_proj, gate_up_proj, down_proj, or to all-linear";
            assert!(said.contains(hint), "{said}");
        }
    }
}

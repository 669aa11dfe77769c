//! mLoRA configurations, as they are.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use crate::support::Workspace;

const CONFIG: &str = "\
dispatcher: {name: default, concurrency_num: 2}
datasets:
  - {name: numbers, data: rows.json, prompt: prompt.yaml, prompt_type: instruction, preprocess: default}
adapters:
  - name: narrow
    type: lora
    path: adapters/narrow
    optimizer: adamw
    lr: 3e-4
    r: 8
    alpha: 16
    dropout: 0.05
    target_modules: {q_proj: true, k_proj: false, v_proj: true, o_proj: false,
      gate_proj: false, down_proj: false, up_proj: false}
tasks:
  - {type: train, name: first, adapter: narrow, dataset: numbers, batch_size: 2, mini_batch_size: 2,
     num_epochs: 1, cutoff_len: 64, save_step: 100}
";

fn workspace() -> Workspace {
    let here = Workspace::new();
    here.write("mlora.yaml", CONFIG);
    here.write(
        "prompt.yaml",
        "template: |\n  Question: {{ data_point['instruction'] }}\n  Answer: {{ data_point['output'] }}\n",
    );
    here.write(
        "rows.json",
        r#"[{"instruction": "Say one.", "input": "", "output": "one"},
            {"instruction": "Say two.", "input": "", "output": "two"}]"#,
    );
    here
}

#[test]
fn import_prints_a_configuration_that_loads() {
    let here = workspace();
    let run = here.run(&["config", "import", "mlora.yaml"]);
    assert_eq!((run.code, run.stdout.as_str()), (2, ""));
    insta::assert_snapshot!("import_without_base_model", run.stderr);

    let run = here.run(&[
        "config",
        "import",
        "mlora.yaml",
        "--base-model",
        "tiny-llama",
    ]);
    insta::assert_snapshot!("import", run.all());
    here.write("imported.yaml", here.with_paths(&run.stdout));
    assert_eq!(here.run(&["check", "imported.yaml"]).code, 0);
}

#[test]
fn it_trains_unchanged() {
    let here = workspace();
    let line = [
        "train",
        "mlora.yaml",
        "--base_model",
        "tiny-llama",
        "--device",
        "cpu",
        "--json",
    ];
    let run = here.run(&line);
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert_eq!(run.json()["adapters"][0]["steps"], 1);
    assert!(
        here.path("runs/mlora/adapters/narrow/last/adapter_model.safetensors")
            .exists()
    );
}

/// The directory of mLoRA's demos, with their 64 rows.
fn demos() -> Workspace {
    let here = Workspace::new();
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/mlora");
    for path in files(&from.join("demo")) {
        let name = path.strip_prefix(&from).unwrap().to_str().unwrap();
        here.write(name, fs::read(&path).unwrap());
    }
    let row = fs::read_to_string(from.join("demo/data.json")).unwrap();
    let row = row.trim().trim_matches(['[', ']']);
    here.write("demo/data.json", format!("[{}]", [row; 64].join(",")));
    here
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let of = |path: PathBuf| {
        if path.is_dir() {
            files(&path)
        } else {
            vec![path]
        }
    };
    let mut paths: Vec<PathBuf> = paths.flat_map(of).collect();
    paths.sort();
    paths
}

/// They are as mLoRA has them; one step each is taken.
#[test]
fn its_demos_train_unchanged_or_are_refused_with_the_reason() {
    let here = demos();
    let base = ["--base_model", "tiny-llama"];
    let demos = files(&here.path("demo"));
    let demos = demos
        .iter()
        .filter(|path| path.parent() != Some(&here.path("demo")));
    let mut said = String::new();
    for path in demos {
        let name = path.strip_prefix(here.path("")).unwrap().to_str().unwrap();
        let step = ["--set", "defaults.train.max_steps=1", "--samples", "0"];
        let mut line = vec!["train", name, "--device", "cpu", "--json"];
        line.extend(base.iter().chain(&step));
        let run = here.run(&line);
        writeln!(said, "{name}: exit {}", run.code).unwrap();
        if run.code != 0 {
            said += &run.stderr;
            continue;
        }
        for adapter in run.json()["adapters"].as_array().unwrap() {
            assert_eq!(adapter["steps"], 1, "{name}");
            let adapter = adapter["name"].as_str().unwrap();
            let stem = path.file_stem().unwrap().to_str().unwrap();
            let weights = format!("runs/{stem}/adapters/{adapter}/last/adapter_model.safetensors");
            assert!(here.path(&weights).exists(), "{weights}");
            writeln!(said, "  {adapter}").unwrap();
        }
    }
    insta::assert_snapshot!(said);
}

/// As mLoRA's Jinja renders them: <https://github.com/TUDB-Labs/mLoRA>, `mlora/prompter`.
#[test]
fn its_prompts_are_rendered_as_there() {
    let here = demos();
    for (name, snapshot) in [
        ("lora/lora_case_1", "prompt"),
        ("dpo/dpo_case_1", "preference_prompt"),
    ] {
        let path = format!("demo/{name}.yaml");
        let line = [
            "data",
            "preview",
            &path,
            "--base-model",
            "tiny-llama",
            "--rows",
            "1",
        ];
        let run = here.run(&line);
        assert_eq!(run.code, 0, "{}", run.stderr);
        insta::assert_snapshot!(snapshot, run.stdout);
    }
}

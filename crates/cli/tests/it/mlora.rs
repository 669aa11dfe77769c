//! mLoRA configurations, as they are.

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

//! `merge`, `export` and `verify`.

use std::fs;

use serde_json::Value;

use crate::{support::Workspace, train};

fn trained() -> Workspace {
    let here = train::workspace();
    // Enough for the answers to change.
    let run = here.run(&[
        "train",
        "short.yaml",
        "--quiet",
        "--set",
        "defaults.train.max_steps=40",
    ]);
    assert_eq!(run.code, 0, "{}", run.all());
    here
}

/// Runs a command line that must exit with this code.
#[track_caller]
fn said(here: &Workspace, code: i32, line: &str) -> crate::support::Run {
    let run = here.run(&line.split(' ').collect::<Vec<_>>());
    assert_eq!(run.code, code, "{line}: {}", run.all());
    run
}

/// Names of the checks of `verify --json` that came to this.
fn checks(report: &Value, status: &str) -> Vec<String> {
    let checks = report["checks"].as_array().unwrap().iter();
    let checks = checks.filter(|check| check["status"] == status);
    checks
        .map(|check| check["name"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn a_merged_model_answers_as_the_adapter_and_trains() {
    let here = trained();
    let run = said(&here, 0, "merge --run run --adapter shout-r2 out/merged");
    assert_eq!(run.stdout, "");
    insta::assert_snapshot!("merged", run.stderr);

    let answer = |of: &str| {
        let line = "generate --device cpu --dtype float32 --max-new-tokens 12";
        said(&here, 0, &format!("{line} {of} List:")).stdout
    };
    let expected = answer("--run run --adapter shout-r2");
    assert_eq!(answer("--model out/merged"), expected);
    assert_ne!(answer("--model tiny-llama"), expected);
    let other = "`run/adapters/shout-r2/last` was trained over another model than `out/merged`";
    let over = "--model out/merged --adapter run/adapters/shout-r2/last";
    for line in ["generate List:", "eval --dataset data/shout.jsonl"] {
        let run = said(&here, 0, &format!("{line} --device cpu {over}"));
        assert!(run.stderr.contains(other), "{}", run.stderr);
    }

    let report = said(&here, 0, "verify out/merged --json").json();
    assert_eq!(report["ok"], true);
    assert_eq!(
        checks(&report, "pass"),
        ["files", "base", "effect", "weights", "logits", "logits"]
    );
    let set = "--set model=out/merged --set output_dir=again --set defaults.train.max_steps=1";
    said(&here, 0, &format!("train short.yaml --quiet {set}"));
    said(&here, 0, "verify again/adapters/shout-r2/last");
    let other = said(
        &here,
        3,
        "verify again/adapters/shout-r2/last --model tiny-llama",
    );
    assert!(other.stdout.contains("FAIL  base: "), "{}", other.all());

    // An adapter fits any model of its shape.
    let line =
        "export --format merged --model out/merged --adapter run/adapters/shout-r2/last twice";
    let twice = said(&here, 0, line).stderr;
    assert!(twice.starts_with("warning: `run/adapters/shout-r2/last` was trained over another"));

    let line = "merge --run run --adapter shout-r2*0.5,run/adapters/number-r4/last*-2 both";
    said(&here, 0, &format!("{line} --dtype bfloat16 --quiet"));
    said(&here, 0, "verify both");
    said(
        &here,
        0,
        "export --format merged --run run --adapter shout-r2@last last",
    );
    said(&here, 0, "verify last");
}

#[test]
fn an_adapter_is_exported_for_others() {
    let here = trained();
    let run = said(
        &here,
        0,
        "export --format peft --run run --adapter shout-r2@last shout",
    );
    insta::assert_snapshot!("peft", run.stderr);
    for name in ["adapter_config.json", "adapter_model.safetensors"] {
        let path = format!("run/adapters/shout-r2/last/{name}");
        assert_eq!(
            fs::read(here.path(&format!("shout/{name}"))).unwrap(),
            fs::read(here.path(&path)).unwrap()
        );
    }
    assert_eq!(fs::read_dir(here.path("shout")).unwrap().count(), 2);
    said(&here, 0, "verify shout");
    said(&here, 0, "verify shout --model tiny-llama");

    let line = "export --format gguf-lora --model tiny-llama --adapter shout shout.gguf";
    let run = said(&here, 0, line);
    insta::assert_snapshot!("gguf", run.stderr);
    let bytes = fs::read(here.path("shout.gguf")).unwrap();
    assert!(bytes.starts_with(b"GGUF\x03"));
}

#[test]
fn what_cannot_be_merged_or_exported_is_said() {
    let here = trained();
    fs::create_dir_all(here.path("taken")).unwrap();
    here.write("taken/mine", "");
    here.write("taken.gguf", "");
    let mut all = String::new();
    for (code, line) in [
        (2, "merge --run run out"),
        (2, "merge --adapter a out"),
        (2, "merge --run run --adapter shout-r2*0 out"),
        (2, "merge --run run --adapter nobody out"),
        (2, "merge --run run --adapter shout-r2,shout-r2*2 out"),
        (2, "merge --run run --adapter shout-r2 taken"),
        (
            3,
            "merge --run run --adapter shout-r2*1e9 --dtype float16 out",
        ),
        (2, "export --format onnx --run run --adapter shout-r2 out"),
        (
            2,
            "export --format gguf-lora --run run --adapter shout-r2 taken.gguf",
        ),
        (
            3,
            "export --format peft --model tiny-llama --adapter nowhere out",
        ),
        (3, "verify nowhere"),
        (3, "verify run/adapters/shout-r2/last --model nowhere"),
    ] {
        let run = said(&here, code, line);
        all += &run.after(&line.split(' ').collect::<Vec<_>>());
    }
    let mut settings = insta::Settings::clone_current();
    settings.add_filter(
        r"would be \S+ at element \d+",
        "would be [VALUE] at element [INDEX]",
    );
    settings.bind(|| insta::assert_snapshot!(all));
    assert!(!here.path("out").exists());
}

/// The other model has the same shape, so nothing else tells.
#[test]
fn base_weights_of_another_model_are_not_merged() {
    let here = Workspace::empty();
    let fixture = |name: &str| {
        let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures");
        format!("{fixtures}/{name}")
    };
    let adapter = fixture("llama-gqa/jobs/ends-r8-dropout/init");
    for (model, code) in [("mistral-sliding", 3), ("llama-gqa", 0)] {
        let model = fixture(model);
        for command in ["merge", "export --format peft"] {
            let out = format!("{code}-{}", command.len());
            let line = format!("{command} --model {model} --adapter {adapter} {out}");
            let run = said(&here, code, &line);
            let is_said = run.stderr.contains("is not the weight of the model");
            assert_eq!(is_said, code == 3, "{}", run.all());
        }
    }
}

#[test]
fn what_is_wrong_with_an_adapter_is_said() {
    let here = trained();
    let adapter = "run/adapters/shout-r2/last";
    said(&here, 0, &format!("verify {adapter}"));
    let config = here.path(&format!("{adapter}/adapter_config.json"));
    let text = fs::read_to_string(&config).unwrap();
    let changed = text.replacen("\"lora_alpha\": 32", "\"lora_alpha\": 8", 1);
    assert_ne!(changed, text);
    fs::write(&config, changed).unwrap();
    let run = said(&here, 3, &format!("verify {adapter}"));
    let mut settings = insta::Settings::clone_current();
    settings.add_filter(r"up to \S+ \(largest logit \S+\)", "up to [NUMBERS]");
    settings.bind(|| insta::assert_snapshot!(run.all()));
    let report = said(&here, 3, &format!("verify {adapter} --json")).json();
    assert_eq!(report["ok"], false);
    assert_eq!(checks(&report, "fail"), ["as saved", "run"]);
    let scale =
        "adapter_config.json: lora_alpha, r or use_rslora was changed: scale 4, saved with 16";
    refuse_the_changed(&here, scale);

    fs::write(&config, text).unwrap();
    said(
        &here,
        0,
        "merge --run run --adapter shout-r2@last whole --quiet",
    );
    let weights = here.path(&format!("{adapter}/adapter_model.safetensors"));
    let mut bytes = fs::read(&weights).unwrap();
    let last = bytes.len() - 4;
    bytes[last..].copy_from_slice(&1.0_f32.to_le_bytes());
    fs::write(&weights, bytes).unwrap();
    refuse_the_changed(&here, "has different factors");
}

/// Every command that reads the adapter refuses it with the reason.
#[track_caller]
fn refuse_the_changed(here: &Workspace, change: &str) {
    let device = "--device cpu --run run --adapter shout-r2@last";
    let init = "--set adapters.shout-r2.init_from=run/adapters/shout-r2/last";
    for line in [
        "merge --run run --adapter shout-r2@last out",
        "export --format merged --run run --adapter shout-r2@last out",
        "export --format peft --run run --adapter shout-r2@last out",
        "export --format gguf-lora --run run --adapter shout-r2@last out",
        &format!("generate {device} List:"),
        &format!("eval {device} --dataset data/shout.jsonl"),
        &format!("train short.yaml --set output_dir=begun {init}"),
    ] {
        let run = said(here, 3, line);
        let changed = "run/adapters/shout-r2/last` has changed since it was saved: ";
        for words in [changed, change, "loraloom verify "] {
            assert!(run.stderr.contains(words), "{line}: {}", run.all());
        }
    }
    assert!(!here.path("out").exists());
}

//! A base model that is quantised as it is read, in every command that computes.

use std::path::PathBuf;

use serde_json::Value;

use crate::support::{Run, Workspace};

const NF4: [&str; 2] = ["--set", "quantization.type=nf4"];
/// Not the defaults.
const OTHER: [&str; 2] = ["--set", "quantization.skip=[down_proj]"];

fn good(here: &Workspace, arguments: &[&str]) -> Run {
    let run = here.run(arguments);
    assert_eq!(run.code, 0, "{}", run.all());
    run
}

/// The loss of an adapter and that of the base model on the same rows.
fn losses(here: &Workspace, more: &[&str]) -> Vec<f64> {
    let rows = ["--dataset", "data/shout.jsonl", "--compare-base"];
    let line = ["eval", "--device", "cpu", "--json"];
    let json = good(here, &[&line[..], &rows, more].concat()).json();
    let results = json["results"].as_array().unwrap().iter();
    results.map(|one| one["loss"].as_f64().unwrap()).collect()
}

/// Trains one adapter for a few steps over the bundled model in NF4.
fn trained() -> Workspace {
    let here = Workspace::new();
    let short = ["--set", "defaults.train.max_steps=4", "--samples", "0"];
    let train = ["train", "loraloom.yaml", "--device", "cpu"];
    good(&here, &[&train[..], &NF4, &OTHER, &short].concat());
    here
}

#[test]
fn an_adapter_is_evaluated_over_the_base_that_it_was_trained_over() {
    let here = trained();
    let run = ["--run", "runs/first", "--adapter", "shout-r4"];
    let as_trained = losses(&here, &run);
    let float = losses(&here, &[&run[..], &["--quantization", "none"]].concat());
    let asked = losses(&here, &[&run[..], &["--quantization", "nf4"]].concat());
    assert_eq!(as_trained, asked);
    for (quantised, float) in as_trained.iter().zip(&float) {
        assert!((quantised / float - 1.0).abs() > 1e-6, "{quantised}");
    }

    // On the rows of the run, the loss is that of its last event.
    let events = std::fs::read_to_string(here.path("runs/first/events.jsonl")).unwrap();
    let mut events = events.lines().rev();
    let is_it = |event: &Value| event["event"] == "eval" && event["adapter"] == "shout-r4";
    let evaluated = events.find_map(|line| {
        let event: Value = serde_json::from_str(line).unwrap();
        is_it(&event).then(|| event["loss"].as_f64().unwrap())
    });
    let line = ["eval", "--device", "cpu", "--json", "--dataset", "shout"];
    let json = good(&here, &[&line[..], &run].concat()).json();
    let found = json["results"][0]["loss"].as_f64().unwrap();
    let off = found / evaluated.unwrap() - 1.0;
    assert!(off.abs() < 1e-6, "{found}");

    let said = |more: &[&str]| {
        let line = [
            "generate",
            "--run",
            "runs/first",
            "--device",
            "cpu",
            "HORSE",
        ];
        good(&here, &[&line[..], more].concat()).stdout
    };
    assert_eq!(said(&[]), said(&["--quantization", "nf4"]));

    let merge = [
        "merge",
        "--run",
        "runs/first",
        "--adapter",
        "shout-r4",
        "out",
    ];
    let merged = good(&here, &merge);
    let warned = "warning: the run trained over weights in NF4";
    assert!(merged.stderr.contains(warned), "{}", merged.stderr);
}

#[test]
fn a_run_goes_on_only_over_the_same_base() {
    let here = trained();
    let other = ["--set", "quantization=null"];
    let line = ["train", "--resume", "runs/first"];
    let run = here.run(&[&line[..], &other].concat());
    assert_ne!(run.code, 0, "{}", run.all());
    assert!(run.stderr.contains("quantization"), "{}", run.stderr);
}

#[test]
fn check_says_how_layers_are_stored_and_refuses_names_that_no_layer_has() {
    let here = Workspace::new();
    let check = |more: &[&str]| {
        let line = ["check", "loraloom.yaml", "--set", "device=cpu"];
        here.run(&[&line[..], more].concat())
    };
    let run = check(&NF4);
    assert_eq!(run.code, 0, "{}", run.all());
    assert!(
        run.stdout.contains("28 of 28 linear layers in NF4"),
        "{}",
        run.all()
    );
    let run = check(&[&NF4[..], &["--set", "quantization.skip=[v_proj]"]].concat());
    assert!(
        run.stdout.contains("24 of 28 linear layers in NF4"),
        "{}",
        run.all()
    );
    for (skip, problem) in [
        (
            "[down_proj, donw_proj]",
            "`donw_proj` is no layer of this model",
        ),
        ("[model.layers.9]", "`model.layers.9` is no layer"),
        ("[model]", "no layer is left to quantise"),
    ] {
        let skip = format!("quantization.skip={skip}");
        let run = check(&[&NF4[..], &["--set", &skip]].concat());
        assert_eq!(run.code, 2, "{}", run.all());
        assert!(run.stdout.contains(problem), "{}", run.all());
    }
    for set in [
        "quantization.skip=[lm_head, model.embed_tokens, model.layers.0, v_proj, mlp]",
        "quantization.skip=null",
        "quantization.double_quant=null",
    ] {
        let run = check(&[&NF4[..], &["--set", set]].concat());
        assert_eq!(run.code, 0, "{}", run.all());
    }

    let stored = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/nf4");
    let stored = format!("model={}", stored.join("llama-gqa").display());
    let run = check(&[&NF4[..], &["--set", &stored]].concat());
    let problem = "the model is already stored in NF4";
    assert!(run.stdout.contains(problem), "{}", run.all());
}

/// Bytes in the plan of a configuration.
fn planned(here: &Workspace, key: &str, more: &[&str]) -> u64 {
    let plan = ["plan", "loraloom.yaml", "--set", "device=cpu", "--json"];
    let json = good(here, &[&plan[..], more].concat()).json();
    json["stages"][0][key].as_u64().unwrap()
}

/// The largest weight of the bundled model, in float32.
const COPY: u64 = 160 * 320 * 4;

#[test]
fn a_plan_counts_codes_and_scales_and_a_dense_copy() {
    let here = Workspace::new();
    // Of each layer 160x160, 2x 80x160, 160x160 and 3x 160x320 weights.
    let weights = 4 * (2 * 160 * 160 + 2 * 80 * 160 + 3 * 160 * 320);
    let of = |key, more: &[&str]| planned(&here, key, more);
    let saved =
        |more: &[&str]| of("weight_bytes", &[]) - of("weight_bytes", &[&NF4[..], more].concat());
    // In float32 32 bits a weight; then 4 and a float32 for each block of 64, and the 16 values of each weight.
    let plain = weights * 4 - (weights / 2 + weights / 64 * 4 + 4 * 7 * 16 * 4);
    assert_eq!(saved(&["--set", "quantization.double_quant=false"]), plain);
    let nested = saved(&[]);
    assert!(nested > plain && nested < weights * 4 - weights / 2);
    let buffers = "estimated_buffer_bytes";
    assert_eq!(of(buffers, &NF4) - of(buffers, &[]), COPY);
}

/// MiB that a command says it needs without any adapter.
fn fixed(here: &Workspace, command: &str, more: &[&str]) -> f64 {
    let line = [command, "loraloom.yaml", "--set", "device=cpu"];
    let limit = ["--set", "scheduler.memory_limit=1KiB"];
    let run = here.run(&[&line[..], &limit, more].concat());
    assert_ne!(run.code, 0, "{}", run.all());
    let (before, _) = run.stderr.split_once(" MiB without any adapter").unwrap();
    before.rsplit('(').next().unwrap().parse().unwrap()
}

#[test]
fn admission_counts_a_dense_copy() {
    let here = Workspace::new();
    let saved = planned(&here, "weight_bytes", &[]) - planned(&here, "weight_bytes", &NF4);
    for command in ["plan", "train"] {
        let found = fixed(&here, command, &[]) - fixed(&here, command, &NF4);
        let expected = (saved - COPY) as f64 / f64::from(1 << 20);
        // Of two numbers with one decimal; a copy is 0.2.
        assert!(
            (found - expected).abs() < 0.11,
            "{command}: {found} {expected}"
        );
    }
}

#[test]
fn layers_that_are_made_dense_are_told() {
    let here = Workspace::new();
    let stored = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/quantized");
    for (name, shown) in [
        ("gptq-sym", "GPTQ"),
        ("awq", "AWQ"),
        ("fp8-block", "FP8"),
        ("ct-w4a16", "compressed-tensors"),
        ("bnb-int8", "LLM.int8"),
    ] {
        let model = format!("model={}", stored.join(name).display());
        let check = |more: &[&str]| {
            let line = ["check", "loraloom.yaml", "--set", &model];
            here.run(&[&line[..], more].concat()).stdout
        };
        let told = format!("its layers are stored as {shown}, and are made dense");
        let text = check(&[]);
        assert!(text.contains(&told), "{text}");
        let text = check(&NF4);
        let told = format!("its layers are stored as {shown}, and are quantised again");
        assert!(
            text.contains(&told) && text.contains(" linear layers in NF4"),
            "{text}"
        );
    }
}

#[test]
fn a_server_decides_how_its_model_is_stored() {
    let here = Workspace::new();
    let line = ["submit", "nowhere", "loraloom.yaml"];
    let run = here.run(&[&line[..], &NF4].concat());
    assert_eq!(run.code, 2, "{}", run.all());
    let told = "--set quantization.type=nf4: it has no effect";
    assert!(run.stderr.contains(told), "{}", run.stderr);
}

#[test]
fn bench_measures_over_layers_in_nf4() {
    let sizes = [
        "--rows", "6", "--d-in", "8", "--d-out", "12", "--batch", "1", "--length", "4",
    ];
    let line = [
        "bench",
        "--device",
        "cpu",
        "--adapters",
        "2",
        "--steps",
        "1",
    ];
    let here = Workspace::empty();
    let json = ["--json", "--quantization", "nf4"];
    let json = good(&here, &[&line[..], &sizes, &json].concat()).json();
    for one in ["kernels", "end_to_end"] {
        let measured = json[one].as_array().unwrap();
        assert!(!measured.is_empty());
        for one in measured {
            assert_eq!(one["quantization"], "nf4", "{one}");
        }
    }
    // The model's weights are most of what a step with few tokens takes.
    let peak = |more: &[&str]| {
        let steps = [
            "--batch",
            "1",
            "--length",
            "4",
            "--end-to-end-only",
            "--json",
        ];
        let json = good(&here, &[&line[..], &steps, more].concat()).json();
        json["end_to_end"][0]["peak_bytes"].as_u64().unwrap()
    };
    let (float, nf4) = (peak(&[]), peak(&["--quantization", "nf4"]));
    assert!(nf4 < float / 2, "{nf4} {float}");
    let text = good(
        &here,
        &[&line[..], &sizes, &["--quantization", "nf4"]].concat(),
    );
    assert_eq!(text.stdout.matches("float32 over nf4").count(), 2);
}

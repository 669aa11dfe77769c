//! `plan`: what it counts, what it draws, and what it refuses.

use std::fs;

use loraloom_model::LlamaConfig;
use serde_json::Value;

use crate::support::Workspace;

/// Three adapters of two ranks over two small datasets.
const THREE: &str = "\
model: tiny-llama
datasets:
  shout: {path: data/shout.jsonl}
  number: {path: data/number.jsonl}
defaults:
  train: {batch_size: 4, max_seq_len: 48}
adapters:
  - {name: shout-r2, dataset: shout, lora: {r: 2}}
  - {name: number-r4, dataset: number, lora: {r: 4}, train: {gradient_accumulation_steps: 2}}
  - {name: shout-r8, dataset: shout, lora: {r: 8}}
";

fn workspace() -> Workspace {
    let here = Workspace::new();
    here.write("three.yaml", THREE);
    here
}

fn plan(here: &Workspace, more: &[&str]) -> Value {
    let run = here.run(&[&["plan", "three.yaml", "--json"], more].concat());
    assert_eq!((run.code, run.stderr.as_str()), (0, ""), "{}", run.all());
    run.json()
}

fn sum(plan: &Value, key: &str) -> u64 {
    let stages = plan["stages"].as_array().unwrap();
    stages
        .iter()
        .map(|stage| stage[key].as_u64().unwrap())
        .sum()
}

#[test]
fn it_says_what_is_exact_and_what_is_estimated() {
    let here = workspace();
    let stages = ["--set", "pipeline.stages=[cpu, cpu]"];
    let run = here.run(&[&["plan", "three.yaml"], &stages[..]].concat());
    assert_eq!(run.code, 0, "{}", run.all());
    let mut settings = insta::Settings::clone_current();
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!("three", run.all()));
    let files = fs::read_dir(here.path(".")).unwrap().count();
    assert_eq!(files, 4, "plan left something behind");
}

/// A bit of every element of an adapted projection's input.
#[test]
fn gpus_keep_dropout_masks() {
    let here = workspace();
    let bytes = |device: &str, dropout: &str| {
        let device = format!("device={device}");
        let dropout = format!("defaults.lora.lora_dropout={dropout}");
        let settings = [
            &device,
            &dropout,
            "dtype=float32",
            "defaults.lora.target_modules=all-linear",
        ];
        let settings = settings.map(|setting| ["--set", setting]);
        let plan = plan(&here, settings.as_flattened());
        let tokens = &plan["groups"][0]["most_tokens_per_microbatch"];
        (
            sum(&plan, "estimated_activation_bytes"),
            tokens.as_u64().unwrap(),
        )
    };
    let ((without, tokens), (with, _)) = (bytes("wgpu", "0.0"), bytes("wgpu", "0.05"));
    let model = LlamaConfig::from_directory(&here.path("tiny-llama")).unwrap();
    let linears = model.linears().into_iter();
    let masks = linears.map(|linear| linear.d_in.div_ceil(8) as u64);
    let layers = model.num_hidden_layers as u64;
    assert_eq!(with - without, tokens * layers * masks.sum::<u64>());
    assert_eq!(bytes("cpu", "0.0"), bytes("cpu", "0.05"));
}

#[test]
fn stages_add_up_to_the_whole_model() {
    let here = workspace();
    let whole = plan(&here, &["--set", "device=cpu"]);
    assert_eq!(whole["stages"].as_array().unwrap().len(), 1);
    assert_eq!(whole["groups"].as_array().unwrap().len(), 1);
    assert_eq!(whole["links"], Value::Array(Vec::new()));
    assert_eq!(whole["bubble"]["simulated"], 0.0);
    assert_eq!(whole["dtype"], "float32");

    let two = plan(&here, &["--set", "pipeline.stages=[cpu, cpu]"]);
    assert_eq!(two["groups"].as_array().unwrap().len(), 2);
    for key in ["layers", "adapter_bytes", "gradient_bytes"] {
        assert_eq!(sum(&two, key), sum(&whole, key), "{key}");
    }
    // The table of tied embeddings is on both ends.
    let config = fs::read_to_string(here.path("tiny-llama/config.json")).unwrap();
    let config: Value = serde_json::from_str(&config).unwrap();
    let size = |key: &str| config[key].as_u64().unwrap();
    let again = if config["tie_word_embeddings"] == true {
        4 * size("vocab_size") * size("hidden_size")
    } else {
        0
    };
    assert_eq!(
        sum(&two, "weight_bytes"),
        sum(&whole, "weight_bytes") + again
    );
    let shares = two["stages"].as_array().unwrap().iter();
    let shares: f64 = shares.map(|s| s["estimated_share"].as_f64().unwrap()).sum();
    assert!((shares - 1.0).abs() < 1e-9, "{shares}");
    // Hidden states up and gradients down, of every token of the iteration.
    let groups = two["groups"].as_array().unwrap().iter();
    let tokens: f64 = groups
        .map(|g| g["estimated_tokens_per_step"].as_f64().unwrap())
        .sum();
    let bytes = two["links"][0]["estimated_bytes_per_iteration"].as_f64();
    let expected = 2.0 * tokens * size("hidden_size") as f64 * 4.0;
    assert!((bytes.unwrap() / expected - 1.0).abs() < 1e-9, "{bytes:?}");
}

#[test]
fn keys_of_the_pipeline_are_planned_with() {
    let here = workspace();
    let two = "pipeline.stages=[cpu, cpu]";
    let simulated = |more: &[&str]| {
        let plan = plan(&here, &[&["--set", two], more].concat());
        plan["bubble"]["simulated"].as_f64().unwrap()
    };
    let (lorapp, gpipe) = (
        simulated(&[]),
        simulated(&["--set", "pipeline.schedule=gpipe"]),
    );
    assert!(lorapp < gpipe, "{lorapp} {gpipe}");

    let balanced = plan(&here, &["--set", two, "--set", "pipeline.balance=[1, 3]"]);
    assert_eq!(balanced["stages"][0]["layers"], 1);
    assert_eq!(balanced["stages"][1]["first_layer"], 1);

    let even = plan(&here, &["--set", two]);
    assert!(even.get("partitions").is_none());
    let staggered = plan(
        &here,
        &["--set", two, "--set", "pipeline.balance=staggered"],
    );
    let partitions = staggered["partitions"].as_array().unwrap();
    assert_eq!(partitions.len(), 2);
    for counts in partitions {
        let counts = counts.as_array().unwrap().iter();
        assert_eq!(counts.filter_map(Value::as_u64).sum::<u64>(), 4);
    }
    // A layer is on both stages, and no adapter is.
    assert_eq!(sum(&staggered, "layers"), 5);
    assert_eq!(
        sum(&staggered, "adapter_bytes"),
        sum(&even, "adapter_bytes")
    );
    assert!(sum(&staggered, "weight_bytes") > sum(&even, "weight_bytes"));
    let notes = staggered["notes"].to_string();
    assert!(
        notes.contains("hold 5 decoder layers of a model with 4"),
        "{notes}"
    );

    // One group accumulates twice; its batches of four rows are cut into two and two at best.
    let parts = plan(&here, &["--set", two, "--set", "pipeline.microbatches=3"]);
    let groups = parts["groups"].as_array().unwrap();
    let counts: Vec<_> = groups.iter().map(|g| g["microbatches"].as_u64()).collect();
    assert!(counts.contains(&Some(4)), "{counts:?}");

    let capped = plan(&here, &["--set", "scheduler.max_adapters=1"]);
    assert_eq!(
        capped["groups"][0]["adapters"],
        serde_json::json!(["shout-r2"])
    );
    assert_eq!(capped["waiting"].as_array().unwrap().len(), 2);
    let reasons = capped["waiting_reasons"].as_object().unwrap();
    for name in ["number-r4", "shout-r8"] {
        let reason = reasons[name].as_str().unwrap();
        assert!(reason.contains("max_adapters"), "{reason}");
    }
}

/// Who trains first is decided as a run decides it: by memory, priority and policy.
#[test]
fn tasks_that_do_not_fit_wait_and_it_says_why() {
    let here = workspace();
    let with = |limit: u64| {
        let limit = format!("scheduler.memory_limit={limit}B");
        plan(&here, &["--set", "device=cpu", "--set", &limit])
    };
    let names = |plan: &Value| {
        let groups = plan["groups"].as_array().unwrap().iter();
        let names = groups.flat_map(|group| group["adapters"].as_array().unwrap());
        let names = names.map(|name| name.as_str().unwrap().to_owned());
        names.collect::<Vec<_>>()
    };
    let all = with(1 << 30);
    assert_eq!(names(&all).len(), 3);
    assert_eq!(all["waiting_reasons"], serde_json::json!({}));

    // Less and less, until somebody waits.
    let weights = sum(&all, "weight_bytes");
    let mut limit = weights + (sum(&all, "estimated_bytes") - weights) * 4;
    let mut found = with(limit);
    while names(&found).len() > 2 {
        limit -= (limit - weights) / 20;
        found = with(limit);
    }
    let running = names(&found);
    assert_eq!(running.len(), 2, "{found}");
    let waits = found["waiting"][0].as_str().unwrap();
    let reason = found["waiting_reasons"][waits].as_str().unwrap();
    assert!(
        reason.contains("needs") && reason.contains("margin"),
        "{reason}"
    );

    // A higher priority goes first.
    let urgent = format!("name: {waits}, priority: 1,");
    here.write(
        "three.yaml",
        THREE.replace(&format!("name: {waits},"), &urgent),
    );
    let first = names(&with(limit));
    assert!(first.contains(&waits.to_owned()), "{first:?}");
}

/// Beside weights that do not fit, and beside weights that leave no room for anything else.
#[test]
fn check_plan_and_train_refuse_the_same_adapter_in_the_same_words() {
    let here = workspace();
    let weights = sum(&plan(&here, &["--set", "device=cpu"]), "weight_bytes");
    for limit in [1 << 20, weights / 2, weights + 1000] {
        let limit = format!("scheduler.memory_limit={limit}B");
        for device in ["cpu", "auto"] {
            let device = format!("device={device}");
            for command in ["check", "plan", "train"] {
                let run = here.run(&[command, "three.yaml", "--set", &device, "--set", &limit]);
                assert_eq!(run.code, 4, "{command} {limit}: {}", run.all());
                for said in [
                    "`shout-r2` cannot train here even alone: cpu needs at least ",
                    " MiB without any adapter, for the model and data) of ",
                    "hint: lower `train.batch_size`",
                ] {
                    assert!(run.all().contains(said), "{command} {limit}: {}", run.all());
                }
            }
        }
    }
    assert!(!here.path("runs").exists(), "a run was begun");
}

/// How little is needed shows only as it trains.
#[test]
fn what_may_not_fit_is_tried_and_said_to_be_so() {
    let here = workspace();
    let (head, _) = THREE.split_once("  - {name: number-r4").unwrap();
    let unused = "  number: {path: data/number.jsonl}\n";
    here.write("three.yaml", head.replace(unused, ""));
    let weights = sum(&plan(&here, &["--set", "device=cpu"]), "weight_bytes");
    let limit = format!("scheduler.memory_limit={}B", weights + 1_450_000);
    let settings = ["--set", "device=cpu", "--set", &limit];
    let tight = plan(&here, &settings);
    assert_eq!(
        tight["groups"][0]["adapters"],
        serde_json::json!(["shout-r2"])
    );
    let reason = tight["may_not_fit"]["shout-r2"].as_str().unwrap();
    assert!(reason.contains(" margin) of 5."), "{reason}");
    let check = here.run(&[&["check", "three.yaml"], &settings[..]].concat());
    assert_eq!(check.code, 0, "{}", check.all());
    // `check` has 56 kB more in memory than `plan`, which shows in models as small as this.
    let begin = "plan: shout-r2 may not fit: ";
    let mut lines = check.stdout.lines();
    let said = lines.find_map(|line| Some(line.split_once(begin)?.1));
    let said = said.unwrap_or_else(|| panic!("{}", check.stdout));
    let [said, reason] = [said, reason].map(|text| text.split(' ').collect::<Vec<_>>());
    assert_eq!(said.len(), reason.len(), "{said:?} {reason:?}");
    for (said, reason) in said.into_iter().zip(reason) {
        let [found, expected] = [said, reason].map(|word| word.trim_start_matches('(').parse());
        match (found, expected) {
            (Ok(found), Ok(expected)) => {
                let (found, expected): (f64, f64) = (found, expected);
                assert!((found - expected).abs() < 0.15, "{found} {expected}");
            }
            _ => assert_eq!(said, reason),
        }
    }
    let train = here.run(&[&["train", "three.yaml", "--quiet"], &settings[..]].concat());
    assert_eq!(train.code, 4, "{}", train.all());
    let lines: Vec<&str> = train.stderr.lines().collect();
    let begin = "error: shout-r2 failed at step 1: does not fit even alone with one row per \
                 micro-batch: out of memory: the stage of layers 0..4 took ";
    assert!(
        lines[0].starts_with(begin) && lines[0].contains(" MiB of 5."),
        "{}",
        train.stderr
    );
    assert!(
        lines[1].starts_with("hint: lower `train.batch_size`"),
        "{}",
        train.stderr
    );
    assert_eq!(lines.len(), 2, "{}", train.stderr);
}

/// Memory for rows that there are not would keep neighbours waiting.
#[test]
fn a_step_is_planned_with_the_rows_that_there_are() {
    let here = workspace();
    let rows = fs::read_to_string(here.path("data/shout.jsonl")).unwrap();
    let few: Vec<&str> = rows.lines().take(6).collect();
    for name in ["shout", "number"] {
        here.write(&format!("data/{name}.jsonl"), few.join("\n"));
    }
    for microbatches in ["1", "2"] {
        let with = |batch_size: &str| {
            let settings = [
                "device=cpu".to_owned(),
                "scheduler.memory_limit=1GiB".to_owned(),
                format!("pipeline.microbatches={microbatches}"),
                format!("defaults.train.batch_size={batch_size}"),
            ];
            let settings = settings.iter().map(|setting| ["--set", setting]);
            let settings: Vec<_> = settings.collect();
            let command = [&["plan", "three.yaml", "--json"], settings.as_flattened()];
            let run = here.run(&command.concat());
            let mut planned = run.json();
            // Of steps that are epochs, with their rows.
            let warnings = planned["warnings"].take();
            assert!(!warnings.as_array().unwrap().is_empty());
            (run.code, planned)
        };
        let (code, planned) = with("6");
        assert_eq!(code, 0);
        assert_eq!(planned["waiting"], serde_json::json!([]));
        assert_eq!(with("1000000"), (0, planned));
    }
}

/// `train` refuses all for one that does not fit even alone, so `plan`, which shows the rest, ends as it does.
#[test]
fn a_plan_with_an_adapter_that_never_fits_ends_as_the_run_would() {
    let here = workspace();
    let all = plan(&here, &["--set", "device=cpu"]);
    let limit = sum(&all, "weight_bytes") + 4 * sum(&all, "estimated_bytes");
    let limit = format!("scheduler.memory_limit={limit}B");
    let large = "  - {name: large, dataset: shout, lora: {r: 4096}}\n";
    here.write("three.yaml", format!("{THREE}{large}"));
    let arguments = ["three.yaml", "--set", "device=cpu", "--set", &limit];
    let run = here.run(&[&["plan", "--json"], &arguments[..]].concat());
    assert_eq!(run.code, 4, "{}", run.all());
    let found = run.json();
    assert_eq!(found["refused"], serde_json::json!(["large"]));
    assert_eq!(found["groups"][0]["adapters"].as_array().unwrap().len(), 3);
    for command in ["plan", "train"] {
        let run = here.run(&[&[command, "--quiet"], &arguments[..]].concat());
        assert_eq!(run.code, 4, "{}", run.all());
        let refused = "error: `large` cannot train here even alone: cpu needs at least ";
        assert!(run.stderr.starts_with(refused), "{}", run.all());
        let hint = "\nhint: lower `train.batch_size`";
        assert!(run.stderr.contains(hint), "{}", run.all());
    }
}

#[test]
fn speed_gives_time_and_a_chart() {
    let here = workspace();
    let two = ["--set", "pipeline.stages=[cpu, cpu]"];
    let seconds = |more: &[&str]| {
        let plan = plan(&here, &[&two[..], more].concat());
        plan["estimated_seconds_per_iteration"].as_f64()
    };
    assert_eq!(seconds(&[]), None);
    let slow = seconds(&["--tflops", "0.001"]).unwrap();
    let fast = seconds(&["--tflops", "0.002"]).unwrap();
    assert!((slow / fast - 2.0).abs() < 1e-9, "{slow} {fast}");
    let linked = seconds(&["--tflops", "0.001", "--link-gbits", "0.001"]).unwrap();
    assert!(linked > slow, "{linked} {slow}");

    let run = here.run(&[&["plan", "three.yaml", "--gantt", "chart.svg"], &two[..]].concat());
    assert_eq!(run.code, 0, "{}", run.all());
    let chart = fs::read_to_string(here.path("chart.svg")).unwrap();
    assert!(chart.starts_with("<svg") && chart.contains("stage 1"));
    let run = here.run(&["plan", "three.yaml", "--gantt", "chart.png"]);
    let hint = "hint: write `--gantt chart.svg`";
    assert!(run.code == 2 && run.stderr.contains(hint), "{}", run.all());
    let run = here.run(&["plan", "three.yaml", "--gantt", "no/where.svg"]);
    assert_eq!(run.code, 2, "{}", run.all());
}

#[test]
fn what_cannot_be_planned_is_refused() {
    let here = workspace();
    let mut all = String::new();
    for (code, arguments) in [
        (
            2,
            &[
                "--set",
                "pipeline.stages=[cpu, cpu, cpu, cpu, cpu, cpu, cpu]",
            ][..],
        ),
        (
            2,
            &[
                "--set",
                "pipeline.stages=[cpu, cpu]",
                "--set",
                "pipeline.balance=[9, 9]",
            ],
        ),
        (3, &["--set", "model=nowhere"]),
        (3, &["--set", "datasets.shout.path=nowhere.jsonl"]),
        (2, &["--link-gbits", "10"]),
        (2, &["--tflops", "0"]),
    ] {
        let line = [&["plan", "three.yaml"], arguments].concat();
        let run = here.run(&line);
        assert_eq!(run.code, code, "{arguments:?}: {}", run.all());
        assert_eq!(run.stdout, "");
        all += &run.after(&line);
    }
    insta::assert_snapshot!(all);
}

#[test]
fn stages_that_do_not_fit_the_model_are_refused_before_training() {
    let here = workspace();
    let mut all = String::new();
    for arguments in [
        &["--set", "pipeline.stages=[cpu, cpu]", "--device", "cpu"][..],
        &["--set", "pipeline.stages=[cpu, cpu, cpu, cpu, cpu]"],
        &[
            "--set",
            "pipeline.stages=[cpu, cpu]",
            "--set",
            "pipeline.balance=[1, 1]",
        ],
    ] {
        let line = [&["train", "three.yaml"], arguments].concat();
        let run = here.run(&line);
        assert_eq!((run.code, run.stdout.as_str()), (2, ""), "{arguments:?}");
        all += &run.after(&line);
    }
    insta::assert_snapshot!(all);
    assert!(!here.path("runs").exists(), "a run was begun");
}

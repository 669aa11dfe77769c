//! `train` on the tiny model: files, reports, and every way a run ends.

use std::fs;

use crate::support::{Run, Workspace};

/// Three steps of two adapters, on the CPU.
const SHORT: &str = "\
model: tiny-llama
output_dir: run
device: cpu
datasets:
  shout: {path: data/shout.jsonl, validation: 0.1}
  number: {path: data/number.jsonl}
defaults:
  train: {batch_size: 2, max_steps: 3, max_seq_len: 48, learning_rate: 1.0e-2}
  eval: {steps: 2}
adapters:
  - {name: shout-r2, dataset: shout, lora: {r: 2}}
  - {name: number-r4, dataset: number, lora: {r: 4}}
";

/// A workspace with the short configuration.
pub(crate) fn workspace() -> Workspace {
    let here = Workspace::new();
    here.write("short.yaml", SHORT);
    here
}

fn train(here: &Workspace, more: &[&str]) -> Run {
    here.run(&[&["train", "short.yaml"], more].concat())
}

/// The events of the run in `run`.
fn events(here: &Workspace) -> Vec<serde_json::Value> {
    let text = fs::read_to_string(here.path("run/events.jsonl")).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn every_adapter_is_trained_saved_and_reported() {
    let here = workspace();
    let run = train(&here, &[]);
    assert_eq!(run.code, 0, "{}", run.all());
    let mut settings = insta::Settings::clone_current();
    for (pattern, replacement) in [
        // What depends on the machine, the model and its data.
        (
            r"\d+ tokens in \d+\.\d+ s, \d+ tok/s; at most \S+ MiB of memory, \S+ MiB predicted",
            "[TOKENS] in [SECONDS], [RATE]; [MEMORY]",
        ),
        (r"\d+ tok/s", "[RATE]"),
        (r"grad_norm \d+\.\d+", "grad_norm [NORM]"),
        (r" +\d+\.\d{4}", " [LOSS]"),
        (r"\d+ of \d+ rows(; \d+)?", "[ROWS]"),
        (r"\d+s left", "[TIME] left"),
        (r"(?m)^  (prompt|expected|before|after) .*$", "  $1 [TEXT]"),
    ] {
        settings.add_filter(pattern, replacement);
    }
    let filters = settings.bind_to_scope();
    insta::assert_snapshot!(run.all());
    drop(filters);

    let count = |kind: &str| {
        events(&here)
            .iter()
            .filter(|event| event["event"] == kind)
            .count()
    };
    assert_eq!((count("run_start"), count("run_end")), (1, 1));
    assert_eq!(
        (count("step"), count("iteration"), count("adapter_done")),
        (6, 3, 2)
    );
    for name in [
        "run/config.resolved.yaml",
        "run/adapters/shout-r2/best/adapter_model.safetensors",
        "run/adapters/shout-r2/last/adapter_config.json",
        "run/adapters/number-r4/last/adapter_model.safetensors",
    ] {
        assert!(here.path(name).exists(), "{name}");
    }
    assert!(!here.path("run/adapters/number-r4/best").exists());

    let again = train(&here, &[]);
    assert_eq!((again.code, again.stdout.as_str()), (2, ""));
    insta::assert_snapshot!("a_second_run_into_the_same_directory", again.stderr);
}

#[test]
fn many_adapters_have_lines_on_all_of_them() {
    let here = workspace();
    let names: Vec<String> = (0..17).map(|index| format!("{{name: a{index}}}")).collect();
    let adapters = format!("adapters=[{}]", names.join(", "));
    let more = ["defaults.train.batch_size=1", "defaults.train.max_steps=2"];
    let dataset = "defaults.dataset=shout";
    let run = train(
        &here,
        &[
            "--set", &adapters, "--set", more[0], "--set", more[1], "--set", dataset,
        ],
    );
    assert_eq!(run.code, 0, "{}", run.all());
    let mut settings = insta::Settings::clone_current();
    settings.add_filter(r"\d+ tok/s", "[RATE]");
    settings.add_filter(r"\d+s left", "[TIME] left");
    settings.add_filter(r"after \d+s", "after [TIME]");
    let filters = settings.bind_to_scope();
    insta::assert_snapshot!(run.stderr);
    drop(filters);
}

#[test]
fn adapters_answer_as_many_rows_as_are_asked_for() {
    let here = workspace();
    let names: Vec<String> = (0..6).map(|index| format!("{{name: a{index}}}")).collect();
    let adapters = format!("adapters=[{}]", names.join(", "));
    let dataset = "defaults.dataset=shout";
    let train = |output: &str, more: &[&str]| {
        let changes = [
            "--quiet",
            "--output-dir",
            output,
            "--set",
            &adapters,
            "--set",
            dataset,
        ];
        let run = train(&here, &[&changes, more].concat());
        assert_eq!(run.code, 0, "{}", run.all());
        run
    };
    let counts = |run: &Run| {
        let report = run.json();
        let adapters = report["adapters"].as_array().unwrap().iter();
        let counts = adapters.map(|adapter| adapter["samples"].as_array().unwrap().len());
        counts.collect::<Vec<usize>>()
    };
    let few = train("few", &["--json"]);
    assert_eq!(counts(&few), [2, 2, 2, 2, 0, 0]);
    let sample = &few.json()["adapters"][0]["samples"][0];
    let all = train("all", &["--samples", "1", "--json"]);
    assert_eq!(counts(&all), [1; 6]);
    for adapter in all.json()["adapters"].as_array().unwrap() {
        let alike = &adapter["samples"][0];
        for key in ["prompt", "reference", "before"] {
            assert_eq!(alike[key], sample[key], "{key}");
        }
    }
    let shown = train("shown", &[]).stdout;
    assert!(
        shown.contains("… and 2 more adapters; `--samples 2`"),
        "{shown}"
    );
    let none = train("none", &["--samples", "0"]).stdout;
    assert!(none.contains("tok/s") && !none.contains("prompt"), "{none}");
    let again = ["train", "--resume", "shown", "--samples", "1", "--json"];
    assert_eq!(counts(&here.run(&again)), [1, 1, 1, 1, 0, 0]);
}

/// An adapter that begins with another says before its training what that one said after its own. The
/// system's and the user's text stand apart.
#[test]
fn what_was_said_before_is_that_of_the_adapter_it_begins_with() {
    let here = workspace();
    let row = r#"{"messages": [{"role": "system", "content": "You help."},
        {"role": "user", "content": "Invoice 19?"}, {"role": "assistant", "content": "It is paid."}]}"#;
    here.write("data/chat.json", format!("[{row}, {row}]"));
    let changes = [
        "--json",
        "--set",
        "datasets={chat: {path: data/chat.json}}",
        "--set",
        "defaults.train.max_steps=20",
    ];
    let train = |output: &str, adapters: &str| {
        let more = ["--output-dir", output, "--set", adapters, "--samples", "1"];
        let run = train(&here, &[&changes[..], &more].concat());
        assert_eq!(run.code, 0, "{}", run.all());
        run.json()["adapters"][0]["samples"][0].clone()
    };
    let first = train("first", "adapters=[{name: a}]");
    assert_eq!(first["prompt"], "You help.\nInvoice 19?");
    assert_ne!(first["after"], first["before"]);
    let begin = "adapters=[{name: a, init_from: first/adapters/a/last}]";
    let second = train("second", begin);
    assert_eq!(second["before"], first["after"]);
}

#[test]
fn the_report_is_json_and_quiet_is_quiet() {
    let here = workspace();
    let run = train(&here, &["--json", "--quiet", "--output-dir", "elsewhere"]);
    assert_eq!((run.code, run.stderr.as_str()), (0, ""));
    let report = run.json();
    let adapter = &report["adapters"][0];
    assert_eq!(adapter["name"], "shout-r2");
    assert_eq!(adapter["steps"], 3);
    assert!(adapter["first_loss"].as_f64().unwrap() > 0.0);
    assert!(adapter["best"]["step"].as_u64().unwrap() >= 2);
    assert!(here.path("elsewhere/events.jsonl").exists());
}

#[test]
fn an_adapter_that_diverges_fails_alone() {
    let here = workspace();
    let run = train(
        &here,
        &["--set", "adapters.shout-r2.train.learning_rate=1e38"],
    );
    assert_eq!(run.code, 1, "{}", run.all());
    assert!(run.stdout.contains("shout-r2 failed: "), "{}", run.stdout);
    let told = run.stderr.matches("error: shout-r2 failed at step 2: ");
    assert_eq!(told.count(), 1, "{}", run.stderr);
    // Also of a run that has ended, and quiet.
    let again = here.run(&["train", "--resume", "run", "--quiet", "--json"]);
    assert_eq!(again.code, 1, "{}", again.all());
    let begin = "error: shout-r2 did not finish: ";
    assert!(again.stderr.starts_with(begin), "{}", again.stderr);
    let saved = here.path("run/adapters/number-r4/last/adapter_model.safetensors");
    assert!(saved.exists());
}

#[test]
fn a_directory_that_cannot_be_written_is_a_mistake_of_the_configuration() {
    let here = workspace();
    for directory in ["short.yaml", "short.yaml/below"] {
        // It is said before the model is read.
        let run = train(
            &here,
            &["--output-dir", directory, "--set", "model=nowhere"],
        );
        assert_eq!(run.code, 2, "{}", run.all());
        assert!(run.stderr.contains("error: cannot write"), "{}", run.stderr);
    }
}

#[test]
fn missing_files_exit_with_3() {
    let here = workspace();
    for change in ["model=nowhere", "datasets.shout.path=nowhere.jsonl"] {
        let run = train(&here, &["--set", change]);
        assert_eq!(run.code, 3, "{change}: {}", run.all());
        assert!(run.stderr.contains("nowhere"), "{}", run.stderr);
    }
    assert!(!here.path("run").exists());
}

#[cfg(unix)]
#[test]
fn an_interrupt_saves_everything_and_exits_with_130() {
    use std::{
        process::Stdio,
        thread::sleep,
        time::{Duration, Instant},
    };

    use crate::support::signal;

    let here = workspace();
    let mut command = here.command(&[
        "train",
        "short.yaml",
        "--set",
        "defaults.train.max_steps=100000",
    ]);
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let began = Instant::now();
    let has_stepped = || {
        let text = fs::read_to_string(here.path("run/events.jsonl")).unwrap_or_default();
        text.contains("\"iteration\":3,")
    };
    while !has_stepped() {
        assert!(
            began.elapsed() < Duration::from_mins(2),
            "no step was taken"
        );
        sleep(Duration::from_millis(20));
    }
    signal(&child, "-INT");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(
        stdout.contains("interrupted, everything is saved"),
        "{stdout}"
    );
    assert!(!stdout.contains("after"), "{stdout}");
    for name in ["shout-r2", "number-r4"] {
        let saved = format!("run/adapters/{name}/last/adapter_model.safetensors");
        assert!(here.path(&saved).exists(), "{saved}");
    }
    assert_eq!(events(&here).last().unwrap()["interrupted"], true);
}

/// Eight trials of which two in three have no chance.
const SWEEP: &str = "\
model: tiny-llama
device: cpu
datasets: {shout: {path: data/shout.jsonl, validation: 0.1}}
defaults: {eval: {steps: 9}, save: {steps: 4}}
adapters: [{name: base, train: {batch_size: 2, max_steps: 36, max_seq_len: 48}}]
sweep:
  - name: rates
    base: base
    grid: {lora.r: [2, 4], train.learning_rate: [1.0e-6, 1.0e-2, 5.0e-6, 2.0e-6]}
    early_stopping: {metric: train_loss, grace_period: 4, reduction_factor: 3}
";

#[test]
fn a_sweep_stops_its_worst_trials_and_ranks_all() {
    let here = Workspace::new();
    here.write("sweep.yaml", SWEEP);
    let train = |more: &[&str]| here.run(&[&["train", "sweep.yaml", "--json"], more].concat());
    let whole = train(&["--output-dir", "whole"]);
    assert_eq!(whole.code, 0, "{}", whole.stderr);
    let sweep = &whole.json()["sweeps"][0];
    assert_eq!(
        (&sweep["name"], &sweep["metric"]),
        (&"rates".into(), &"train_loss".into())
    );
    let standings = sweep["standings"].as_array().unwrap();
    assert_eq!(standings.len(), 8);
    for best in &standings[..2] {
        assert!(best["name"].as_str().unwrap().contains("0.01"), "{best}");
    }
    // Three of eight go on at step 4, and one of three at step 12.
    let ended: Vec<(&str, u64)> = standings
        .iter()
        .map(|line| {
            (
                line["state"].as_str().unwrap(),
                line["steps"].as_u64().unwrap(),
            )
        })
        .collect();
    assert_eq!(ended[..3], [("done", 36), ("stopped", 12), ("stopped", 12)]);
    assert!(
        ended[3..].iter().all(|&line| line == ("stopped", 4)),
        "{ended:?}"
    );
    let adapters = &whole.json()["adapters"];
    let mut adapters = adapters.as_array().unwrap().iter().skip(1);
    let reason =
        |adapter: &serde_json::Value| adapter["outcome"]["reason"].as_str().unwrap().to_owned();
    assert!(
        adapters.all(|adapter| match adapter["steps"].as_u64() {
            Some(36) => adapter["outcome"]["outcome"] == "done",
            _ => adapter["outcome"]["outcome"] == "stopped" && reason(adapter).contains("rates"),
        }),
        "{}",
        whole.stdout
    );
    let events = fs::read_to_string(here.path("whole/events.jsonl")).unwrap();
    assert!(
        events.contains("stopped by sweep `rates`"),
        "no event says why"
    );

    let tables = here.run(&["train", "sweep.yaml", "--output-dir", "whole", "--resume"]);
    assert!(tables.stdout.contains("sweep rates"), "{}", tables.stdout);
}

/// Three trials at a time, so that later ones are compared with what earlier ones came to before the
/// interruption.
#[cfg(unix)]
#[test]
fn a_sweep_that_is_interrupted_ends_as_if_it_had_not_been() {
    let here = Workspace::new();
    let three = "scheduler: {max_adapters: 3}\n";
    here.write("sweep.yaml", format!("output_dir: run\n{three}{SWEEP}"));
    let whole = here.run(&["train", "sweep.yaml", "--json", "--output-dir", "whole"]);
    assert_eq!(whole.code, 0, "{}", whole.stderr);

    let mut stopped = 0;
    for more in [&["sweep.yaml"][..], &["--resume", "run"]] {
        let events =
            crate::server::interrupted_after(&here, more, |event| event["event"] == "adapter_done");
        stopped += events
            .iter()
            .filter(|event| event["event"] == "adapter_done")
            .count();
    }
    assert!(stopped < 8, "all trials had ended before the interruption");
    let resumed = here.run(&["train", "--resume", "run", "--json"]);
    assert_eq!(resumed.code, 0, "{}", resumed.stderr);
    assert_eq!(resumed.json()["sweeps"], whole.json()["sweeps"]);
    for name in fs::read_dir(here.path("whole/adapters")).unwrap() {
        let name = name.unwrap().file_name().into_string().unwrap();
        let weights = |run: &str| {
            let file = format!("{run}/adapters/{name}/last/adapter_model.safetensors");
            fs::read(here.path(&file)).unwrap()
        };
        assert!(weights("run") == weights("whole"), "{name}");
    }
}

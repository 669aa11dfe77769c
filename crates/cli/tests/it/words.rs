//! What a mistake is called: its cause, where it is, and what to do.

use std::{
    fs, io,
    process::{Command, Stdio},
};

use serde_json::{Value, json};

use crate::{
    server::until,
    support::{Workspace, signal},
    train,
};

/// A run of one step in `run`.
fn trained() -> Workspace {
    let here = train::workspace();
    let one = [
        "train",
        "short.yaml",
        "--quiet",
        "--set",
        "defaults.train.max_steps=1",
    ];
    let run = here.run(&one);
    assert_eq!(run.code, 0, "{}", run.all());
    here
}

/// What several command lines say on stderr.
fn told(here: &Workspace, lines: &[(i32, &str)]) -> String {
    let mut all = String::new();
    for (code, line) in lines {
        let arguments: Vec<&str> = line.split(' ').collect();
        let run = here.run(&arguments);
        assert_eq!(run.code, *code, "{line}: {}", run.all());
        all += &run.after(&arguments);
    }
    all
}

#[test]
fn what_is_to_be_resumed_is_not_there() {
    let here = trained();
    here.write("served/queue.sqlite", "");
    let one = "--set defaults.train.max_steps=1";
    let alone = r#"adapters=[{"name":"shout-r2","dataset":"shout","lora":{"r":2}}]"#;
    insta::assert_snapshot!(told(
        &here,
        &[
            (2, "train --resume runs/nothere"),
            (2, "train --resume served"),
            (2, "train short.yaml --resume --output-dir served"),
            (2, &format!("train short.yaml --resume {one} --set {alone}")),
            (
                2,
                &format!("train short.yaml --resume {one} --set adapters.number-r4.name=b")
            ),
            (2, "train short.yaml --resume"),
            (2, "resume run"),
        ],
    ));
}

/// No hint names the command that has just failed.
#[test]
fn a_run_whose_own_configuration_was_changed_says_how_to_go_on() {
    let here = trained();
    let own = here.path("run/config.resolved.yaml");
    let text = fs::read_to_string(&own).unwrap();
    let resume = ["train", "--resume", "run"];
    let mut all = String::new();
    for changed in [
        None,
        Some(String::new()),
        Some(text.replacen("batch_size: 2", "batch_size: 4", 1)),
    ] {
        match changed {
            None => fs::remove_file(&own).unwrap(),
            Some(text) => fs::write(&own, text).unwrap(),
        }
        let refused = here.run(&resume);
        assert_eq!(refused.code, 2, "{}", refused.all());
        all += &refused.after(&resume);
    }
    insta::assert_snapshot!(all);
    let hinted = "train short.yaml --set defaults.train.max_steps=1 --resume --output-dir run";
    let resumed = here.run(&hinted.split(' ').collect::<Vec<_>>());
    assert_eq!(resumed.code, 0, "{}", resumed.all());
}

#[test]
fn a_run_that_is_resumed_to_be_longer_says_how_to_go_on() {
    let here = trained();
    let two = ["--set", "defaults.train.max_steps=2"];
    let refused = here.run(&[&["train", "short.yaml", "--resume"][..], &two].concat());
    assert_eq!(refused.code, 2, "{}", refused.all());
    let key = "`adapters.number-r4.train.max_steps` was 1 in the run and is 2 now";
    assert!(refused.stderr.contains(key), "{}", refused.stderr);
    let (_, hint) = refused.stderr.split_once("`init_from: ").unwrap();
    let (last, _) = hint.split_once('`').unwrap();
    let from = here.with_paths(&format!("adapters.number-r4.init_from={last}"));
    let new = ["train", "short.yaml", "--output-dir", "longer", "--set"];
    let longer = here.run(&[&new[..], &[&from], &two].concat());
    assert_eq!(longer.code, 0, "{}", longer.all());
}

/// What has ended is in no checkpoint.
#[test]
fn an_adapter_that_is_gone_or_cut_off_is_not_reported_as_fine() {
    let here = trained();
    let weights = here.path("run/adapters/shout-r2/last/adapter_model.safetensors");
    let whole = fs::read(&weights).unwrap();
    let resumed = |code| {
        let run = here.run(&["train", "--resume", "run", "--quiet"]);
        assert_eq!(run.code, code, "{}", run.all());
        run.stderr
    };
    let lost = "error: adapter shout-r2 is lost: ";
    assert!(!resumed(0).contains(lost));
    fs::write(&weights, &whole[..whole.len() - 1]).unwrap();
    assert!(resumed(3).contains(lost));
    fs::remove_dir_all(here.path("run/adapters")).unwrap();
    assert!(resumed(3).contains(lost));
    let base = here.run(&["generate", "--run", "run", "--max-new-tokens", "2", "hi"]);
    let said = "warning: `run` has no adapters: only the base model answers\n";
    assert_eq!((base.code, base.stderr.as_str()), (0, said));
}

#[cfg(target_os = "linux")]
#[test]
fn stdout_on_a_full_disk_is_named() {
    let here = Workspace::new();
    let full = fs::File::create("/dev/full").unwrap();
    let mut command = here.command(&["config", "schema"]);
    let output = command.stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(75));
    let said = String::from_utf8(output.stderr).unwrap();
    let expected = "error: cannot write to stdout: No space left on device (os error 28)\n";
    assert_eq!(said, expected);
}

#[test]
fn beginnings_that_are_odd_or_cannot_be() {
    let here = trained();
    let path = here.path("run/adapters/shout-r2/last/adapter_config.json");
    let mut config: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    config["target_modules"] = json!(r".*\.(q|k|v|o)_proj");
    config["exclude_modules"] = json!(["lm_head"]);
    config["rank_pattern"] = json!({"lm_head": 3});
    config["base_model_name_or_path"] = json!("openai-community/gpt2");
    fs::write(&path, config.to_string()).unwrap();
    let from = "--set adapters.shout-r2.init_from=run/adapters/shout-r2/last";
    let more = "--set output_dir=other --set adapters.number-r4.lora.r=200 --set \
                adapters.number-r4.train.gradient_accumulation_steps=1000";
    let say = |command: &str| {
        let line = format!("{command} short.yaml {from} {more}");
        let run = here.run(&line.split(' ').collect::<Vec<_>>());
        assert_eq!(run.code, 0, "{}", run.all());
        run
    };
    let (checked, run) = (say("check"), say("train"));
    let warned = checked.stdout.lines().filter(|line| {
        line.starts_with("WARN  config: adapter") || line.starts_with("PASS  adapter shout")
    });
    let said = run
        .stderr
        .lines()
        .filter(|line| line.starts_with("warning: adapter"));
    let all: Vec<&str> = warned.chain(said).collect();
    insta::assert_snapshot!(all.join("\n"));

    let nowhere = "train short.yaml --output-dir third --set adapters.shout-r2.init_from=nowhere";
    insta::assert_snapshot!("init_from_nowhere", told(&here, &[(3, nowhere)]));
}

#[test]
fn a_directory_that_cannot_be_made_is_found_by_check() {
    let here = train::workspace();
    let name = "n".repeat(300);
    let run = here.run(&[
        "check",
        "short.yaml",
        "--set",
        &format!("output_dir=runs/{name}"),
    ]);
    assert_eq!(run.code, 2, "{}", run.all());
    assert!(run.stdout.contains("a name of 300"), "{}", run.stdout);
}

#[test]
fn answers_are_given_once_and_end_with_the_context() {
    let here = trained();
    let run = here.run(&[
        "generate",
        "--run",
        "run",
        "--device",
        "cpu",
        "--adapter",
        "shout-r2,shout-r2",
        "--max-new-tokens",
        "10000",
        "a",
    ]);
    assert_eq!(run.code, 0, "{}", run.all());
    assert!(!run.stdout.contains("=="), "{}", run.stdout);
    insta::assert_snapshot!(run.stderr, @"warning: the model's context leaves 510 tokens after this prompt: completions end there, not after 10000");
}

/// Whether or not anybody reads to the end.
#[test]
fn a_check_that_fails_fails_unread() {
    let here = train::workspace();
    for more in [&[][..], &["--json"]] {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let line = [&["check", "short.yaml", "--set", "model=nowhere"], more].concat();
        let output = here.command(&line).stdout(writer).output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{more:?}");
        assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    }
}

#[test]
fn a_run_that_fails_fails_unread() {
    let here = train::workspace();
    let (reader, writer) = io::pipe().unwrap();
    drop(reader);
    let rate = "defaults.train.learning_rate=1e30";
    let line = ["train", "short.yaml", "--quiet", "--set", rate];
    let output = here.command(&line).stdout(writer).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

#[test]
fn an_interrupted_run_says_how_to_go_on() {
    let here = train::workspace();
    let line = [
        "train",
        "short.yaml",
        "--no-progress",
        "--set",
        "defaults.train.max_steps=100000",
    ];
    let mut command = here.command(&line);
    let child = command
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    until("an iteration", || {
        let events = fs::read_to_string(here.path("run/events.jsonl"));
        events.is_ok_and(|events| events.contains("\"iteration\""))
    });
    signal(&child, "-INT");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let stderr = String::from_utf8(output.stderr).unwrap();
    let last = stderr.lines().last().unwrap_or_default();
    assert_eq!(
        here.with_paths(last),
        here.with_paths(
            "hint: continue from the last checkpoint with `loraloom train --resume run`"
        )
    );
}

/// Memory is needed for what of a row is trained.
#[test]
fn rows_that_are_cut_need_no_more_memory() {
    let here = train::workspace();
    let row = json!({"prompt": "List: cup", "completion": "CUP! ".repeat(20_000)});
    here.write("data/long.jsonl", format!("{row}\n{row}\n"));
    let run = here.run(&[
        "train",
        "short.yaml",
        "--quiet",
        "--set",
        "datasets.number.path=data/long.jsonl",
    ]);
    assert_eq!(run.code, 0, "{}", run.all());
    let events = fs::read_to_string(here.path("run/events.jsonl")).unwrap();
    let events = events
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let predicted: Vec<u64> = events
        .filter_map(|event| event["bytes_predicted"].as_u64())
        .collect();
    assert!(!predicted.is_empty());
    assert!(
        predicted.iter().all(|bytes| *bytes < 1 << 30),
        "{predicted:?}"
    );
}

/// Of directories with spaces: what is printed to be pasted is run.
#[test]
fn printed_commands_run_as_they_are() {
    let here = Workspace::empty();
    let paste = |command: &str| {
        let loraloom = assert_cmd::cargo::cargo_bin!("loraloom");
        let command = command.replacen("loraloom", "\"$0\"", 1);
        let output = Command::new("sh")
            .args(["-c", &command])
            .arg(loraloom)
            .current_dir(here.path(""))
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{command}: {stderr}");
    };
    let hinted = |arguments: &[&str]| {
        let run = here.run(arguments);
        assert_eq!(run.code, 2, "{}", run.all());
        let hint = run.stderr.lines().find(|line| line.starts_with("hint: "));
        let command = hint.and_then(|hint| hint.split('`').nth(1));
        command.map_or_else(|| panic!("{}", run.stderr), str::to_owned)
    };
    let init = here.run(&["init", "my run"]).stderr;
    let check = init.lines().find(|line| line.contains("loraloom check"));
    paste(check.unwrap());

    let (config, one) = ("my run/loraloom.yaml", "defaults.train.max_steps=1");
    let train = ["train", config, "--device", "cpu", "--set", one];
    let trained = here.run(&train).stderr;
    let tried = trained.lines().find_map(|line| line.strip_prefix("try: "));
    paste(&tried.unwrap().replace("PROMPT", "hi --max-new-tokens 2"));
    paste(&hinted(&["train", config, "--resume", "--device", "cpu"]));

    let serve = [
        "serve", "my queue", "--config", config, "--drain", "--set", one,
    ];
    assert_eq!(here.run(&serve).code, 0);
    let changed = hinted(&[&serve[..], &["--set", "seed=9"]].concat());
    paste(&format!("{changed} --drain"));
    fs::remove_file(here.path("my queue/config.resolved.yaml")).unwrap();
    let gone = hinted(&["status", "my queue"]);
    paste(&format!(
        "{} --drain --set {one}",
        gone.replace("CONFIG", "'my run/loraloom.yaml'")
    ));
    paste("loraloom status 'my queue'");

    let run = here.path("my run/runs/first");
    fs::remove_file(run.join("config.resolved.yaml")).unwrap();
    let options = hinted(&["generate", "--run", "my run/runs/first", "hi"]);
    let options = options.replace("DIR", "'my run/tiny-llama'");
    paste(&format!(
        "loraloom generate {options} hi --max-new-tokens 2"
    ));
}

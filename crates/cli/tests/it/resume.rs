//! `train --resume`: runs that are killed, interrupted or damaged end as if nothing had happened.
#![cfg(unix)]

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use serde_json::Value;

use crate::support::{Run, Workspace, signal};

/// Three adapters, of which two train at a time, with dropout, accumulation, validation, patience and
/// saves at different steps.
const CONFIG: &str = "\
model: tiny-llama
output_dir: run
device: cpu
scheduler: {max_adapters: 2}
datasets:
  shout: {path: data/shout.jsonl, validation: 0.1}
  number: {path: data/number.jsonl}
defaults:
  lora: {lora_dropout: 0.1}
  train: {batch_size: 2, max_steps: 60, max_seq_len: 48, learning_rate: 1.0e-2, warmup_steps: 3}
  eval: {steps: 7}
  save: {steps: 5}
adapters:
  - {name: shout-r2, dataset: shout, lora: {r: 2}, train: {gradient_accumulation_steps: 2}}
  - {name: number-r4, dataset: number, lora: {r: 4}, save: {steps: 8}}
  - {name: shout-r3, dataset: shout, lora: {r: 3}, eval: {patience: 6}, train: {max_steps: 45}}
";

fn workspace() -> Workspace {
    let here = Workspace::new();
    here.write("config.yaml", CONFIG);
    here
}

fn train(here: &Workspace, more: &[&str]) -> Run {
    here.run(&[&["train", "config.yaml", "--no-progress"], more].concat())
}

/// A workspace with a run that nobody disturbed in `undisturbed`.
fn with_undisturbed() -> Workspace {
    let here = workspace();
    let run = train(&here, &["--output-dir", "undisturbed"]);
    assert_eq!(run.code, 0, "{}", run.all());
    here
}

/// Files of all adapters of a run, by their paths below `adapters`.
fn adapters(run: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut directories = vec![run.join("adapters")];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else {
                let name = path.strip_prefix(run).unwrap().to_owned();
                files.insert(name, fs::read(path).unwrap());
            }
        }
    }
    files
}

fn events(run: &Path) -> Vec<Value> {
    let text = fs::read_to_string(run.join("events.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    lines.collect()
}

/// What was last said of every step of every adapter.
fn steps(run: &Path) -> BTreeMap<(String, u64), [String; 3]> {
    let events = events(run).into_iter();
    let steps = events.filter(|event| event["event"] == "step");
    let steps = steps.map(|event| {
        let text = |key: &str| event[key].to_string();
        (
            (text("adapter"), event["step"].as_u64().unwrap()),
            [text("loss"), text("grad_norm"), text("learning_rate")],
        )
    });
    steps.collect()
}

fn assert_same(here: &Workspace, run: &str) {
    let (found, expected) = (here.path(run), here.path("undisturbed"));
    assert_eq!(steps(&found), steps(&expected), "steps of {run}");
    let (found, expected) = (adapters(&found), adapters(&expected));
    assert_eq!(
        found.keys().collect::<Vec<_>>(),
        expected.keys().collect::<Vec<_>>()
    );
    for (path, bytes) in &expected {
        assert!(found[path] == *bytes, "{} differs in {run}", path.display());
    }
    assert!(expected.len() >= 10);
}

fn start(here: &Workspace, arguments: &[&str]) -> Child {
    let mut command = here.command(&[&["train"], arguments, &["--no-progress"]].concat());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

/// Waits until something was written, or the process has ended.
fn wait_for(run: &Path, child: &mut Child, what: impl Fn(&str) -> bool) {
    let began = Instant::now();
    loop {
        let text = fs::read_to_string(run.join("events.jsonl")).unwrap_or_default();
        if what(&text) || child.try_wait().unwrap().is_some() {
            return;
        }
        assert!(began.elapsed() < Duration::from_mins(3), "nothing happens");
        sleep(Duration::from_millis(5));
    }
}

/// A run of 60 steps that was interrupted after some.
fn interrupted(here: &Workspace, directory: &str, iteration: u64) {
    let mut child = start(here, &["config.yaml", "--output-dir", directory]);
    let needle = format!("\"event\":\"iteration\",\"iteration\":{iteration},");
    wait_for(&here.path(directory), &mut child, |text| {
        text.contains(&needle)
    });
    signal(&child, "-INT");
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(130), "it was to be interrupted in time");
}

/// Names of the run's checkpoints, the newest first.
fn checkpoints(run: &Path) -> Vec<u64> {
    let entries = fs::read_dir(run.join("checkpoints")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut numbers: Vec<u64> = names.filter_map(|name| name.parse().ok()).collect();
    numbers.sort_unstable_by(|a, b| b.cmp(a));
    numbers
}

/// Random numbers; splitmix64.
struct Random(u64);

impl Random {
    #[expect(clippy::print_stdout, reason = "a failure must be repeatable")]
    fn new() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let seed = match env::var("LORALOOM_TEST_SEED") {
            Ok(text) => text.parse().unwrap(),
            Err(_) => now.as_nanos() as u64,
        };
        println!("LORALOOM_TEST_SEED={seed}");
        Self(seed)
    }

    fn below(&mut self, count: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ (word >> 31)) % count
    }
}

/// SIGKILL at random moments, at least eight times over as many runs as that takes; every part of a
/// run is on one stage or on two.
#[test]
fn a_run_that_is_killed_again_and_again_ends_with_the_same_bits() {
    let here = with_undisturbed();
    let count = steps(&here.path("undisturbed")).len() as u64;
    let mut random = Random::new();
    let (mut kills, mut runs) = (0, 0);
    while kills < 8 {
        let directory = format!("killed-{runs}");
        let run = here.path(&directory);
        let mut begun = false;
        loop {
            let stages = ["pipeline.stages=[cpu]", "pipeline.stages=[cpu, cpu]"];
            let stages = stages[random.below(2) as usize];
            let mut child = if begun {
                start(&here, &["--resume", &directory, "--set", stages])
            } else {
                let output = ["--output-dir", &directory, "--set", stages];
                start(&here, &[&["config.yaml"], &output[..]].concat())
            };
            let before = fs::metadata(run.join("events.jsonl")).map_or(0, |file| file.len());
            wait_for(&run, &mut child, |text| text.len() as u64 > before);
            // Somewhere among the steps that are left, and their saves.
            let lines = fs::read_to_string(run.join("events.jsonl")).unwrap();
            let goal = lines.len() as u64 + random.below(260 * count / 2);
            wait_for(&run, &mut child, |text| text.len() as u64 >= goal);
            sleep(Duration::from_millis(random.below(40)));
            if let Some(status) = child.try_wait().unwrap() {
                assert_eq!(status.code(), Some(0));
                break;
            }
            child.kill().unwrap();
            child.wait().unwrap();
            kills += 1;
            begun = run.join("checkpoints").exists() && !checkpoints(&run).is_empty();
            if !begun {
                // It had not come as far as to have anything to go on from.
                let resumed = here.run(&["train", "--resume", &directory]);
                assert_eq!(resumed.code, 2, "{}", resumed.all());
                fs::remove_dir_all(&run).unwrap();
            }
        }
        assert_same(&here, &directory);
        assert_eq!(checkpoints(&run).len(), 2);
        let left = fs::read_dir(run.join("checkpoints")).unwrap().count();
        assert_eq!(left, 2, "what was half written is gone");
        runs += 1;
        assert!(runs < 30, "{kills} kills in {runs} runs");
    }
    println!("{kills} kills in {runs} runs");
}

#[test]
fn an_interrupted_run_goes_on_and_a_finished_one_has_nothing_to_do() {
    let here = with_undisturbed();
    interrupted(&here, "run", 11);
    let newest = checkpoints(&here.path("run"))[0];
    assert!(newest >= 11, "an interrupt loses nothing");

    let changed = train(
        &here,
        &["--resume", "--set", "defaults.train.learning_rate=1e-3"],
    );
    assert_eq!(changed.code, 2, "{}", changed.all());
    assert!(
        changed.stderr.starts_with("error: `adapters.")
            && changed.stderr.contains(".train.learning_rate` was 0.01"),
        "{}",
        changed.stderr
    );

    let resumed = train(
        &here,
        &["--resume", "--set", "adapters.shout-r3.priority=3"],
    );
    assert_eq!(resumed.code, 0, "{}", resumed.all());
    let line = format!("resumed after iteration {newest}, from checkpoints/{newest}");
    assert!(resumed.stderr.contains(&line), "{}", resumed.stderr);
    let count = |kind: &str| {
        let events = events(&here.path("run")).into_iter();
        events.filter(|event| event["event"] == kind).count()
    };
    assert_eq!((count("run_start"), count("resume")), (1, 1));
    assert_eq!((count("run_end"), count("adapter_done")), (2, 3));
    // No step was taken twice.
    assert_eq!(count("step"), steps(&here.path("run")).len());
    assert_same(&here, "run");

    let before = fs::read(here.path("run/events.jsonl")).unwrap();
    for arguments in [
        &["train", "--resume", "run"][..],
        &["train", "config.yaml", "--resume"],
    ] {
        let again = here.run(arguments);
        assert_eq!(again.code, 0, "{}", again.all());
        assert!(
            again.stderr.contains("nothing is left to train"),
            "{}",
            again.stderr
        );
        assert!(again.stdout.contains("number-r4  done"), "{}", again.stdout);
    }
    assert_eq!(fs::read(here.path("run/events.jsonl")).unwrap(), before);
    assert_same(&here, "run");
}

#[test]
fn a_damaged_checkpoint_is_passed_over() {
    let here = with_undisturbed();
    interrupted(&here, "run", 13);
    let run = here.path("run");
    let numbers = checkpoints(&run);
    assert_eq!(numbers.len(), 2, "the newest two are kept");
    let damage = |number: u64| {
        let path = run.join(format!("checkpoints/{number}/tasks/shout-r2.safetensors"));
        let mut bytes = fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(&path, bytes).unwrap();
    };
    damage(numbers[0]);
    // Another of this number was damaged before.
    let before = format!("run/checkpoints/{}.damaged/run.json", numbers[0]);
    here.write(&before, "{}");
    let copy = here.path("copy");
    let status = Command::new("cp").arg("-a").args([&run, &copy]).status();
    assert!(status.unwrap().success());

    let resumed = train(&here, &["--resume"]);
    assert_eq!(resumed.code, 0, "{}", resumed.all());
    let (newest, older) = (numbers[0], numbers[1]);
    let said = format!(
        "warning: checkpoint `run/checkpoints/{newest}` cannot be used: tasks/shout-r2.safetensors: its BLAKE3 is "
    );
    assert!(resumed.stderr.contains(&said), "{}", resumed.stderr);
    let line = format!("from checkpoints/{older}");
    assert!(resumed.stderr.contains(&line), "{}", resumed.stderr);
    let aside = run.join(format!("checkpoints/{newest}.damaged/tasks"));
    assert!(aside.exists(), "the newest that is damaged is kept");
    assert_same(&here, "run");

    let cut = copy.join(format!("checkpoints/{older}/run.json"));
    let text = fs::read(&cut).unwrap();
    fs::write(&cut, &text[..text.len() / 2]).unwrap();
    let resumed = here.run(&["train", "--resume", "copy"]);
    assert_eq!(resumed.code, 3, "{}", resumed.all());
    for number in numbers {
        let said = format!("checkpoint `copy/checkpoints/{number}` cannot be used");
        assert!(resumed.stderr.contains(&said), "{}", resumed.stderr);
    }
    assert!(
        resumed.stderr.contains("hint: start a new run"),
        "{}",
        resumed.stderr
    );
}

#[test]
fn other_rows_fail_their_adapter_alone_until_they_are_back() {
    let here = with_undisturbed();
    interrupted(&here, "run", 12);
    let data = here.path("data/number.jsonl");
    let text = fs::read_to_string(&data).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    lines.swap(0, 1);
    fs::write(&data, lines.join("\n")).unwrap();
    let resumed = train(&here, &["--resume"]);
    assert_eq!(resumed.code, 1, "{}", resumed.all());
    assert!(
        resumed.stderr.contains("number-r4 failed at step")
            && resumed
                .stderr
                .contains("the rows of dataset `number` had BLAKE3"),
        "{}",
        resumed.stderr
    );
    assert!(
        resumed.stdout.contains("shout-r3   done"),
        "{}",
        resumed.stdout
    );

    fs::write(&data, text).unwrap();
    let resumed = train(&here, &["--resume"]);
    assert_eq!(resumed.code, 0, "{}", resumed.all());
    assert_same(&here, "run");
}

/// A failure is saved as soon as it is there, whatever the others save.
#[test]
fn an_adapter_that_failed_does_not_fail_again() {
    let here = workspace();
    here.write(
        "fails.yaml",
        "model: tiny-llama\noutput_dir: run\ndevice: cpu\ndatasets: {n: {path: data/number.jsonl}}\n\
         defaults: {train: {batch_size: 2, max_seq_len: 48, max_steps: 100000}, save: {steps: 100000}}\n\
         adapters:\n  - {name: good, dataset: n, lora: {r: 2}}\n  \
         - {name: bad, dataset: n, lora: {r: 2}, train: {learning_rate: 1.0e+38, max_grad_norm: 0}}\n",
    );
    let mut child = start(&here, &["fails.yaml"]);
    let failed = r#""event":"adapter_failed","#;
    wait_for(&here.path("run"), &mut child, |text| {
        let after = text.split_once(failed).map_or("", |(_, after)| after);
        after.contains(r#""event":"run_checkpoint""#)
    });
    child.kill().unwrap();
    child.wait().unwrap();
    let mut child = start(&here, &["--resume", "run"]);
    wait_for(&here.path("run"), &mut child, |text| {
        let after = text.split_once(r#""event":"resume""#);
        after.is_some_and(|(_, after)| after.matches(r#""event":"step""#).count() > 5)
    });
    child.kill().unwrap();
    child.wait().unwrap();
    let text = fs::read_to_string(here.path("run/events.jsonl")).unwrap();
    assert_eq!(text.matches(failed).count(), 1, "{text}");
}

#[test]
fn what_cannot_be_resumed_is_said() {
    let here = workspace();
    let nothing = train(&here, &["--resume"]);
    assert_eq!(nothing.code, 2, "{}", nothing.all());
    insta::assert_snapshot!("resume_without_a_run", nothing.stderr);
    let no_run = here.run(&["train", "--resume", "data"]);
    assert_eq!(no_run.code, 2, "{}", no_run.all());
    fs::create_dir(here.path("run")).unwrap();
    here.write("run/events.jsonl", "");
    let no_checkpoint = train(&here, &["--resume"]);
    assert_eq!(no_checkpoint.code, 2, "{}", no_checkpoint.all());
    insta::assert_snapshot!("resume_without_a_checkpoint", no_checkpoint.stderr);
    let both = here.run(&["train", "--resume", "run", "--output-dir", "x"]);
    assert_eq!(both.code, 2, "{}", both.all());

    let output = ["config.yaml", "--output-dir", "long"];
    let long = ["--set", "defaults.train.max_steps=100000"];
    let mut child = start(&here, &[output, [long[0], long[1], "--quiet"]].concat());
    let run = here.path("long");
    wait_for(&run, &mut child, |text| text.contains("run_checkpoint"));
    let second = here.run(&["train", "--resume", "long"]);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(second.code, 2, "{}", second.all());
    insta::assert_snapshot!("resume_of_a_run_in_progress", second.stderr);
}

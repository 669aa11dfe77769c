//! Adapters for which memory is short, with the allocations of the real program.

use std::fs;

use serde_json::Value;

use crate::support::{Run, Workspace};

/// Names, settings of `lora` and of `train`.
type Adapter = (&'static str, &'static str, &'static str);

const OK: Adapter = ("ok", "r: 4", "max_steps: 4, batch_size: 4");
/// Does not fit into 40 MiB, and `OK` does many times.
const BIG: Adapter = (
    "big",
    "r: 128, target_modules: all-linear",
    "max_steps: 4, batch_size: 4",
);

fn workspace(adapters: &[Adapter]) -> Workspace {
    let here = Workspace::new();
    let adapters = adapters.iter().map(|(name, lora, train)| {
        format!("  - {{name: {name}, dataset: number, lora: {{{lora}}}, train: {{{train}}}}}\n")
    });
    let adapters: String = adapters.collect();
    here.write(
        "config.yaml",
        format!(
            "model: tiny-llama\noutput_dir: run\ndevice: cpu\n\
             datasets: {{number: {{path: data/number.jsonl}}}}\n\
             defaults: {{train: {{max_seq_len: 64}}}}\nadapters:\n{adapters}"
        ),
    );
    here
}

fn run(here: &Workspace, command: &[&str], limit: &str) -> Run {
    let limit = format!("scheduler.memory_limit={limit}");
    here.run(&[command, &["--set", &limit]].concat())
}

fn events(here: &Workspace) -> Vec<Value> {
    let text = fs::read_to_string(here.path("run/events.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    lines.collect()
}

/// Adapters by name, with the event that ended them.
fn ends(here: &Workspace) -> Vec<(String, String)> {
    let ends = events(here).into_iter().filter_map(|event| {
        let kind = event["event"].as_str()?.strip_prefix("adapter_")?;
        Some((event["adapter"].as_str()?.to_owned(), kind.to_owned()))
    });
    ends.collect()
}

/// On the CPU a parked adapter is in the memory that its neighbour trains in.
#[test]
fn who_fits_alone_trains_though_a_neighbour_does_not() {
    for adapters in [[OK, BIG], [BIG, OK]] {
        let here = workspace(&adapters);
        let train = ["train", "config.yaml", "--samples", "0", "--no-progress"];
        let train = run(&here, &train, "40MiB");
        assert_eq!(train.code, 1, "{}", train.all());
        let report = train.all();
        let alone =
            "big failed: does not fit even alone with one row per micro-batch: out of memory";
        assert!(report.contains(alone), "{report}");
        assert!(ends(&here).contains(&("ok".into(), "done".into())));

        let here = workspace(&adapters);
        let serve = ["serve", "run", "--config", "config.yaml", "--drain"];
        let serve = run(&here, &serve, "40MiB");
        assert_eq!(serve.code, 1, "{}", serve.all());
        let mut ends = ends(&here);
        ends.sort();
        let expected = [("big", "failed"), ("ok", "done")];
        let expected = expected.map(|(name, end)| (name.to_owned(), end.to_owned()));
        assert_eq!(ends, expected);
    }
}

#[test]
fn who_did_not_fit_is_tried_again_on_resume() {
    let here = workspace(&[OK, BIG]);
    let first = run(&here, &["train", "config.yaml", "--no-progress"], "40MiB");
    assert_eq!(first.code, 1, "{}", first.all());
    assert!(first.stdout.contains("prompt"), "{}", first.all());
    let resume = [
        "train",
        "--resume",
        "run",
        "--samples",
        "0",
        "--no-progress",
    ];
    let again = run(&here, &resume, "40MiB");
    assert_eq!(again.code, 1, "{}", again.all());
    let more = run(&here, &resume, "400MiB");
    assert_eq!(more.code, 0, "{}", more.all());
    assert!(!more.stdout.contains("prompt"), "{}", more.all());
    let ends = ends(&here);
    let of = |name: &str| {
        let ends = ends.iter().filter(|(adapter, _)| adapter == name);
        ends.map(|(_, end)| end.as_str()).collect::<Vec<_>>()
    };
    assert_eq!(of("ok"), ["done"]);
    assert_eq!(of("big"), ["failed", "failed", "done"]);
}

/// What a large adapter had asked for is nothing that small ones ask for.
#[test]
fn small_adapters_train_together_after_a_large_one_failed() {
    let small = |name| (name, "r: 4", "max_steps: 24, batch_size: 4");
    let here = workspace(&[BIG, small("a"), small("b"), small("c")]);
    let large = "config.yaml adapters.a.priority=-1 adapters.b.priority=-1 adapters.c.priority=-1";
    let mut words = large.split(' ');
    let mut serve = vec!["serve", "run", "--drain", "--config"];
    serve.extend(words.next());
    serve.extend(words.flat_map(|set| ["--set", set]));
    let serve = run(&here, &serve, "40MiB");
    assert_eq!(serve.code, 1, "{}", serve.all());
    let events = events(&here);
    let failed = events
        .iter()
        .position(|event| event["adapter"] == "big" && event["event"] == "adapter_failed");
    let after = &events[failed.expect("it does not fit")..];
    assert!(!after.iter().any(|event| event["event"] == "out_of_memory"));
    let together = |event: &Value| {
        event["groups"][0]
            .as_array()
            .is_some_and(|group| group.len() == 3)
    };
    assert!(after.iter().any(together), "they wait for each other");
}

/// Where `check` has no doubt, a run does not run out of memory.
#[test]
fn check_knows_what_an_adapter_of_high_rank_takes() {
    let here = workspace(&[("x", "r: 600", "max_steps: 2, batch_size: 2")]);
    let mut codes = Vec::new();
    for limit in ["60MiB", "78MiB", "90MiB", "110MiB", "200MiB"] {
        let check = run(&here, &["check", "config.yaml"], limit);
        let output = format!("run-{limit}");
        let train = [
            "train",
            "config.yaml",
            "--no-progress",
            "--output-dir",
            &output,
        ];
        let train = run(&here, &train, limit);
        if check.code == 0 && !check.stdout.contains("may not fit") {
            assert!(
                !train.stderr.contains("out of memory"),
                "{limit}: {}",
                train.all()
            );
        }
        let plan = run(&here, &["plan", "config.yaml"], limit);
        assert_eq!(plan.code, check.code, "{limit}: {}", plan.all());
        codes.push((check.code, train.code));
    }
    assert_eq!(codes[0], (4, 4), "never fits");
    assert_eq!(codes[4], (0, 0), "fits");
}

/// Long rows, and a server with these settings that has trained nothing yet.
fn server_beside_long_rows(settings: &str) -> Workspace {
    let here = Workspace::new();
    let text = |row: usize| format!("word{row} ").repeat(150);
    let rows = (0..96).map(|row| format!("{{\"text\": \"{}\"}}\n", text(row)));
    here.write("long.jsonl", rows.collect::<String>());
    let server = format!("model: tiny-llama\ndevice: cpu\n{settings}\n");
    here.write("server.yaml", server);
    here.write("long.yaml", format!("output_dir: alone\n{LONG}"));
    let serve = here.run(&["serve", "run", "--config", "server.yaml", "--drain"]);
    assert_eq!(serve.code, 0, "{}", serve.all());
    here
}

const LONG: &str = "model: tiny-llama
datasets: {long: {path: long.jsonl}}
adapters: [{name: a, dataset: long, lora: {r: 2}, train: {max_steps: 2, batch_size: 1}}]
";

/// A server trains with its own settings, whatever the submitted configuration has.
#[test]
fn what_is_submitted_is_judged_as_the_server_trains_it() {
    for (checkpointing, code) in [(true, 0), (false, 4)] {
        let settings =
            format!("gradient_checkpointing: {checkpointing}\nscheduler: {{memory_limit: 12MiB}}");
        let here = server_beside_long_rows(&settings);
        let own = !checkpointing;
        here.write("own.yaml", format!("gradient_checkpointing: {own}\n{LONG}"));
        let submit = here.run(&["submit", "run", "own.yaml"]);
        assert_eq!(submit.code, code, "{checkpointing}: {}", submit.all());
    }
}

#[test]
fn a_server_with_too_little_memory_for_all_its_tasks_ends_with_4() {
    let here = server_beside_long_rows("scheduler: {memory_limit: 400MiB}");
    let submit = here.run(&["submit", "run", "long.yaml"]);
    assert_eq!(submit.code, 0, "{}", submit.all());
    let serve = run(&here, &["serve", "run", "--drain"], "8MiB");
    assert_eq!(serve.code, 4, "{}", serve.all());
    let why = "error: a failed at step 1: `a` cannot train here even alone";
    assert!(serve.stderr.contains(why), "{}", serve.all());
}

/// The most memory that the command had, in kilobytes.
#[cfg(target_os = "linux")]
fn peak(here: &Workspace, arguments: &[&str]) -> u64 {
    let mut child = here.command(arguments).spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    loop {
        let text = fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let number = line.and_then(|line| line.split_whitespace().next());
        peak = number.map_or(peak, |number| number.parse().unwrap());
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success());
            return peak;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// A batch is cut into micro-batches because it does not fit as a whole.
#[cfg(target_os = "linux")]
#[test]
fn evaluation_takes_no_more_memory_than_training() {
    let here = server_beside_long_rows("");
    let train = |output: &str, validation: &str| {
        let arguments = format!(
            "train long.yaml --samples 0 --no-progress --set output_dir={output} \
             --set pipeline.microbatches=32 --set adapters.a.train.batch_size=32{validation}"
        );
        peak(&here, &arguments.split(' ').collect::<Vec<_>>())
    };
    let (without, with) = (
        train("without", ""),
        train("with", " --set datasets.long.validation=0.4"),
    );
    let peaks = format!("{without} kB without evaluation, {with} kB with");
    assert!(with < without * 5 / 4, "{peaks}");
}

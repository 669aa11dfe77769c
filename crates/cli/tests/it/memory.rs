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
        let alone = "big failed: does not fit even alone and row by row: out of memory";
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

//! Losses and norms are read while the next iteration is computed. Nothing of a run shows it but the
//! time at which its events come.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use loraloom_config::RunConfig;
use loraloom_model::PeftAdapter;
use loraloom_tests::{
    Fixture, TrainedRun, assert_close, assert_same_training, device, largest_relative_difference,
    losses, train,
};
use loraloom_trainer::{Event, Outcome, Run};
use serde_json::{Value, json};

/// Nothing follows from a step of such an adapter but from its second and its last.
fn adapter(name: &str, rank: usize, steps: usize) -> Value {
    json!({
        "name": name, "dataset": "data", "seed": rank,
        "lora": {"r": rank, "lora_alpha": 8, "lora_dropout": 0.1, "target_modules": "all-linear"},
        "train": {"batch_size": 2, "max_seq_len": 48, "max_steps": steps, "warmup_steps": 3,
                  "learning_rate": 2e-3},
        "eval": {"steps": 1000}, "save": {"steps": 1000},
    })
}

fn run(fixture: &Fixture, adapters: &[Value]) -> TrainedRun {
    train(|output_dir| fixture.config(adapters, output_dir))
}

/// What a step event says of an adapter's step, its iteration included.
fn steps(events: &[Event], name: &str) -> Vec<Event> {
    let steps = events
        .iter()
        .filter(|event| matches!(event, Event::Step { adapter, .. } if adapter == name));
    steps.cloned().collect()
}

/// Saving after every step waits for every step: the reference. Events and adapters are the same to
/// the last bit.
#[test]
fn a_step_read_late_is_the_step_read_at_once() {
    let fixture = Fixture::open("llama-gqa");
    let adapters = [adapter("a", 4, 20), adapter("b", 7, 14)];
    let mut waiting = adapters.clone();
    for adapter in &mut waiting {
        adapter["save"]["steps"] = json!(1);
    }
    let (late, at_once) = (run(&fixture, &adapters), run(&fixture, &waiting));
    for (name, count) in [("a", 20), ("b", 14)] {
        let found = steps(&late.events, name);
        assert_eq!(found.len(), count);
        assert_eq!(found, steps(&at_once.events, name));
        assert_eq!(late.adapter(name), at_once.adapter(name), "{name}");
    }
}

/// The events of an adapter, in order, are those of its steps one by one, each followed by what
/// follows from it; and the iterations of a run are counted without a gap.
#[test]
fn every_step_has_its_event_before_what_follows_from_it() {
    let fixture = Fixture::open("qwen3");
    let mut often = adapter("often", 4, 11);
    (often["eval"]["steps"], often["save"]["steps"]) = (json!(3), json!(4));
    let adapters = [often, adapter("seldom", 2, 17)];
    let run = train(|output_dir| {
        let mut config = fixture.config(&adapters, output_dir);
        config["datasets"]["data"]["validation"] = json!(0.2);
        config
    });

    let mut expected = Vec::new();
    for step in 1..=11 {
        expected.push(("step", step));
        if step % 3 == 0 || step == 11 {
            expected.push(("eval", step));
        }
    }
    expected.extend([("last", 11), ("done", 11)]);
    let of_often = run.events.iter().filter_map(|event| match event {
        Event::Step { adapter, step, .. } if adapter == "often" => Some(("step", *step)),
        Event::Eval { adapter, step, .. } if adapter == "often" => Some(("eval", *step)),
        Event::Checkpoint {
            adapter,
            step,
            path,
        } if adapter == "often" && path.ends_with("last") => Some(("last", *step)),
        Event::AdapterDone { adapter, step, .. } if adapter == "often" => Some(("done", *step)),
        _ => None,
    });
    // A save is written beside the steps after it.
    let saves = |&(what, step): &(&str, usize)| what == "last" && step < 11;
    let (saved, told): (Vec<_>, Vec<_>) = of_often.partition(saves);
    assert_eq!(saved, [("last", 4), ("last", 8)]);
    assert_eq!(told, expected);

    let mut open = Vec::new();
    let mut iterations = Vec::new();
    for event in &run.events {
        match event {
            Event::Step {
                iteration, step, ..
            } => {
                // Both adapters began at the first iteration.
                assert_eq!(*iteration, *step as u64);
                open.push(*iteration);
            }
            Event::Iteration {
                iteration,
                seconds,
                tokens,
                tokens_per_second,
                groups,
                ..
            } => {
                assert_eq!(open, vec![*iteration; groups.concat().len()]);
                assert!(*seconds > 0.0 && *tokens > 0);
                assert!((tokens_per_second * seconds / *tokens as f64 - 1.0).abs() < 1e-9);
                iterations.push(*iteration);
                open.clear();
            }
            _ => {}
        }
    }
    assert_eq!(iterations, (1..=17).collect::<Vec<_>>());
}

/// The times of the iterations do not overlap: together they are no longer than the run.
#[test]
fn iterations_share_the_time_of_the_run() {
    let fixture = Fixture::open("llama-gqa");
    let run = run(&fixture, &[adapter("a", 4, 30), adapter("b", 8, 30)]);
    let seconds: f64 = run
        .events
        .iter()
        .filter_map(|event| match event {
            Event::Iteration { seconds, .. } => Some(seconds),
            _ => None,
        })
        .sum();
    assert!(
        seconds <= run.report.seconds,
        "{seconds} of {}",
        run.report.seconds
    );
}

/// A task that diverges is found out one step later, when its next step is under way: that step
/// leaves no trace, the failure names the step that failed, and the others never notice.
#[test]
fn a_diverging_task_fails_at_its_own_step_and_alone() {
    let fixture = Fixture::open("llama-gqa");
    let mut wild = adapter("wild", 3, 60);
    // Every step multiplies the weights by about -100: it takes some to overflow.
    wild["train"]["learning_rate"] = json!(1e-2);
    wild["train"]["lr_scheduler_type"] = json!("constant");
    wild["train"]["weight_decay"] = json!(1e4);
    let healthy = [adapter("a", 4, 60), adapter("b", 8, 60)];
    let together = [healthy[0].clone(), wild.clone(), healthy[1].clone()];
    let (beside, without) = (run(&fixture, &together), run(&fixture, &healthy));

    let wild_steps = steps(&beside.events, "wild");
    let failures: Vec<(usize, usize, &str)> = beside
        .events
        .iter()
        .enumerate()
        .filter_map(|(at, event)| match event {
            Event::AdapterFailed {
                adapter,
                step,
                reason,
            } if adapter == "wild" => Some((at, *step, reason.as_str())),
            _ => None,
        })
        .collect();
    let [(at, failed, reason)] = failures[..] else {
        panic!("one failure, not {failures:?}")
    };
    assert_eq!(failed, wild_steps.len() + 1);
    assert!(failed > 3, "the steps before are not read late");
    assert!(reason.contains("`train.weight_decay` 10000.0"), "{reason}");
    let report = &beside.report.adapters[1];
    assert_eq!(report.steps, wild_steps.len());
    assert!(matches!(&report.outcome, Outcome::Failed { reason: told, .. } if told == reason));
    let of_wild = |event: &Event| match event {
        Event::Step { adapter, .. } | Event::Checkpoint { adapter, .. } => adapter == "wild",
        _ => false,
    };
    assert!(!beside.events[at..].iter().any(of_wild));
    // It was computed once more before anybody knew.
    let iterations = beside.events.iter().filter(|event| match event {
        Event::Iteration { groups, .. } => groups.concat().iter().any(|name| name == "wild"),
        _ => false,
    });
    assert_eq!(iterations.count(), failed + 1);

    for name in ["a", "b"] {
        assert_same_training(name, &beside, &without);
    }
    // The same step fails when every step is waited for.
    wild["save"]["steps"] = json!(1);
    let at_once = run(&fixture, &[wild]);
    assert_eq!(steps(&at_once.events, "wild").len(), wild_steps.len());
}

/// A run stopped while an iteration is under way has taken that step: it is booked and saved.
#[test]
fn a_stop_saves_the_step_under_way() {
    let fixture = Fixture::open("llama-gqa");
    let constant = |steps: usize| {
        let mut adapter = adapter("a", 4, steps);
        adapter["train"]["lr_scheduler_type"] = json!("constant");
        adapter
    };
    let directory = tempfile::tempdir().expect("a temporary directory");
    let output_dir = directory.path().join("run");
    let config = fixture.config(&[constant(50)], &output_dir);
    let path = directory.path().join("config.json");
    fs::write(&path, config.to_string()).expect("the configuration is written");
    let config = RunConfig::load(&path, &[])
        .expect("a valid configuration")
        .config;
    let stop = AtomicBool::new(false);
    let mut events = Vec::new();
    let report = Run::prepare(config, &[device()])
        .expect("the run is prepared")
        .train(&stop, &mut |event| {
            if let Event::Iteration { iteration: 7, .. } = event {
                stop.store(true, Ordering::Relaxed);
            }
            events.push(event.clone());
        })
        .expect("a stopped run is no error");
    assert_eq!(report.adapters[0].outcome, Outcome::Interrupted);
    assert_eq!(
        report.adapters[0].steps, 8,
        "step 7 was booked while step 8 was under way"
    );
    let whole = run(&fixture, &[constant(8)]);
    assert_eq!(losses(&events, "a"), losses(&whole.events, "a"));
    let saved = PeftAdapter::load(&output_dir.join("adapters/a/last")).expect("a saved adapter");
    assert_eq!(saved, whole.adapter("a"));
}

/// Micro-batches add up to the batch: the same rows and the same dropout, summed in another order.
/// The tolerances are those of the comparison with PEFT, which has the same cause.
#[test]
fn accumulated_gradients_are_those_of_the_whole_batch() {
    let fixture = Fixture::open("llama-gqa");
    let accumulated = |batch_size: usize| {
        let mut adapter = adapter("a", 4, 20);
        adapter["train"]["batch_size"] = json!(batch_size);
        adapter["train"]["gradient_accumulation_steps"] = json!(6 / batch_size);
        // Its single micro-batch goes with the first of the other's.
        run(&fixture, &[adapter, self::adapter("b", 8, 20)])
    };
    let whole = accumulated(6);
    for batch_size in [1, 2, 3] {
        let parts = accumulated(batch_size);
        for name in ["a", "b"] {
            let what = format!("{name} in micro-batches of {batch_size}");
            let columns = |run: &TrainedRun, column: usize| -> Vec<f64> {
                let steps = losses(&run.events, name);
                steps.into_iter().map(|step| step[column]).collect()
            };
            assert_close(&what, &columns(&parts, 0), &columns(&whole, 0), 1e-6);
            assert_close(&what, &columns(&parts, 1), &columns(&whole, 1), 1e-4);
            let difference =
                largest_relative_difference(&parts.adapter(name), &whole.adapter(name));
            assert!(difference <= 1e-4, "{what}: {difference:.2e}");
        }
        // The micro-batches of one task are nothing to the other.
        assert_same_training("b", &parts, &whole);
    }
}

/// To read a tensor back is to wait for its device. The library does so at these places alone, and a step,
/// from its rows to its optimizer, at none but `readback.rs`, which reads what a step left behind when
/// the next one is on its way, and `mailbox.rs`, which moves activations from stage to stage.
#[test]
fn tensors_are_read_back_at_known_places() {
    // Calls of Burn that wait for values, or for the device.
    const READS: [&str; 10] = [
        "into_data",
        "to_data(",
        "into_scalar",
        "to_host(",
        "Transaction::default",
        ".sync()",
        "all_close(",
        "argwhere(",
        "mask_select(",
        "nonzero(",
    ];
    const KNOWN: [(&str, usize); 18] = [
        // `doctor`.
        ("batchlora/src/check.rs", 1),
        ("batchlora/src/ops/flex.rs", 1),
        // Adapters for PEFT; and `to_host` itself.
        ("model/src/adapters.rs", 3),
        ("model/src/check.rs", 5),
        ("model/src/ops/flex/mod.rs", 1),
        // Tokens that were picked.
        ("model/src/ops/sampling.rs", 2),
        ("pipeline/src/executor/mailbox.rs", 1),
        ("pipeline/src/executor/readback.rs", 2),
        // After a pass that failed.
        ("pipeline/src/stage/local.rs", 1),
        // Layers that are measured before a run.
        ("pipeline/src/partition/measure.rs", 1),
        // Losses of an evaluation, and logits for comparisons.
        ("pipeline/src/pipeline.rs", 1),
        ("pipeline/src/remote/client/worker_connection.rs", 1),
        // Parked and saved adapters, and whether an adapter has moved.
        ("trainer/src/adapter.rs", 1),
        ("trainer/src/checkpoint/tensors.rs", 1),
        ("trainer/src/tasks/diagnosis.rs", 1),
        // Start values that are computed before the first step.
        ("trainer/src/start/svd.rs", 1),
        ("trainer/src/tasks/slora.rs", 2),
        ("trainer/src/tasks/start_values.rs", 1),
    ];
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
    let mut found = BTreeMap::new();
    let sources = ["batchlora/src", "model/src", "pipeline/src", "trainer/src"];
    let mut paths: Vec<PathBuf> = sources.iter().map(|source| crates.join(source)).collect();
    while let Some(path) = paths.pop() {
        if path.is_dir() {
            let entries = fs::read_dir(path).expect("a directory");
            paths.extend(entries.map(|entry| entry.expect("an entry").path()));
            continue;
        }
        let text = fs::read_to_string(&path).expect("a source file");
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        let lines = code
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"));
        let reads = lines.filter(|line| READS.iter().any(|read| line.contains(read)));
        let name = path.strip_prefix(&crates).expect("below the crates");
        match reads.count() {
            0 => {}
            count => {
                found.insert(name.display().to_string(), count);
            }
        }
    }
    let known = KNOWN.map(|(name, count)| (name.to_owned(), count));
    assert_eq!(found, BTreeMap::from(known));
}

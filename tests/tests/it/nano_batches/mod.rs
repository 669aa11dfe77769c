//! Steps that are spread over several iterations, however often that changes or is disturbed, end as
//! those of a task that was alone and took them whole.

mod known_times;
mod seen;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use known_times::KnownTimes;
use loraloom_config::RunConfig;
use loraloom_tests::{
    FixedGroups, Fixture, RandomRoom, TrainedRun, assert_same_training, device, scheduler, train,
    train_with,
};
use loraloom_trainer::{Event, Outcome, Run, SavedRun};
use seen::seen;
use serde_json::{Value, json};

const NAMES: [&str; 4] = ["long", "middle", "short", "other"];
const STEPS: [usize; 4] = [30, 40, 90, 35];

/// An adapter that differs from the others, with dropout. Of the rows, steps of the first take eight,
/// in four batches or eight micro-batches.
fn adapter(index: usize) -> Value {
    let rank = [4, 2, 8, 3][index];
    let (batch_size, batches) = [(2, 4), (1, 3), (1, 1), (3, 2)][index];
    json!({
        "name": NAMES[index], "dataset": "data", "seed": 5 + index,
        "lora": {"r": rank, "lora_alpha": 8, "lora_dropout": 0.2, "target_modules": "all-linear"},
        "train": {"batch_size": batch_size, "gradient_accumulation_steps": batches, "max_seq_len": 32,
                  "max_steps": STEPS[index], "learning_rate": 2e-3, "warmup_steps": 3},
        "eval": {"steps": 7},
        "save": {"steps": 9},
    })
}

/// The bundled model, which has four layers, over rows of a fixture.
fn config(adapters: &[Value], stages: usize, output_dir: &Path) -> Value {
    let mut config = Fixture::open("llama-gqa").config(adapters, output_dir);
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/tiny-llama");
    config["model"] = json!(model);
    config["datasets"]["data"]["validation"] = json!(0.1);
    config["pipeline"] = json!({"stages": vec!["cpu"; stages], "microbatches": 2});
    config
}

/// Every adapter alone, with whole steps.
fn alone(index: usize) -> TrainedRun {
    let adapters = [adapter(index)];
    let whole = FixedGroups::new(vec![vec![1]], None);
    train_with(whole, |output_dir| config(&adapters, 1, output_dir))
}

/// Steps after which an adapter was evaluated, and saved.
fn followed(run: &TrainedRun, name: &str) -> Vec<(bool, usize)> {
    let found = run.events.iter().filter_map(|event| match event {
        Event::Eval { adapter, step, .. } if adapter == name => Some((true, *step)),
        Event::Checkpoint { adapter, step, .. } if adapter == name => Some((false, *step)),
        _ => None,
    });
    let mut found: Vec<_> = found.collect();
    // A save is written beside the steps after it.
    found.sort_unstable();
    found
}

fn assert_nothing_changed(run: &TrainedRun) {
    for (index, adapter) in run.report.adapters.iter().enumerate() {
        assert_eq!(adapter.outcome, Outcome::Done, "{}", adapter.name);
        let alone = alone(index);
        assert_same_training(&adapter.name, run, &alone);
        assert_eq!(
            followed(run, &adapter.name),
            followed(&alone, &adapter.name),
            "{}",
            adapter.name
        );
        assert_eq!(adapter.first_loss, alone.report.adapters[0].first_loss);
        assert_eq!(adapter.best, alone.report.adapters[0].best);
    }
}

#[expect(clippy::print_stdout, reason = "what the test has seen")]
fn changes_change_nothing(stages: usize) {
    let adapters: Vec<Value> = (0..NAMES.len()).map(adapter).collect();
    let run = train_with(RandomRoom::splitting(stages), |output_dir| {
        config(&adapters, stages, output_dir)
    });
    let seen = seen(&run);
    println!("{seen:?}");
    assert_nothing_changed(&run);
    for parts in 1..=4 {
        let ended = seen.ended.get(&parts);
        assert!(ended.is_some_and(|&ended| ended > 0), "{parts}: {seen:?}");
    }
    assert!(seen.restarted > 3 && seen.parked > 3, "{seen:?}");
    assert!(seen.interludes > 3, "{seen:?}");
    // With one group, whoever comes or goes is of that group.
    assert_eq!(seen.went_on > 0, stages > 1, "{seen:?}");
}

#[test]
fn parts_that_change_and_are_disturbed_change_nothing_on_one_stage() {
    changes_change_nothing(1);
}

#[test]
fn parts_that_change_and_are_disturbed_change_nothing_on_two_stages() {
    changes_change_nothing(2);
}

/// The loss of a part is a part of the loss, its tokens are counted where they are trained, and a
/// neighbour takes as many steps as the long one has parts.
fn a_short_neighbour_does_not_wait(stages: usize, max_steps: Option<usize>) {
    let adapters = [adapter(0), adapter(2)];
    let groups = vec![vec![4, 1]];
    let run = train_with(FixedGroups::new(groups, max_steps), |output_dir| {
        config(&adapters, stages, output_dir)
    });
    let mut neighbour = 0;
    let mut tokens = BTreeMap::<&str, usize>::new();
    let mut iterations = 0;
    for event in &run.events {
        match event {
            Event::Step {
                adapter,
                step,
                iteration,
                tokens: of_step,
                ..
            } => {
                *tokens.entry("steps").or_default() += of_step;
                if adapter == "short" {
                    neighbour = *step;
                    assert_eq!(*iteration as usize, *step);
                } else if *step <= STEPS[2] / 4 {
                    // The only short steps of an epoch are those of its last rows.
                    assert!(neighbour <= 4 * step, "{neighbour} of {step}");
                    assert!(neighbour + 4 >= 4 * step, "{neighbour} of {step}");
                }
            }
            Event::Iteration {
                tokens: of_iteration,
                ..
            } => {
                iterations += 1;
                *tokens.entry("iterations").or_default() += of_iteration;
            }
            _ => {}
        }
    }
    // A step that is begun again, as its neighbour is done, is trained again in part.
    let again = tokens["iterations"] - tokens["steps"];
    assert!(again < 8 * 32, "{tokens:?}");
    assert!(iterations >= STEPS[0] * 3, "{iterations}");
    for (name, index) in [("long", 0), ("short", 2)] {
        let alone = alone(index);
        assert_same_training(name, &run, &alone);
        assert_eq!(followed(&run, name), followed(&alone, name), "{name}");
    }
}

#[test]
fn a_short_neighbour_does_not_wait_on_one_stage() {
    a_short_neighbour_does_not_wait(1, None);
}

/// With a decision after every iteration, most of them in the middle of a step.
#[test]
fn a_short_neighbour_does_not_wait_on_two_stages() {
    a_short_neighbour_does_not_wait(2, Some(1));
}

/// A run that is stopped in the middle of a step saves what it was before it.
#[test]
fn a_run_that_is_stopped_in_the_middle_of_a_step_goes_on_before_it() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let adapters = [adapter(0)];
    let load = || {
        let config = config(&adapters, 1, &directory.path().join("run"));
        let path = directory.path().join("config.json");
        fs::write(&path, config.to_string()).expect("the configuration is written");
        let config = RunConfig::load(&path, &[]);
        config.expect("a valid configuration").config
    };
    let (mut events, mut cut) = (Vec::new(), BTreeSet::new());
    let mut report = None;
    for times in 1..30 {
        let run = if times == 1 {
            Run::prepare(load(), &[device()])
        } else {
            let saved = SavedRun::claim(&directory.path().join("run")).expect("a checkpoint");
            Run::resume(load(), &[device()], saved)
        };
        let (stop, mut iterations) = (AtomicBool::new(false), 0);
        let scheduler = scheduler(FixedGroups::new(vec![vec![4]], Some(1)));
        let mut last = [1, 1];
        let mut of_run = Vec::new();
        let ended = run
            .expect("the run is prepared")
            .train_with(scheduler, &stop, &mut |event| {
                if let Event::Iteration { parts, .. } = event {
                    iterations += 1;
                    last = parts.get("long").copied().unwrap_or([1, 1]);
                    if times < 20 && iterations == 5 + times % 4 {
                        stop.store(true, Ordering::Relaxed);
                    }
                }
                of_run.push(event.clone());
            })
            .expect("the run ends");
        events.extend(of_run);
        if !ended.interrupted {
            report = Some(ended);
            break;
        }
        cut.insert(last);
    }
    // After the first, second, third and last part.
    assert!(cut.len() >= 4, "{cut:?}");
    let run = TrainedRun {
        directory,
        report: report.expect("a run that came to its end"),
        events,
    };
    assert_same_training("long", &run, &alone(0));
}

/// Prints what a short neighbour waits between its steps.
#[test]
#[ignore = "a timing"]
fn seconds_between_the_steps_of_a_short_neighbour() {
    let long = json!({
        "name": "long", "dataset": "data", "lora": {"r": 16, "target_modules": "all-linear"},
        "train": {"batch_size": 8, "gradient_accumulation_steps": 4, "max_seq_len": 128,
                  "max_steps": 40},
        "save": {"steps": 1000},
    });
    let short = json!({
        "name": "short", "dataset": "data", "lora": {"r": 16, "target_modules": "all-linear"},
        "train": {"batch_size": 2, "max_seq_len": 128, "max_steps": 160},
        "save": {"steps": 1000},
    });
    for (stages, parts) in [(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (2, 4)] {
        let adapters = [long.clone(), short.clone()];
        let room = FixedGroups::new(vec![vec![parts, 1]], None);
        let run = train_with(room, |output_dir| {
            let mut config = config(&adapters, stages, output_dir);
            config["pipeline"]["microbatches"] = json!(1);
            config["datasets"]["data"]["validation"] = json!(null);
            config
        });
        let iterations = run.events.iter().filter_map(|event| match event {
            Event::Iteration {
                seconds, groups, ..
            } if groups.concat().len() == 2 => Some(*seconds),
            _ => None,
        });
        let mut seconds: Vec<f64> = iterations.skip(5).collect();
        let mean = seconds.iter().sum::<f64>() / seconds.len() as f64;
        seconds.sort_by(f64::total_cmp);
        println!(
            "{stages} stages, {parts} parts: median {:.1} ms, mean {:.1} ms between its steps, over {} of them",
            1e3 * seconds[seconds.len() / 2],
            1e3 * mean,
            seconds.len(),
        );
    }
}

/// It finds by itself that the long one holds the short one up, and that its micro-batches do not.
#[test]
fn the_scheduler_of_runs_spreads_long_steps() {
    let adapters = [adapter(0), adapter(2)];
    let run = |max_slowdown: f64| {
        train_with(KnownTimes::new(max_slowdown), |output_dir| {
            config(&adapters, 1, output_dir)
        })
    };
    let bounded = run(1.2);
    let ended = seen(&bounded).ended;
    assert!(ended.get(&8).is_some_and(|&steps| steps > 5), "{ended:?}");
    for (name, index) in [("long", 0), ("short", 2)] {
        assert_same_training(name, &bounded, &alone(index));
    }
    let parts: Vec<usize> = seen(&run(f64::INFINITY)).ended.into_keys().collect();
    assert_eq!(parts, [1]);
}

#[test]
fn a_run_of_its_own_spreads_no_step_of_a_task_that_is_alone() {
    let run = train(|output_dir| config(&[adapter(0)], 1, output_dir));
    assert_eq!(seen(&run).ended, BTreeMap::from([(1, STEPS[0])]));
    assert_same_training("long", &run, &alone(0));
}

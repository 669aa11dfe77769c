//! Checkpoints of a run as its own process meets them: what they hold, and disks that fail.

use std::{
    fs,
    path::Path,
    process::Command,
    slice,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::Duration,
};

use loraloom_config::RunConfig;
use loraloom_model::to_host;
use loraloom_tests::{Fixture, TrainedRun, assert_same_training, device, losses, train};
use loraloom_trainer::{Event, Outcome, Run, RunReport, SavedRun, Signals, Standby, TrainerError};
use serde_json::{Value, json};

/// An adapter that is saved after every second step.
fn adapter(name: &str, steps: usize) -> Value {
    json!({
        "name": name, "dataset": "data", "seed": steps,
        "lora": {"r": 4, "lora_alpha": 8, "lora_dropout": 0.1, "target_modules": "all-linear"},
        "train": {"batch_size": 2, "gradient_accumulation_steps": 2, "max_seq_len": 48,
                  "max_steps": steps, "learning_rate": 2e-3},
        "save": {"steps": 2},
    })
}

fn config(adapters: &[Value], directory: &Path) -> RunConfig {
    let fixture = Fixture::open("llama-gqa");
    let config = fixture.config(adapters, &directory.join("run"));
    let path = directory.join("config.json");
    fs::write(&path, config.to_string()).expect("the configuration is written");
    let loaded = RunConfig::load(&path, &[]);
    loaded.expect("a valid configuration").config
}

/// Trains, with a look at every event; `begin` is a run that is ready.
fn run(begin: Run, mut look: impl FnMut(&Event)) -> (Result<RunReport, TrainerError>, Vec<Event>) {
    let mut events = Vec::new();
    let report = begin.train(&AtomicBool::new(false), &mut |event| {
        look(event);
        events.push(event.clone());
    });
    (report, events)
}

/// What could not be saved.
fn problems(events: &[Event]) -> Vec<&str> {
    events.iter().filter_map(problem).collect()
}

fn problem(event: &Event) -> Option<&str> {
    match event {
        Event::Warning { message } if message.starts_with("not saved: ") => Some(message),
        _ => None,
    }
}

/// Makes a directory one that nothing can be written to, whoever asks; and back.
fn block(directory: &Path) {
    let aside = directory.with_extension("aside");
    fs::rename(directory, aside).expect("renamed");
    fs::write(directory, "").expect("a file in its place");
}

fn unblock(directory: &Path) {
    fs::remove_file(directory).expect("removed");
    fs::rename(directory.with_extension("aside"), directory).expect("renamed");
}

/// The record of the first task in a checkpoint.
fn first_task(checkpoint: &Path) -> Value {
    let record = fs::read(checkpoint.join("run.json")).expect("a record");
    let record: Value = serde_json::from_slice(&record).expect("JSON");
    record["tasks"][0].clone()
}

fn whole(adapters: &[Value]) -> TrainedRun {
    let fixture = Fixture::open("llama-gqa");
    train(|output_dir| fixture.config(adapters, output_dir))
}

/// Two failures in a row are warnings, whenever there are, and what was trained is what a run with a good
/// disk trains.
#[test]
fn a_run_goes_on_when_saves_fail_for_a_while() {
    let adapters = [adapter("a", 20)];
    let directory = tempfile::tempdir().expect("a temporary directory");
    let begin = Run::prepare(config(&adapters, directory.path()), &[device()]);
    let run_directory = directory.path().join("run");
    let checkpoints = run_directory.join("checkpoints");
    let mut failures = 0;
    let (report, events) = run(begin.expect("the run is prepared"), |event| match event {
        Event::RunCheckpoint { steps, .. } if steps.contains_key("a") && failures < 4 => {
            block(&checkpoints);
        }
        event if problem(event).is_some() => {
            failures += 1;
            if failures % 2 == 0 {
                unblock(&checkpoints);
            }
        }
        _ => {}
    });
    let report = report.expect("the run ends");
    assert_eq!(report.adapters[0].outcome, Outcome::Done);
    let problems = problems(&events);
    assert_eq!(problems.len(), 4, "{problems:?}");
    assert!(
        problems[0].starts_with("not saved: cannot write"),
        "{problems:?}"
    );
    let found = TrainedRun {
        directory,
        report,
        events: events.clone(),
    };
    assert_same_training("a", &found, &whole(&adapters));
    // What is there in the end is whole.
    let saved = SavedRun::newest(&run_directory).expect("a checkpoint");
    assert_eq!(saved.iteration(), 20);
}

/// With three in a row it is over, and what was saved before is there.
#[test]
fn a_run_ends_when_saves_keep_failing() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let adapters = [adapter("a", 20)];
    let begin = Run::prepare(config(&adapters, directory.path()), &[device()]);
    let run_directory = directory.path().join("run");
    let checkpoints = run_directory.join("checkpoints");
    let (report, events) = run(begin.expect("the run is prepared"), |event| {
        if matches!(event, Event::RunCheckpoint { iteration: 4, .. }) {
            block(&checkpoints);
        }
    });
    let error = report.expect_err("three saves have failed");
    assert!(
        matches!(error, TrainerError::SavesFailed { times: 3, .. }),
        "{error}"
    );
    assert_eq!(problems(&events).len(), 3);
    let steps = events
        .iter()
        .filter(|event| matches!(event, Event::Step { .. }));
    // What became of a save is known at the next one.
    assert_eq!(steps.count(), 12);
    unblock(&checkpoints);

    let config = config(&adapters, directory.path());
    let saved = SavedRun::claim(&run_directory).expect("a checkpoint");
    assert_eq!(saved.iteration(), 4);
    let resumed = Run::resume(config, &[device()], saved).expect("the run goes on");
    let (report, events) = run(resumed, |_| {});
    let report = report.expect("the run ends");
    let found = adapter_of(directory, report, events);
    assert!(found.adapter("a") == whole(&adapters).adapter("a"));
}

fn adapter_of(directory: tempfile::TempDir, report: RunReport, events: Vec<Event>) -> TrainedRun {
    TrainedRun {
        directory,
        report,
        events,
    }
}

/// An adapter whose last save fails is not done: its last steps are taken again.
#[test]
fn an_adapter_that_cannot_be_saved_in_the_end_goes_on_later() {
    let adapters = [adapter("a", 6), adapter("b", 10)];
    let directory = tempfile::tempdir().expect("a temporary directory");
    let begin = Run::prepare(config(&adapters, directory.path()), &[device()]);
    let run_directory = directory.path().join("run");
    let place = run_directory.join("adapters/a");
    let (report, _) = run(begin.expect("the run is prepared"), |event| match event {
        Event::Checkpoint {
            step: 4, adapter, ..
        } if adapter == "a" => block(&place),
        _ => {}
    });
    let report = report.expect("the run ends");
    let Outcome::Failed { reason, .. } = &report.adapters[0].outcome else {
        panic!("{:?}", report.adapters[0].outcome)
    };
    assert_eq!(reason, "its weights could not be saved");
    assert_eq!(report.adapters[1].outcome, Outcome::Done);
    unblock(&place);

    let config = config(&adapters, directory.path());
    let saved = SavedRun::claim(&run_directory).expect("a checkpoint");
    assert!(saved.report(&config).is_none());
    let resumed = Run::resume(config, &[device()], saved).expect("the run goes on");
    let (report, events) = run(resumed, |_| {});
    let found = adapter_of(directory, report.expect("the run ends"), events);
    let whole = whole(&adapters);
    for name in ["a", "b"] {
        assert!(found.adapter(name) == whole.adapter(name), "{name}");
    }
    for (found, expected) in found.report.adapters.iter().zip(&whole.report.adapters) {
        let told = |report: &loraloom_trainer::AdapterReport| {
            (
                report.outcome.clone(),
                report.steps,
                report.first_loss,
                report.last_loss,
                report.samples.clone(),
            )
        };
        assert_eq!(told(found), told(expected));
    }
}

/// Checkpoints say of an adapter that could not be written what is there instead, also when its neighbour
/// is saved.
#[test]
fn a_checkpoint_knows_which_adapters_were_written() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut rarely = adapter("a", 14);
    rarely["save"]["steps"] = json!(4);
    let config = config(&[rarely, adapter("b", 14)], directory.path());
    let begin = Run::prepare(config, &[device()]).expect("the run is prepared");
    let run_directory = directory.path().join("run");
    let place = run_directory.join("adapters/a");
    let mut recorded = Vec::new();
    let (report, _) = run(begin, |event| match event {
        Event::Checkpoint {
            step: 4, adapter, ..
        } if adapter == "a" => block(&place),
        Event::RunCheckpoint { path, steps, .. } if steps.contains_key("a") => {
            if steps["a"] == 10 {
                unblock(&place);
            }
            let task = first_task(&run_directory.join(path));
            recorded.push([task["step"].clone(), task["saved_steps"].clone()]);
        }
        _ => {}
    });
    report.expect("the run ends");
    let expected = json!([[2, null], [4, 4], [6, 4], [8, 4], [10, 4], [12, 12]]);
    assert_eq!(json!(recorded), expected);
}

/// Checkpoints say of a `best` that could not be written which one is there.
#[test]
fn the_best_is_what_was_written() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut best = adapter("a", 14);
    best["eval"] = json!({"steps": 4});
    best["train"]["learning_rate"] = json!(1e-3);
    let mut config = config(&[best], directory.path());
    for dataset in config.datasets.values_mut() {
        dataset.validation = loraloom_config::Validation::Fraction(0.25);
    }
    let begin = Run::prepare(config, &[device()]).expect("the run is prepared");
    let run_directory = directory.path().join("run");
    let place = run_directory.join("adapters/a/best");
    let mut recorded = Vec::new();
    let (report, events) = run(begin, |event| match event {
        Event::Checkpoint { step: 4, path, .. } if path.ends_with("best") => block(&place),
        Event::RunCheckpoint { path, steps, .. } if steps.contains_key("a") => {
            if steps["a"] == 10 {
                unblock(&place);
            }
            let task = first_task(&run_directory.join(path));
            recorded.push([task["step"].clone(), task["best"]["step"].clone()]);
        }
        _ => {}
    });
    report.expect("the run ends");
    let better = events
        .iter()
        .filter(|event| matches!(event, Event::Eval { best: true, .. }));
    assert!(better.count() >= 3, "validation loss falls here");
    let expected = json!([[2, null], [4, 4], [6, 4], [8, 4], [10, 4], [12, 12]]);
    assert_eq!(json!(recorded), expected);
}

/// An adapter that began from a directory keeps that directory's shape when its run is resumed.
#[test]
fn a_resumed_adapter_keeps_the_shape_that_it_began_with() {
    let fixture = Fixture::open("llama-gqa");
    let mut adapter = adapter("a", 8);
    adapter["init_from"] = json!(fixture.directory.join("jobs/all-r4-rslora/init"));
    let directory = tempfile::tempdir().expect("a temporary directory");
    let config = || config(&[adapter.clone()], directory.path());
    let begin = Run::prepare(config(), &[device()]).expect("the run is prepared");
    let stop = AtomicBool::new(false);
    let stopped = begin.train(&stop, &mut |event| {
        stop.store(
            matches!(event, Event::Step { step: 4, .. }) || stop.load(Relaxed),
            Relaxed,
        );
    });
    stopped.expect("the run is interrupted");
    let run_directory = directory.path().join("run");
    let saved = SavedRun::claim(&run_directory).expect("a checkpoint");
    let resumed = Run::resume(config(), &[device()], saved).expect("the run goes on");
    let (report, events) = run(resumed, |_| {});
    let found = adapter_of(
        tempfile::tempdir().expect("unused"),
        report.expect("the run ends"),
        events,
    );
    assert_eq!(found.report.adapters[0].outcome, Outcome::Done);
    let last = loraloom_model::PeftAdapter::load(&run_directory.join("adapters/a/last"));
    assert!(last.expect("an adapter").config.use_rslora);
    let whole = whole(slice::from_ref(&adapter));
    let weights = |path: &Path| loraloom_model::PeftAdapter::load(path).expect("an adapter");
    assert!(weights(&run_directory.join("adapters/a/last")) == whole.adapter("a"));
}

/// A quantised base is the same one when a run goes on, and no other one is taken.
#[test]
fn a_run_over_a_quantised_base_goes_on_over_it() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let config = |quantization: &Value| {
        let mut config = config(&[adapter("a", 8)], directory.path());
        config.quantization = serde_json::from_value(quantization.clone()).expect("a setting");
        config
    };
    let nf4 = json!({"type": "nf4"});
    let begin = Run::prepare(config(&nf4), &[device()]).expect("the run is prepared");
    let stop = AtomicBool::new(false);
    let stopped = begin.train(&stop, &mut |event| {
        if matches!(event, Event::Step { step: 4, .. }) {
            stop.store(true, Relaxed);
        }
    });
    stopped.expect("the run is interrupted");
    let run_directory = directory.path().join("run");
    let saved = || SavedRun::claim(&run_directory).expect("a checkpoint");
    for other in [json!(null), json!({"type": "nf4", "double_quant": false})] {
        let refused = Run::resume(config(&other), &[device()], saved());
        let error = refused.expect_err("another base").to_string();
        assert!(error.contains("quantization"), "{error}");
    }
    let resumed = Run::resume(config(&nf4), &[device()], saved()).expect("the run goes on");
    let (report, events) = run(resumed, |_| {});
    assert_eq!(
        report.expect("the run ends").adapters[0].outcome,
        Outcome::Done
    );
    assert!(losses(&events, "a").len() <= 4);
    let whole = train(|output_dir| {
        let fixture = Fixture::open("llama-gqa");
        let mut config = fixture.config(&[adapter("a", 8)], output_dir);
        config["quantization"] = nf4.clone();
        config
    });
    let last = loraloom_model::PeftAdapter::load(&run_directory.join("adapters/a/last"));
    assert!(last.expect("an adapter") == whole.adapter("a"));
}

/// The iteration after a save does not wait for it.
#[test]
fn training_goes_on_while_a_checkpoint_is_written() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let config = config(&[adapter("a", 8)], directory.path());
    let begin = Run::prepare(config, &[device()]).expect("the run is prepared");
    let (report, events) = run(begin, |_| {});
    report.expect("the run ends");
    let mut trained = 0;
    let mut written = Vec::new();
    for event in &events {
        match event {
            Event::Iteration { iteration, .. } => trained = *iteration,
            Event::RunCheckpoint {
                iteration, steps, ..
            } => written.push((*iteration, trained, steps.get("a").copied())),
            _ => {}
        }
    }
    let expected = [
        (0, 0, None),
        (2, 3, Some(2)),
        (4, 5, Some(4)),
        (6, 7, Some(6)),
        (8, 8, None),
    ];
    let late = written.iter().zip(&expected);
    let late = late.filter(|((_, trained, _), (_, least, _))| trained >= least);
    assert_eq!(late.count(), expected.len(), "{written:?}");
    let told = |found: &[(u64, u64, Option<usize>)]| -> Vec<_> {
        found
            .iter()
            .map(|&(iteration, _, steps)| (iteration, steps))
            .collect()
    };
    assert_eq!(told(&written), told(&expected));
}

/// The state of one task, by its name, without a run.
#[test]
fn a_task_is_found_by_its_name() {
    let adapters = [adapter("a", 9), adapter("b", 5)];
    let directory = tempfile::tempdir().expect("a temporary directory");
    let begin = Run::prepare(config(&adapters, directory.path()), &[device()]);
    let stop = AtomicBool::new(false);
    begin
        .expect("the run is prepared")
        .train(&stop, &mut |event| {
            if matches!(event, Event::Step { step: 7, .. }) {
                stop.store(true, Relaxed);
            }
        })
        .expect("a stopped run is no error");
    let run_directory = directory.path().join("run");
    let saved = SavedRun::newest(&run_directory).expect("a checkpoint");
    assert_eq!(saved.adapters().collect::<Vec<_>>(), ["a", "b"]);
    assert!(saved.task("c").expect("no problem").is_none());
    let ended = saved.task("b").expect("no problem").expect("a task");
    assert_eq!((ended.step(), ended.adapter.is_none()), (5, true));
    let task = saved.task("a").expect("no problem").expect("a task");
    assert!(task.step() >= 7 && task.total_steps() == 9);
    assert!(task.initial.is_none(), "it has moved");

    let peft = loraloom_model::PeftAdapter::load(&run_directory.join("adapters/a/last"));
    let weights = &peft.expect("a saved adapter").modules["model.layers.0.self_attn.q_proj"];
    let layers = task.adapter.expect("an adapter");
    let state = layers[0][0].as_ref().expect("an adapted projection");
    let values = |tensor: &burn::tensor::Tensor<2>| to_host(tensor.clone()).expect("values");
    assert_eq!(values(&state.weights.a), weights.a);
    let moved = |tensor| values(tensor).iter().any(|&value| value != 0.0);
    assert!(moved(&state.first_moment.a) && moved(&state.second_moment.b));
}

/// Another thread saves a run that is inside a step: the newest copy of its tasks, unless a checkpoint is
/// newer. The run ends from there with the bits of one that nobody stopped. The thread that trains saves
/// nothing after that.
#[test]
fn a_stop_inside_a_step_saves_the_newest_copy() {
    // An evaluation ends the iterations without a pause, and what is 32 iterations old is copied again.
    for (evaluated, saved, newest) in [(55, 1000, 55), (40, 50, 50)] {
        let mut long = adapter("a", 80);
        long["save"]["steps"] = json!(saved);
        long["eval"] = json!({"steps": evaluated});
        let undisturbed = train(|output_dir| with_validation(&long, output_dir));
        let stopped = Stopped::inside_step_60(&long);
        let taken = stopped.standby.take_over().expect("it computes");
        taken.expect("the checkpoint is written");
        let run_directory = stopped.directory.path().join("run");
        let iteration = || {
            let saved = SavedRun::newest(&run_directory).expect("a checkpoint");
            saved.iteration()
        };
        assert_eq!(iteration(), newest as u64);
        drop(stopped.release);
        thread::sleep(Duration::from_secs(2));
        assert!(
            !stopped.training.is_finished(),
            "it waits for the process to end"
        );
        assert_eq!(iteration(), newest as u64);

        // The thread has the directory still.
        let resumed = tempfile::tempdir().expect("a temporary directory");
        let copied = Command::new("cp")
            .arg("-r")
            .args([run_directory.as_path(), resumed.path()])
            .status();
        assert!(copied.expect("`cp` is there").success());
        let saved = SavedRun::newest(&resumed.path().join("run")).expect("a checkpoint");
        let config = load(&long, resumed.path());
        let begin = Run::resume(config, &[device()], saved).expect("the run goes on");
        let (report, events) = run(begin, |_| {});
        let found = adapter_of(resumed, report.expect("the run ends"), events);
        let expected = losses(&undisturbed.events, "a");
        assert_eq!(losses(&found.events, "a"), expected[newest..]);
        assert!(found.adapter("a") == undisturbed.adapter("a"));
        let best = |run: &TrainedRun| run.report.adapters[0].best;
        assert_eq!(best(&found), best(&undisturbed));
    }
}

#[test]
fn a_stop_inside_a_step_says_when_it_cannot_save() {
    let mut long = adapter("a", 80);
    long["save"]["steps"] = json!(1000);
    long["eval"] = json!({"steps": 55});
    let stopped = Stopped::inside_step_60(&long);
    block(&stopped.directory.path().join("run/checkpoints"));
    let taken = stopped.standby.take_over().expect("it computes");
    assert!(
        matches!(taken, Err(TrainerError::Write { .. })),
        "{taken:?}"
    );
}

/// The last save of a run that is stopped has no other after it that may succeed.
#[test]
fn a_stop_whose_last_save_fails_is_an_error() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let begin = Run::prepare(config(&[adapter("a", 80)], directory.path()), &[device()]);
    let checkpoints = directory.path().join("run/checkpoints");
    let stop = AtomicBool::new(false);
    let report = begin
        .expect("the run is prepared")
        .train(&stop, &mut |event| {
            if matches!(event, Event::Step { step: 5, .. }) {
                block(&checkpoints);
                stop.store(true, Relaxed);
            }
        });
    let error = report.expect_err("nothing could be saved");
    assert!(matches!(error, TrainerError::SavesFailed { .. }), "{error}");
}

fn with_validation(adapter: &Value, output_dir: &Path) -> Value {
    let fixture = Fixture::open("llama-gqa");
    let mut config = fixture.config(slice::from_ref(adapter), output_dir);
    config["datasets"]["data"]["validation"] = config["datasets"]["data"]["path"].clone();
    config
}

/// The configuration of a run in `directory`.
fn load(adapter: &Value, directory: &Path) -> RunConfig {
    let path = directory.join("config.json");
    let config = with_validation(adapter, &directory.join("run"));
    fs::write(&path, config.to_string()).expect("the configuration is written");
    let loaded = RunConfig::load(&path, &[]);
    loaded.expect("a valid configuration").config
}

/// A run that another thread trains, and that stands still in step 60.
struct Stopped {
    directory: tempfile::TempDir,
    standby: Arc<Standby>,
    training: thread::JoinHandle<Result<RunReport, TrainerError>>,
    /// Dropped, it goes on.
    release: mpsc::Sender<()>,
}

impl Stopped {
    fn inside_step_60(adapter: &Value) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let begin = Run::prepare(load(adapter, directory.path()), &[device()]);
        let begin = begin.expect("the run is prepared");
        let standby = Arc::new(Standby::default());
        let ((reach, reached), (release, released)) = (mpsc::channel(), mpsc::channel::<()>());
        let of_training = Arc::clone(&standby);
        let training = thread::spawn(move || {
            let never = AtomicBool::new(false);
            let signals = Signals {
                standby: Some(&of_training),
                ..Signals::from(&never)
            };
            begin.train(signals, &mut |event| {
                if matches!(event, Event::Step { step: 60, .. }) {
                    reach.send(()).expect("the test waits");
                    let _ = released.recv();
                }
            })
        });
        reached.recv().expect("step 60");
        Self {
            directory,
            standby,
            training,
            release,
        }
    }
}

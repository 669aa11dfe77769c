//! Commands of a queue to a run.

use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::sleep,
    time::Duration,
};

use burn::tensor::Device;
use loraloom_config::{LoadOptions, RunConfig};
use loraloom_inference::Neighbour;
use loraloom_scheduler::TaskId;
use loraloom_tests::Fixture;
use loraloom_trainer::{
    DeviceRoom, Event, LiveAsks, NewTask, Outcome, Run, Signals, SourceError, TaskCommand,
    TaskSource, inspect,
};
use serde_json::json;

use crate::service::accounts::order_of_answers;

const ID: TaskId = TaskId(7);

/// Events and reasons that a run has reported about its task.
#[derive(Default)]
struct Told {
    steps: usize,
    /// Why it trains or waits.
    reason: String,
}

/// Orders that follow from what was told; `None` ends the run.
struct Script<'a, F> {
    told: Told,
    next: F,
    news: &'a AtomicBool,
}

impl<F: FnMut(&Told) -> Option<Vec<TaskCommand>>> TaskSource for Script<'_, F> {
    fn event(&mut self, event: &Event) {
        if matches!(event, Event::Step { .. }) {
            self.told.steps += 1;
            self.news.store(true, Ordering::Relaxed);
        }
    }

    fn rooms(&mut self, _rooms: &[DeviceRoom]) -> Result<(), SourceError> {
        Ok(())
    }

    fn commands(&mut self, _idle: bool) -> Result<Option<Vec<TaskCommand>>, SourceError> {
        self.news.store(false, Ordering::Relaxed);
        // Rows are read beside the run.
        sleep(Duration::from_millis(5));
        Ok((self.next)(&self.told))
    }

    fn decided(&mut self, reasons: &[(TaskId, String)]) -> Result<(), SourceError> {
        self.told.reason = reasons.iter().map(|(_, reason)| reason.as_str()).collect();
        Ok(())
    }
}

/// A run without adapters in this directory, and a task for it with a dataset of its own.
fn run_and_task(directory: &Path) -> (Run, NewTask) {
    let adapter = json!({
        "name": "a", "dataset": "data", "lora": {"r": 2},
        "train": {"batch_size": 1, "max_seq_len": 32, "max_steps": 100_000},
    });
    let mut value = Fixture::open("llama-gqa").config(&[adapter], &directory.join("run"));
    let data = directory.join("data.jsonl");
    let rows = value["datasets"]["data"]["path"].as_str();
    fs::copy(rows.expect("a path"), &data).expect("the rows are copied");
    value["datasets"]["data"]["path"] = json!(data);
    let path = directory.join("config.json");
    let config = RunConfig::load_yaml(&value.to_string(), &path, &LoadOptions::default());
    let mut config = config.expect("a valid configuration").config;
    let (inspected, _) = inspect(&config, None).expect("its data is read");
    let task = NewTask {
        id: ID,
        adapter: config.adapters.remove(0),
        dataset: config.datasets["data"].clone(),
        seed: config.seed,
        digest: inspected[0].digest.clone(),
        sweep: None,
        paused: false,
    };
    let run = Run::prepare(config, &[Device::flex()]);
    (run.expect("the run is prepared"), task)
}

/// The only task, interrupted by the script's end.
fn follow(run: Run, next: impl FnMut(&Told) -> Option<Vec<TaskCommand>>) {
    follow_beside(run, None, next);
}

/// The same beside answers.
fn follow_beside(
    run: Run,
    live: Option<&LiveAsks>,
    next: impl FnMut(&Told) -> Option<Vec<TaskCommand>>,
) {
    let (never, news) = (AtomicBool::new(false), AtomicBool::new(false));
    let signals = Signals {
        news: &news,
        ..Signals::from(&never)
    };
    let mut script = Script {
        told: Told::default(),
        next,
        news: &news,
    };
    let report = run.serve(&mut script, signals, live).expect("the run ends");
    assert_eq!(report.adapters.len(), 1);
    assert_eq!(report.adapters[0].outcome, Outcome::Interrupted);
}

/// A queue that could not note that a command was carried out gives it again.
#[test]
fn a_task_may_be_paused_twice() {
    let directory = tempfile::tempdir().unwrap();
    let (run, task) = run_and_task(directory.path());
    let mut task = Some(TaskCommand::Train(Box::new(task)));
    let mut pauses = vec![TaskCommand::Pause(ID); 2];
    follow(run, |told| match task.take() {
        Some(train) => Some(vec![train]),
        None if told.steps == 0 => Some(Vec::new()),
        None => pauses.pop().map(|pause| vec![pause]),
    });
}

#[test]
fn a_task_that_is_paused_while_its_data_is_away_waits_until_it_is_resumed() {
    let directory = tempfile::tempdir().unwrap();
    let (run, task) = run_and_task(directory.path());
    let [data, away] = ["data.jsonl", "away.jsonl"].map(|name| directory.path().join(name));
    fs::rename(&data, &away).unwrap();
    let mut task = Some(TaskCommand::Train(Box::new(task)));
    let (mut pauses, mut resumes) = (Some(TaskCommand::Pause(ID)), Some(TaskCommand::Resume(ID)));
    follow(run, |told| {
        let reason = told.reason.as_str();
        let next = if task.is_some() {
            task.take()
        } else if reason.contains("when that is readable again") && pauses.is_some() {
            fs::rename(&away, &data).unwrap();
            pauses.take()
        } else if reason.contains("owner") {
            resumes.take()
        } else {
            assert!(resumes.is_none() || told.steps == 0, "{reason}");
            None
        };
        (told.steps == 0).then(|| next.into_iter().collect())
    });
}

/// Requests of a tenant come later if its adapters train.
#[test]
fn trained_tokens_are_charged_to_the_tenant() {
    let directory = tempfile::tempdir().expect("a directory");
    let (run, mut task) = run_and_task(directory.path());
    "busy".clone_into(&mut task.adapter.tenant);
    let neighbour = Arc::new(Neighbour::new(1.0));
    let (_live, asks) = LiveAsks::channel(Arc::default(), Arc::clone(&neighbour));
    let mut task = Some(task);
    follow_beside(run, Some(&asks), |told| match task.take() {
        Some(task) => Some(vec![TaskCommand::Train(Box::new(task))]),
        None => (told.steps < 20).then(Vec::new),
    });
    assert_eq!(order_of_answers(&neighbour)[0], "quiet");
}

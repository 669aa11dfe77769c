//! Orders of a queue to a run.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread::sleep,
    time::Duration,
};

use burn::tensor::Device;
use loraloom_config::{LoadOptions, RunConfig};
use loraloom_scheduler::TaskId;
use loraloom_tests::Fixture;
use loraloom_trainer::{
    DeviceRoom, Event, NewTask, Order, Outcome, Run, Signals, SourceError, TaskSource, inspect,
};
use serde_json::json;

/// Submits a task, and once it trains gives the other orders, one at a time; then ends the run.
struct Orders<'a> {
    task: Option<NewTask>,
    trains: bool,
    others: Vec<Order>,
    news: &'a AtomicBool,
}

impl TaskSource for Orders<'_> {
    fn event(&mut self, event: &Event) {
        if matches!(event, Event::Step { .. }) {
            self.trains = true;
            self.news.store(true, Ordering::Relaxed);
        }
    }

    fn rooms(&mut self, _rooms: &[DeviceRoom]) -> Result<(), SourceError> {
        Ok(())
    }

    fn orders(&mut self, _idle: bool) -> Result<Option<Vec<Order>>, SourceError> {
        self.news.store(false, Ordering::Relaxed);
        if let Some(task) = self.task.take() {
            return Ok(Some(vec![Order::Train(Box::new(task))]));
        }
        if !self.trains {
            // Its rows are read beside the run.
            sleep(Duration::from_millis(5));
            return Ok(Some(Vec::new()));
        }
        Ok((!self.others.is_empty()).then(|| vec![self.others.remove(0)]))
    }

    fn decided(&mut self, _reasons: &[(TaskId, String)]) -> Result<(), SourceError> {
        Ok(())
    }
}

/// A queue that could not note that an order was carried out gives it again.
#[test]
fn a_task_may_be_paused_twice() {
    let directory = tempfile::tempdir().unwrap();
    let adapter = json!({
        "name": "a", "dataset": "data", "lora": {"r": 2},
        "train": {"batch_size": 1, "max_seq_len": 32, "max_steps": 100_000},
    });
    let value = Fixture::open("llama-gqa").config(&[adapter], &directory.path().join("run"));
    let path = directory.path().join("config.json");
    let config = RunConfig::load_yaml(&value.to_string(), &path, &LoadOptions::default());
    let config = config.unwrap().config;
    let (inspected, _) = inspect(&config).unwrap();
    let id = TaskId(7);
    let task = NewTask {
        id,
        adapter: config.adapters[0].clone(),
        dataset: config.datasets["data"].clone(),
        seed: config.seed,
        digest: inspected[0].digest.clone(),
        sweep: None,
        paused: false,
    };
    let mut served = config;
    served.adapters.clear();
    let run = Run::prepare(served, &[Device::flex()]).unwrap();
    let (never, news) = (AtomicBool::new(false), AtomicBool::new(false));
    let signals = Signals {
        news: &news,
        ..Signals::from(&never)
    };
    let mut orders = Orders {
        task: Some(task),
        trains: false,
        others: vec![Order::Pause(id), Order::Pause(id)],
        news: &news,
    };
    let report = run.serve(&mut orders, signals).unwrap();
    assert_eq!(report.adapters.len(), 1);
    assert_eq!(report.adapters[0].outcome, Outcome::Interrupted);
}

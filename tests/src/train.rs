use std::{fs, path::Path, sync::atomic::AtomicBool};

use loraloom_config::RunConfig;
use loraloom_model::PeftAdapter;
use loraloom_scheduler::{Room, Scheduler, SchedulerOptions};
use loraloom_trainer::{Event, Run, RunReport};
use serde_json::Value;
use tempfile::TempDir;

use crate::{FixedGroups, device};

/// A finished run, its directory and its events.
#[derive(Debug)]
pub struct TrainedRun {
    /// Holds the run directory `run` and the configuration.
    pub directory: TempDir,
    /// What the run came to.
    pub report: RunReport,
    /// Everything that happened.
    pub events: Vec<Event>,
}

impl TrainedRun {
    /// The adapter as it was last saved.
    pub fn adapter(&self, name: &str) -> PeftAdapter {
        let path = self
            .directory
            .path()
            .join("run/adapters")
            .join(name)
            .join("last");
        PeftAdapter::load(&path).expect("a saved adapter loads")
    }
}

/// A scheduler over a room.
pub fn scheduler<R: Room>(room: R) -> Scheduler<R> {
    Scheduler::new(room, SchedulerOptions::default()).expect("options that can be used")
}

/// Trains a configuration, given the output directory, on the device under test, which
/// is every stage's.
pub fn train(configuration: impl FnOnce(&Path) -> Value) -> TrainedRun {
    train_and_look(None::<FixedGroups>, configuration, &mut |_| ())
}

/// As [`train`], in another room than the run's own.
pub fn train_with<R: Room>(room: R, configuration: impl FnOnce(&Path) -> Value) -> TrainedRun {
    train_and_look(Some(room), configuration, &mut |_| ())
}

/// As [`train_with`], with a look at every event as it happens.
pub fn train_and_look<R: Room>(
    room: Option<R>,
    configuration: impl FnOnce(&Path) -> Value,
    look: &mut dyn FnMut(&Event),
) -> TrainedRun {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let config = configuration(&directory.path().join("run"));
    let path = directory.path().join("config.json");
    fs::write(&path, config.to_string()).expect("the configuration is written");
    let config = RunConfig::load(&path, &[])
        .expect("a valid configuration")
        .config;
    let devices = vec![device(); config.pipeline.stages.len()];
    let run = Run::prepare(config, &devices).expect("the run is prepared");
    let (stop, mut events) = (AtomicBool::new(false), Vec::new());
    let mut observer = |event: &Event| {
        look(event);
        events.push(event.clone());
    };
    let report = match room {
        Some(room) => run.train_with(scheduler(room), &stop, &mut observer),
        None => run.train(&stop, &mut observer),
    };
    let report = report.expect("the run ends");
    TrainedRun {
        directory,
        report,
        events,
    }
}

impl TrainedRun {
    /// Layers by partition and stage, if groups had theirs on different stages.
    pub fn partitions(&self) -> Option<&Vec<Vec<usize>>> {
        let begun = self.events.iter().find_map(|event| match event {
            Event::RunStart { partitions, .. } => Some(partitions),
            _ => None,
        });
        begun.expect("the run began").as_ref()
    }
}

/// Loss and gradient norm of every step of an adapter.
pub fn losses(events: &[Event], name: &str) -> Vec<[f64; 2]> {
    let steps = events.iter().filter_map(|event| match event {
        Event::Step {
            adapter,
            loss,
            grad_norm,
            ..
        } if adapter == name => Some([*loss, *grad_norm]),
        _ => None,
    });
    steps.collect()
}

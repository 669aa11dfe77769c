//! Stages that fail while tasks move.

use std::{
    fs,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, atomic::AtomicBool},
    time::Duration,
};

use batchlora::{Segments, SlotUpdate};
use burn::tensor::{Device, FloatDType, Tensor};
use loraloom_config::RunConfig;
use loraloom_model::{LayerAdapter, LlamaConfig};
use loraloom_pipeline::{
    Forwarded, MemoryGauge, Microbatch, MicrobatchId, Pipeline, PipelineError, PipelineStage,
    Stage, StageCache, StageLayers, TrainStage,
};
use loraloom_scheduler::{Member, Refusal, Room, Scheduler, SchedulerOptions, Task, TaskId};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::Run;
use crate::{
    Event, Outcome, SavedRun, TrainerError,
    run::{
        Signals,
        session::{Session, SessionOptions},
    },
    tasks::RunShape,
};

/// Errors for the next adapter that enters a stage, and for the next pass.
#[derive(Debug, Default)]
struct Faults {
    push: Option<PipelineError>,
    forward: Option<PipelineError>,
}

/// A stage that returns these errors.
#[derive(Debug)]
struct Faulty {
    stage: Stage,
    faults: Arc<Mutex<Faults>>,
}

impl Faulty {
    fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().expect("no thread panicked")
    }
}

type Result<T> = std::result::Result<T, PipelineError>;

impl TrainStage for Faulty {
    fn device(&self) -> &Device {
        self.stage.device()
    }

    fn computes_in_call(&self) -> bool {
        self.stage.computes_in_call()
    }

    fn forward(
        &mut self,
        at: MicrobatchId,
        microbatch: &Microbatch,
        hidden: Option<Tensor<2>>,
    ) -> Result<Forwarded> {
        let fault = self.faults().forward.take();
        fault.map_or_else(|| self.stage.forward(at, microbatch, hidden), Err)
    }

    fn backward(
        &mut self,
        at: MicrobatchId,
        gradient: Option<Tensor<2>>,
    ) -> Result<Option<Tensor<2>>> {
        self.stage.backward(at, gradient)
    }

    fn add_squares(&mut self, group: usize, above: Option<Tensor<2>>) -> Result<Tensor<2>> {
        self.stage.add_squares(group, above)
    }

    fn update(
        &mut self,
        group: usize,
        updates: &[Option<SlotUpdate>],
        squares: Option<Tensor<2>>,
    ) -> Result<Tensor<1>> {
        self.stage.update(group, updates, squares)
    }
}

impl PipelineStage for Faulty {
    fn layers(&self) -> &StageLayers {
        self.stage.layers()
    }

    fn config(&self) -> &LlamaConfig {
        self.stage.config()
    }

    fn name(&self) -> String {
        self.stage.name()
    }

    fn weight_bytes(&self) -> u64 {
        self.stage.weight_bytes()
    }

    fn products(&self) -> String {
        self.stage.products()
    }

    fn gauge(&self) -> MemoryGauge {
        self.stage.gauge()
    }

    fn abandon(&mut self) -> bool {
        self.stage.abandon()
    }

    fn reserve_groups(&mut self, count: usize) -> Result<()> {
        self.stage.reserve_groups(count)
    }

    fn swap_groups(&mut self, first: usize, second: usize) -> Result<()> {
        self.stage.swap_groups(first, second)
    }

    fn push(&mut self, group: usize, adapter: Vec<LayerAdapter>) -> Result<usize> {
        let fault = self.faults().push.take();
        fault.map_or_else(|| self.stage.push(group, adapter), Err)
    }

    fn remove(&mut self, group: usize, slot: usize) -> Result<Vec<LayerAdapter>> {
        self.stage.remove(group, slot)
    }

    fn extract(&self, group: usize, slot: usize) -> Result<Vec<LayerAdapter>> {
        self.stage.extract(group, slot)
    }

    fn cache(&self, blocks: usize) -> StageCache {
        self.stage.cache(blocks)
    }

    fn infer(
        &self,
        group: usize,
        microbatch: &Microbatch,
        hidden: Option<Tensor<2>>,
        cache: Option<&mut StageCache>,
    ) -> Result<Tensor<2>> {
        self.stage.infer(group, microbatch, hidden, cache)
    }

    fn target_scores(
        &self,
        group: usize,
        microbatch: &Microbatch,
        hidden: Tensor<2>,
    ) -> Result<Tensor<2>> {
        self.stage.target_scores(group, microbatch, hidden)
    }

    fn logits(&self, group: usize, segments: &Segments, hidden: Tensor<2>) -> Result<Tensor<2>> {
        self.stage.logits(group, segments, hidden)
    }
}

impl From<Faulty> for Box<dyn PipelineStage> {
    fn from(stage: Faulty) -> Self {
        Box::new(stage)
    }
}

fn adapter(name: &str, batch_size: usize, max_steps: usize) -> Value {
    json!({
        "name": name, "dataset": "data",
        "lora": {"r": 2, "lora_alpha": 8},
        "train": {"batch_size": batch_size, "max_seq_len": 32, "max_steps": max_steps},
        "save": {"steps": 2},
    })
}

fn load(adapters: &[Value], directory: &Path) -> RunConfig {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/llama-gqa");
    let config = json!({
        "model": fixture, "output_dir": directory.join("run"), "device": "cpu", "dtype": "float32",
        "scheduler": {"max_adapters": 1},
        "datasets": {"data": {
            "path": fixture.join("data.jsonl"),
            "columns": {"prompt": "question", "completion": "answer"},
        }},
        "adapters": adapters,
    });
    let path = directory.join("config.json");
    fs::write(&path, config.to_string()).expect("the configuration is written");
    let loaded = RunConfig::load(&path, &[]);
    loaded.expect("a valid configuration").config
}

/// A run on such a stage.
fn prepare(adapters: &[Value]) -> (TempDir, Run, Arc<Mutex<Faults>>) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (config, device) = (load(adapters, directory.path()), Device::flex());
    let mut run = Run::prepare(config, std::slice::from_ref(&device)).expect("the run is prepared");
    let model = run.pipeline.config();
    let layers = 0..model.num_hidden_layers;
    let faults = Arc::<Mutex<Faults>>::default();
    let faulty = Faulty {
        stage: Stage::random(model, layers, FloatDType::F32, &device).expect("a stage"),
        faults: Arc::clone(&faults),
    };
    run.pipeline = Pipeline::new(vec![faulty]).expect("a pipeline");
    (directory, run, faults)
}

/// Trains the first two tasks, parks the second for a step, and puts the third before the first.
#[derive(Debug, Default)]
struct ThirdGoesFirst {
    decided: usize,
    placed: Vec<TaskId>,
}

impl Room for ThirdGoesFirst {
    fn clear(&mut self) {
        self.placed.clear();
    }

    fn place(&mut self, task: &Task, _: Option<usize>) -> std::result::Result<usize, Refusal> {
        let waits = match task.id {
            TaskId(0) => false,
            TaskId(1) => self.decided > 0,
            _ => self.decided < 2,
        };
        if waits {
            let reason = "it is its turn to wait".to_owned();
            return Err(Refusal { reason });
        }
        self.placed.push(task.id);
        Ok(0)
    }

    fn remove(&mut self, task: TaskId) {
        self.placed.retain(|&placed| placed != task);
    }

    fn regroup(&mut self) -> Option<String> {
        self.decided += 1;
        None
    }

    fn groups(&self) -> Vec<Vec<Member>> {
        let member = |&task: &TaskId| Member { task, parts: 1 };
        let mut members: Vec<Member> = self.placed.iter().map(member).collect();
        if self.decided == 3 {
            members.reverse();
        }
        vec![members]
    }

    fn learns_after(&self, _admitted: bool, _waiting: bool) -> Option<usize> {
        (self.decided == 2).then_some(1)
    }
}

/// The first task is in no group when the stage is lost, but the last checkpoint has it.
#[test]
fn a_stage_that_is_lost_while_tasks_move_loses_no_task() {
    let adapters = ["a", "b", "c"].map(|name| adapter(name, 2, 6));
    let (directory, run, faults) = prepare(&adapters);
    let options = SchedulerOptions::default();
    let scheduler = Scheduler::new(ThirdGoesFirst::default(), options).expect("a scheduler");
    let ended = run.train_with(scheduler, &AtomicBool::new(false), &mut |event| {
        if matches!(event, Event::Step { step: 3, .. }) {
            faults.lock().expect("no thread panicked").push = Some(PipelineError::StageLost {
                stage: 0,
                address: "a worker".to_owned(),
                reason: "it is gone".to_owned(),
            });
        }
    });
    assert!(
        matches!(
            ended,
            Err(TrainerError::Pipeline(PipelineError::StageLost { .. }))
        ),
        "{ended:?}"
    );
    let saved = SavedRun::claim(&directory.path().join("run")).expect("a checkpoint");
    assert_eq!(saved.iteration(), 3);
    let config = load(&adapters, directory.path());
    let resumed = Run::resume(config, &[Device::flex()], saved).expect("it goes on");
    assert_eq!(resumed.steps(), [(2, 6), (2, 6), (0, 6)]);
}

/// A device runs out of memory when a task gets its place, and again in its first pass: the task goes on with
/// ever smaller micro-batches, and nothing of what has ended before is counted again.
#[test]
fn memory_that_runs_out_when_a_task_begins_halves_its_rows() {
    let (_directory, run, faults) = prepare(&[adapter("a", 2, 2), adapter("b", 8, 3)]);
    let (mut iterations, mut rows, mut tokens) = (Vec::new(), Vec::new(), 0);
    let report = run.train(&AtomicBool::new(false), &mut |event| {
        let mut faults = faults.lock().expect("no thread panicked");
        let fault = || {
            Some(PipelineError::OutOfMemory {
                layers: 0..1,
                used: 2,
                limit: 1,
            })
        };
        match event {
            Event::AdapterDone { adapter, .. } if adapter == "a" => faults.push = fault(),
            Event::OutOfMemory {
                microbatch_rows, ..
            } => {
                rows.push(*microbatch_rows);
                if rows.len() == 1 {
                    faults.forward = fault();
                }
            }
            Event::Iteration {
                iteration,
                tokens: more,
                ..
            } => {
                iterations.push(*iteration);
                tokens += *more as u64;
            }
            _ => {}
        }
    });
    let report = report.expect("the run ends");
    let done = |of: &crate::AdapterReport| of.outcome == Outcome::Done;
    assert!(report.adapters.iter().all(done), "{report:?}");
    assert_eq!(rows, [Some(4), Some(2)]);
    assert_eq!(iterations, [1, 2, 3, 4, 5]);
    assert_eq!(report.tokens, tokens);
}

/// When memory runs out, the steps since the copy are taken again.
#[test]
fn an_old_copy_ends_a_window() {
    let never = AtomicBool::new(false);
    let windows = |oldest: Option<Duration>| {
        let mut alone = adapter("a", 2, 6);
        alone["save"]["steps"] = json!(100);
        let (_directory, run, _faults) = prepare(&[alone]);
        let mut scheduler = run.scheduler().expect("a scheduler");
        let model = run.pipeline.config().clone();
        let shape = RunShape::new(&model, &run.context.config, run.context.element_bytes);
        for task in &run.prepared.tasks {
            let submitted = task.submit_to(&mut scheduler, shape, 0.0);
            submitted.expect("it fits");
        }
        let mut observer: &mut dyn FnMut(&Event) = &mut |_| {};
        let (pipeline, prepared) = (run.pipeline, run.prepared);
        let options = SessionOptions::default();
        let opened = Session::open(&run.context, options, pipeline, prepared, &mut observer);
        let mut session = opened.expect("a new run");
        if let Some(oldest) = oldest {
            session.rewind.oldest = oldest;
        }
        let mut windows = 0;
        while session
            .train_some(&mut scheduler, Signals::from(&never))
            .expect("it trains")
        {
            windows += 1;
        }
        assert_eq!(session.iterations.submitted, 6);
        windows
    };
    assert_eq!(windows(Some(Duration::ZERO)), 6);
    assert!(windows(None) < 6);
}

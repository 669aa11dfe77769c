//! A model, adapters, micro-batches, workers.

use std::{
    fs,
    ops::Range,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use batchlora::{AdapterState, DropoutDraw, LoraSpec, Segment, Segments, SlotUpdate};
use burn::tensor::{Device, FloatDType, TensorData};
use loraloom_model::{Checkpoint, LayerAdapter, LlamaConfig, Projection, Sequences, Targets};
use loraloom_pipeline::{
    Microbatch, Pipeline, PipelineError, Stage, StageLayers,
    executor::{GroupPlan, IterationOutcome, IterationPlan, IterationPlanner, Passes},
    remote::{Controller, RemoteStage, StageSpec, Worker, WorkerOptions},
    schedule::{PipelineShape, Schedule},
};

pub(crate) const TOKEN: &str = "a token for tests";

/// The bundled model.
pub(crate) fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/tiny-llama")
}

/// A directory that nothing else uses.
pub(crate) fn scratch(name: &str) -> PathBuf {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("loraloom-remote-{name}-{}-{count}", std::process::id());
    let directory = std::env::temp_dir().join(name);
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).unwrap();
    directory
}

pub(crate) fn options(name: &str, model: &Path) -> WorkerOptions {
    WorkerOptions {
        listen: "127.0.0.1:0".parse().unwrap(),
        identity: scratch(name).join("identity"),
        token: TOKEN.to_owned(),
        model: model.to_owned(),
        device: Device::flex(),
        stand_in: None,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        log: Box::new(|_| {}),
    }
}

pub(crate) struct Model {
    pub(crate) config: LlamaConfig,
    pub(crate) checkpoint: Checkpoint,
    pub(crate) dtype: FloatDType,
    pub(crate) gradient_checkpointing: bool,
}

impl Model {
    pub(crate) fn open(directory: &Path) -> Self {
        Self {
            config: LlamaConfig::from_directory(directory).unwrap(),
            checkpoint: Checkpoint::open(directory).unwrap(),
            dtype: FloatDType::F32,
            gradient_checkpointing: false,
        }
    }

    /// Has a worker hold some layers.
    pub(crate) fn connect(
        &self,
        controller: &Controller,
        worker: &Worker,
        stage: usize,
        layers: impl Into<StageLayers>,
    ) -> Result<RemoteStage, PipelineError> {
        let spec = StageSpec {
            layers: layers.into(),
            checkpoint: &self.checkpoint,
            dtype: self.dtype,
            gradient_checkpointing: self.gradient_checkpointing,
        };
        controller
            .reach(stage, worker.address(), &self.config)?
            .load(&spec)
    }

    pub(crate) fn local(&self, layers: impl Into<StageLayers>) -> Stage {
        let device = Device::flex();
        Stage::load(&self.checkpoint, &self.config, layers, self.dtype, &device)
            .unwrap()
            .with_gradient_checkpointing(self.gradient_checkpointing)
    }
}

pub(crate) fn controller() -> Controller {
    Controller::new(TOKEN, Duration::from_mins(1)).unwrap()
}

/// A pipeline of stages that are all on workers of their own, which must be kept.
pub(crate) fn remote(model: &Model, cut: &[Range<usize>]) -> (Pipeline, Vec<Worker>) {
    let stages: Vec<_> = cut.iter().cloned().map(StageLayers::from).collect();
    remote_staggered(model, &stages)
}

/// As [`remote`], with layers that may differ from group to group.
pub(crate) fn remote_staggered(model: &Model, cut: &[StageLayers]) -> (Pipeline, Vec<Worker>) {
    let controller = controller();
    let (mut stages, mut workers) = (Vec::new(), Vec::new());
    for (stage, layers) in cut.iter().enumerate() {
        let name = format!("{stage}-{}", cut.len());
        let directory = crate::remote::support::model();
        let worker = Worker::start(options(&name, &directory)).unwrap();
        let stage = model.connect(&controller, &worker, stage, layers.clone());
        stages.push(stage.unwrap());
        workers.push(worker);
    }
    (Pipeline::new(stages).unwrap(), workers)
}

/// An adapter whose B is not zero, so that every gradient depends on it from the first step on.
pub(crate) fn adapter(config: &LlamaConfig, seed: u64) -> Vec<LayerAdapter> {
    let spec = LoraSpec::new(2 + seed as usize % 5, 8.0)
        .with_lora_dropout(0.1)
        .with_use_dora(seed % 3 == 1);
    (0..config.num_hidden_layers)
        .map(|layer| {
            let mut parts = LayerAdapter::default();
            for shape in config.modules(layer) {
                let projection = shape.projection;
                // The first layers of every other adapter are as they were.
                if (projection as u64 + seed).is_multiple_of(3) || (layer < 1 && seed % 2 == 1) {
                    continue;
                }
                let spec =
                    spec.with_use_dora(spec.use_dora && projection != Projection::EmbedTokens);
                let (size, module) = ([shape.d_in, shape.d_out], projection.number(layer));
                let device = Device::flex();
                let mut state = AdapterState::init(spec, size, seed, module, &device).unwrap();
                let b: Vec<f32> = (0..spec.r * shape.d_out)
                    .map(|at| ((at * 37 + layer * 11 + seed as usize) % 97) as f32 / 4850.0 - 0.01)
                    .collect();
                let b = TensorData::new(b, [spec.r, shape.d_out]);
                state.weights.b = burn::tensor::Tensor::from_data(b, &device);
                parts[projection as usize] = Some(state);
            }
            parts
        })
        .collect()
}

/// A micro-batch of one sequence for each of two slots.
pub(crate) fn microbatch(config: &LlamaConfig, seed: usize, train: Option<u32>) -> Microbatch {
    let lengths = [9 + seed % 3, 6 + seed % 5];
    let rows = lengths[0] + lengths[1];
    let ids: Vec<u32> = (0..rows)
        .map(|at| ((at * 131 + seed * 7919 + 17) % config.vocab_size) as u32)
        .collect();
    let target_rows: Vec<usize> = (0..rows)
        .filter(|row| *row != lengths[0] - 1 && row + 1 < rows)
        .collect();
    let segment = |rows, slot| Segment { rows, slot };
    let segments = vec![segment(0..lengths[0], 0), segment(lengths[0]..rows, 1)];
    Microbatch {
        sequences: Sequences::from_lengths(lengths),
        cached: None,
        rope_lengths: lengths.to_vec(),
        segments: Segments::new(rows, segments).unwrap(),
        draws: train.map(|step| {
            (0..2)
                .map(|slot| DropoutDraw {
                    seed: 40 + slot,
                    step,
                })
                .collect()
        }),
        targets: Targets {
            ids: target_rows.iter().map(|row| ids[row + 1]).collect(),
            weights: target_rows.iter().map(|_| 1.0 / rows as f32).collect(),
            rows: target_rows,
            ..Targets::default()
        },
        ids,
    }
}

/// Training that is a function of the step alone.
pub(crate) struct Training {
    config: LlamaConfig,
    groups: usize,
    microbatches: usize,
    /// Steps over which the second adapter of a group spreads each of its own.
    pub(crate) parts: usize,
    pub(crate) outcomes: Vec<IterationOutcome>,
}

impl IterationPlanner for Training {
    type Error = PipelineError;

    fn plan(&mut self, step: usize) -> Result<Option<IterationPlan>, PipelineError> {
        let whole = (step + 1).is_multiple_of(self.parts);
        let groups = (0..self.groups).map(|group| GroupPlan {
            microbatches: (0..self.microbatches)
                .map(|part| {
                    microbatch(
                        &self.config,
                        100 * step + 10 * group + part,
                        Some(step as u32),
                    )
                })
                .collect(),
            updates: (0..2)
                .map(|slot| {
                    (slot == 0 || whole).then(|| SlotUpdate {
                        learning_rates: 1e-3.into(),
                        beta1: 0.9,
                        beta2: 0.999,
                        epsilon: 1e-8,
                        weight_decay: 0.01 * f64::from(slot),
                        max_grad_norm: 0.3,
                        step: step as u64 + 1,
                    })
                })
                .collect(),
        });
        Ok(Some(IterationPlan {
            groups: groups.collect(),
        }))
    }

    fn book(&mut self, outcome: IterationOutcome) -> Result<bool, PipelineError> {
        self.outcomes.push(outcome);
        Ok(true)
    }
}

pub(crate) fn training(model: &Model, groups: usize, microbatches: usize) -> Training {
    Training {
        config: model.config.clone(),
        groups,
        microbatches,
        parts: 1,
        outcomes: Vec::new(),
    }
}

pub(crate) fn passes(stages: usize, groups: usize, microbatches: usize, steps: usize) -> Passes {
    Passes {
        schedule: Schedule::LoraPp,
        shape: PipelineShape::new(stages, groups, microbatches, steps),
    }
}

/// Everything of an adapter, as bits.
pub(crate) fn bits(adapter: Vec<LayerAdapter>) -> Vec<u32> {
    let parts = adapter.into_iter().flatten().flatten();
    parts
        .flat_map(|part| [part.weights, part.first_moment, part.second_moment])
        .flat_map(|pair| [pair.a, pair.b])
        .flat_map(|tensor| tensor.into_data().try_into_vec::<f32>().unwrap())
        .map(f32::to_bits)
        .collect()
}

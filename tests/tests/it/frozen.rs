//! The base model in memory stays what was loaded, whatever is trained over it.

use batchlora::{AdapterState, DropoutDraw, LoraSpec, Segment, Segments, SlotUpdate};
use burn::tensor::FloatDType;
use loraloom_model::{Checkpoint, LayerAdapter, LlamaConfig, Sequences, Targets};
use loraloom_pipeline::{
    Microbatch, Pipeline, PipelineError, Stage,
    executor::{GroupPlan, IterationOutcome, IterationPlan, IterationPlanner, Passes},
    schedule::{PipelineShape, Schedule},
};
use loraloom_tests::{Fixture, device};

const ADAPTERS: usize = 2;
const STEPS: usize = 5;

/// A row for every token there is, so that all of the embedding takes part. Every adapter has its share of
/// the rows in a step; without a step they are the base model's.
fn whole_vocabulary(config: &LlamaConfig, step: Option<u32>) -> Microbatch {
    let rows = config.vocab_size;
    let ids: Vec<u32> = (0..rows).map(|at| (at * 7 % rows) as u32).collect();
    let share = rows / ADAPTERS;
    let segment = |slot| Segment {
        rows: share * slot..share * (slot + 1),
        slot,
    };
    let segments = step.map(|_| (0..ADAPTERS).map(segment).collect());
    let draw = |slot| step.map(|step| DropoutDraw { seed: slot, step });
    Microbatch {
        sequences: Sequences::from_lengths([share; ADAPTERS]),
        cached: None,
        rope_lengths: vec![share; ADAPTERS],
        segments: Segments::new(rows, segments.unwrap_or_default()).expect("segments in order"),
        draws: (0..ADAPTERS as u64).map(draw).collect(),
        targets: Targets {
            rows: (0..rows - 1).collect(),
            ids: ids[1..].to_vec(),
            weights: vec![1.0 / rows as f32; rows - 1],
            ..Targets::default()
        },
        ids,
    }
}

/// An adapter of every projection.
fn adapter(config: &LlamaConfig, seed: u64) -> Vec<LayerAdapter> {
    let spec = LoraSpec::new(4, 8.0).with_lora_dropout(0.1);
    let layer = |layer| {
        let mut parts = LayerAdapter::default();
        for shape in config.linears() {
            let projection = shape.projection;
            let (size, module) = ([shape.d_in, shape.d_out], projection.number(layer));
            let state = AdapterState::init(spec, size, seed, module, &device());
            parts[projection as usize] = Some(state.expect("an adapter that fits"));
        }
        parts
    };
    (0..config.num_hidden_layers).map(layer).collect()
}

struct Training<'a> {
    config: &'a LlamaConfig,
    losses: Vec<f32>,
}

impl IterationPlanner for Training<'_> {
    type Error = PipelineError;

    fn plan(&mut self, step: usize) -> Result<Option<IterationPlan>, PipelineError> {
        let update = SlotUpdate {
            learning_rates: 1e-2.into(),
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            weight_decay: 0.01,
            max_grad_norm: 1.0,
            step: step as u64 + 1,
        };
        let group = GroupPlan {
            microbatches: vec![whole_vocabulary(self.config, Some(step as u32)); 2],
            updates: vec![Some(update); ADAPTERS],
        };
        let groups = vec![group];
        Ok(Some(IterationPlan { groups }))
    }

    fn book(&mut self, outcome: IterationOutcome) -> Result<bool, PipelineError> {
        let losses = outcome.groups[0].losses.concat();
        self.losses.push(losses.iter().sum());
        Ok(true)
    }
}

/// What the base model says of every token is the same to the last bit before training, after it, and when
/// the adapters are gone; so it is of a model that is read again. Nothing outside shows a stage's weights:
/// every one of them has a part in these logits.
///
/// The models have a tied embedding, biases, norms of heads, norms after, and fused projections.
#[test]
fn training_leaves_the_base_as_it_was_loaded() {
    for (name, again) in [
        ("llama-tied-rope-llama3", true),
        ("qwen2-sharded", false),
        ("qwen3", false),
        ("olmo2", false),
        ("phi3", false),
    ] {
        let directory = Fixture::open(name).directory;
        let config = LlamaConfig::from_directory(&directory).expect("a configuration");
        let checkpoint = Checkpoint::open(&directory).expect("weights");
        let load = || {
            let stage = |layers| {
                let stage = Stage::load(&checkpoint, &config, layers, FloatDType::F32, &device());
                stage.expect("a stage").with_gradient_checkpointing(again)
            };
            let stages = [0..1, 1..config.num_hidden_layers].map(stage);
            Pipeline::new(Vec::from(stages)).expect("a pipeline")
        };
        let base = |pipeline: &Pipeline| -> Vec<u32> {
            let batch = whole_vocabulary(&config, None);
            let logits = pipeline.logits(0, &batch).expect("logits");
            logits.into_iter().map(f32::to_bits).collect()
        };
        let mut pipeline = load();
        for seed in 0..ADAPTERS as u64 {
            let pushed = pipeline.push(0, adapter(&config, seed));
            pushed.expect("an adapter that fits");
        }
        let before = base(&pipeline);

        let mut training = Training {
            config: &config,
            losses: Vec::new(),
        };
        let passes = Passes {
            schedule: Schedule::default(),
            shape: PipelineShape::new(2, 1, 2, STEPS),
        };
        let trained = pipeline.run(&passes, &mut training);
        trained.expect("steps");
        let losses = training.losses;
        assert_eq!(losses.len(), STEPS);
        assert!(losses.is_sorted_by(|a, b| a > b), "{name}: {losses:?}");

        assert!(base(&pipeline) == before, "{name}: after training");
        for slot in (0..ADAPTERS).rev() {
            pipeline.remove(0, slot).expect("an adapter");
        }
        assert!(base(&pipeline) == before, "{name}: without adapters");
        assert!(base(&load()) == before, "{name}: read again");
    }
}

use std::{collections::HashMap, fmt};

use batchlora::Segments;
use burn::tensor::{DType, Device, Tensor, TensorData};
use loraloom_model::LayerAdapter;

use crate::{
    Forwarded, Microbatch, MicrobatchId, MicrobatchTimes, PipelineStage, Stage, StageCache,
    TrainStage,
    executor::{Stopwatch, now},
    remote::{
        WorkerError,
        wire::{Answer, Command, WireCache, put_together, take_apart},
    },
};

/// Results of a command.
#[derive(Debug, Default)]
pub(super) struct Done {
    pub(super) answer: Option<Answer>,
    pub(super) outputs: Vec<Output>,
}

/// An output tensor.
#[derive(Debug)]
pub(super) enum Output {
    Vector(Tensor<1>),
    Matrix(Tensor<2>),
}

/// Numbers as a tensor.
pub(super) fn vector(values: Vec<f32>, device: &Device) -> Tensor<1> {
    let length = values.len();
    let data = TensorData::new(values, [length]);
    Tensor::from_data(data, (device, DType::F32))
}

impl From<Answer> for Done {
    fn from(answer: Answer) -> Self {
        let (answer, outputs) = (Some(answer), Vec::new());
        Self { answer, outputs }
    }
}

impl From<Tensor<1>> for Done {
    fn from(vector: Tensor<1>) -> Self {
        let (answer, outputs) = (None, vec![Output::Vector(vector)]);
        Self { answer, outputs }
    }
}

impl From<Tensor<2>> for Done {
    fn from(matrix: Tensor<2>) -> Self {
        let (answer, outputs) = (None, vec![Output::Matrix(matrix)]);
        Self { answer, outputs }
    }
}

/// Makes a stand-in for a stage that was loaded.
pub type MakeStandIn = Box<dyn Fn() -> Box<dyn StandIn> + Send + Sync>;

/// Executes the passes of a worker's stage in its place, such as by sleeping: so schedules and networks
/// are measured without a device that leaves the processor to the network, as a GPU does. The
/// messages, the adapters and the optimizer stay those of the stage.
pub trait StandIn: fmt::Debug + Send {
    /// A micro-batch forward.
    fn forward(&mut self, stage: &Stage, at: MicrobatchId, microbatch: &Microbatch) -> Forwarded;

    /// A micro-batch backward: the gradient for the stage below.
    fn backward(&mut self, stage: &Stage, at: MicrobatchId) -> Option<Tensor<2>>;
}

/// A stage and its state for a controller.
#[derive(Debug)]
pub(super) struct Work {
    stage: Stage,
    /// Executes passes in place of the stage.
    stand_in: Option<Box<dyn StandIn>>,
    caches: HashMap<u64, StageCache>,
    /// Keeps the times of a group's step until the controller asks for them.
    watch: Stopwatch,
}

impl Work {
    pub(super) fn new(stage: Stage, stand_in: Option<Box<dyn StandIn>>) -> Self {
        Self {
            stage,
            stand_in,
            caches: HashMap::new(),
            watch: Stopwatch::start(),
        }
    }

    /// Executes a command of the stage, on the stream that the controller sent it on: its tensors came
    /// on the same stream, and a GPU keeps order only within one. `arrived` is the time of arrival of a
    /// tensor of another stage.
    pub(super) fn execute(
        &mut self,
        command: Command,
        mut inputs: Vec<Tensor<2>>,
        arrived: Option<f64>,
    ) -> Result<Done, WorkerError> {
        let stage = &mut self.stage;
        Ok(match command {
            Command::Forward { at, microbatch, .. } => {
                let microbatch = microbatch.microbatch()?;
                let begun = now();
                let out = match &mut self.stand_in {
                    Some(passes) => passes.forward(stage, at, &microbatch),
                    None => stage.forward(at, &microbatch, inputs.pop())?,
                };
                self.watch
                    .passed(at, arrived, begun, |times| &mut times.forward);
                let mut done = Done::default();
                done.outputs.extend(out.hidden.map(Output::Matrix));
                done.outputs.extend(out.losses.map(Output::Vector));
                done
            }
            Command::Backward { at, .. } => {
                let begun = now();
                let below = match &mut self.stand_in {
                    Some(passes) => passes.backward(stage, at),
                    None => stage.backward(at, inputs.pop())?,
                };
                let below = below.filter(|_| stage.layers().held().start > 0);
                self.watch
                    .passed(at, arrived, begun, |times| &mut times.backward);
                below.map(Done::from).unwrap_or_default()
            }
            Command::AddSquares { group, .. } => {
                let begun = now();
                let squares = stage.add_squares(group, inputs.pop())?;
                self.watch.worked(group, begun);
                squares.into()
            }
            Command::Update { group, updates, .. } => {
                let squares = only(inputs)?;
                let begun = now();
                let norms = stage.update(group, &updates, Some(squares))?;
                self.watch.worked(group, begun);
                norms.into()
            }
            Command::Times {
                group,
                microbatches,
            } => {
                let mut times = self.watch.take(group);
                let default = MicrobatchTimes::default();
                times.microbatches.resize(microbatches, default);
                vector(times.to_values(), stage.device()).into()
            }
            Command::Infer {
                group,
                microbatch,
                cache,
            } => {
                let microbatch = microbatch.microbatch()?;
                let cache = cache.map(|WireCache { number, blocks }| {
                    let entry = self.caches.entry(number);
                    entry.or_insert_with(|| stage.cache(blocks))
                });
                let hidden = stage.infer(group, &microbatch, inputs.pop(), cache)?;
                hidden.into()
            }
            Command::TargetScores { group, microbatch } => {
                let microbatch = microbatch.microbatch()?;
                let scores = stage.target_scores(group, &microbatch, only(inputs)?)?;
                scores.into()
            }
            Command::Logits { group, segments } => {
                let hidden = only(inputs)?;
                let segments = Segments::new(hidden.dims()[0], segments)
                    .map_err(|error| WorkerError::failed(&error))?;
                stage.logits(group, &segments, hidden)?.into()
            }
            Command::ReserveGroups { count } => {
                stage.reserve_groups(count)?;
                Answer::Done.into()
            }
            Command::SwapGroups { first, second } => {
                stage.swap_groups(first, second)?;
                Answer::Done.into()
            }
            Command::Push { group, adapter } => {
                let layers = stage.group_depth(group)?;
                let adapter = put_together(&adapter, inputs);
                let Some(adapter) = adapter.filter(|adapter| adapter.len() == layers) else {
                    let reason = format!("the adapter does not have {layers} layers");
                    return Err(WorkerError::because(reason));
                };
                Answer::Slot(stage.push(group, adapter)?).into()
            }
            Command::Remove { group, slot } => answered(stage.remove(group, slot)?),
            Command::Extract { group, slot } => answered(stage.extract(group, slot)?),
            Command::DropCache { cache } => {
                self.caches.remove(&cache);
                Done::default()
            }
            _ => return Err(WorkerError::because("the command is not for a stage")),
        })
    }
}

pub(super) fn only(inputs: Vec<Tensor<2>>) -> Result<Tensor<2>, WorkerError> {
    let count = inputs.len();
    let mut inputs = inputs.into_iter();
    inputs.next().filter(|_| count == 1).ok_or_else(|| {
        let reason = format!("expected one tensor, found {count}");
        WorkerError::because(reason)
    })
}

fn answered(adapter: Vec<LayerAdapter>) -> Done {
    let (_, tensors) = take_apart(adapter);
    Done {
        answer: Some(Answer::Done),
        outputs: tensors.into_iter().map(Output::Matrix).collect(),
    }
}

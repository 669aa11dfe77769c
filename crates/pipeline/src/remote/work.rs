use std::collections::HashMap;

use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};
use loraloom_model::LayerCache;

use super::{
    adapters::{Specs, put_together, take_apart},
    error::WorkerError,
    stand_in::{StandIn, StandingIn},
    wire::{Answer, Command},
    wire_microbatch::WireMicrobatch,
};
use crate::{
    MicrobatchId, MicrobatchTimes, PassTimes, PipelineError, StepTimes, TrainStage,
    local_stage::LocalStage, stage_clock::now,
};

/// What a command came to.
#[derive(Debug, Default)]
pub(super) struct Done {
    pub(super) answer: Option<Answer>,
    pub(super) outputs: Vec<Output>,
}

/// A tensor that comes out.
#[derive(Debug)]
pub(super) enum Output {
    Vector(Tensor<1>),
    Matrix(Tensor<2>),
}

impl Done {
    /// Some numbers.
    pub(super) fn vector(values: Vec<f32>, device: &Device) -> Self {
        let length = values.len();
        let data = TensorData::new(values, [length]);
        let options = (device, DType::from(FloatDType::F32));
        Tensor::<1>::from_data(data, options).into()
    }
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

/// A stage at work for a controller.
#[derive(Debug)]
pub(super) struct Work {
    stage: LocalStage,
    /// What does passes in place of the stage.
    stand_in: Option<StandingIn>,
    caches: HashMap<u64, Vec<LayerCache>>,
    /// What was measured of a group's step until it was asked for.
    times: HashMap<usize, StepTimes>,
    /// When the last thing was done.
    free: f64,
}

impl Work {
    pub(super) fn new(stage: LocalStage, stand_in: Option<StandIn>) -> Self {
        Self {
            stage,
            stand_in: stand_in.map(StandingIn::new),
            caches: HashMap::new(),
            times: HashMap::new(),
            free: now(),
        }
    }

    /// Does what has to do with the stage, on the stream that the controller was on when it asked:
    /// its tensors came on the same one, and a GPU keeps order only within a stream. `arrived` is when
    /// what it takes from another stage came.
    pub(super) fn execute(
        &mut self,
        command: Command,
        mut inputs: Vec<Tensor<2>>,
        arrived: Option<f64>,
    ) -> Result<Done, WorkerError> {
        let failed = |error: PipelineError| WorkerError::failed(&error);
        let stage = &mut self.stage;
        let done = match command {
            Command::Forward { at, microbatch, .. } => {
                let microbatch = microbatch.microbatch()?;
                let begun = now();
                let out = match &mut self.stand_in {
                    Some(passes) => passes.forward(stage.stage(), at, &microbatch),
                    None => stage
                        .forward(at, &microbatch, inputs.pop())
                        .map_err(failed)?,
                };
                let passed = self.passed(at.group, arrived, begun);
                self.times_of(at).forward = passed;
                let mut done = Done::default();
                done.outputs.extend(out.hidden.map(Output::Matrix));
                done.outputs.extend(out.losses.map(Output::Vector));
                done
            }
            Command::Backward { at, .. } => {
                let begun = now();
                let below = match &mut self.stand_in {
                    Some(passes) => passes.backward(stage.stage(), at)?,
                    None => stage.backward(at, inputs.pop()).map_err(failed)?,
                };
                let below = below.filter(|_| stage.stage().layers().start > 0);
                let passed = self.passed(at.group, arrived, begun);
                self.times_of(at).backward = passed;
                let mut done = Done::default();
                done.outputs.extend(below.map(Output::Matrix));
                done
            }
            Command::AddSquares { group, .. } => {
                let begun = now();
                let squares = stage.add_squares(group, inputs.pop()).map_err(failed)?;
                self.worked(group, begun);
                squares.into()
            }
            Command::Update { group, updates, .. } => {
                let squares = only(inputs)?;
                let updates: Vec<_> = updates.into_iter().map(|u| u.map(Into::into)).collect();
                let begun = now();
                let norms = stage
                    .update(group, &updates, Some(squares))
                    .map_err(failed)?;
                self.worked(group, begun);
                norms.into()
            }
            Command::Times {
                group,
                microbatches,
            } => {
                let mut times = self.times.remove(&group).unwrap_or_default();
                times
                    .microbatches
                    .resize(microbatches, MicrobatchTimes::default());
                Done::vector(times.to_values(), stage.stage().device())
            }
            Command::Infer {
                group,
                microbatch,
                cache,
            } => self.infer(group, microbatch, cache, inputs.pop())?,
            Command::TargetLosses { targets } => {
                let losses = stage.stage().target_losses(only(inputs)?, &targets.into());
                losses.map_err(failed)?.into()
            }
            Command::Logits => {
                let logits = stage.stage().logits(only(inputs)?);
                logits.map_err(failed)?.into()
            }
            other => self.keep(other, inputs)?,
        };
        Ok(done)
    }

    /// Does what is no pass: to groups, adapters and caches.
    fn keep(&mut self, command: Command, inputs: Vec<Tensor<2>>) -> Result<Done, WorkerError> {
        let failed = |error: PipelineError| WorkerError::failed(&error);
        let stage = &mut self.stage;
        let done = match command {
            Command::ReserveGroups { count } => {
                stage.reserve_groups(count);
                Answer::Done.into()
            }
            Command::SwapGroups { first, second } => {
                stage.swap_groups(first, second).map_err(failed)?;
                Answer::Done.into()
            }
            Command::Push { group, adapter } => {
                let layers = stage.stage().layers_of(group).map_err(failed)?.len();
                let adapter = put_together(&adapter, inputs);
                let Some(adapter) = adapter.filter(|adapter| adapter.len() == layers) else {
                    let reason = format!("an adapter that is not one of {layers} layers");
                    return Err(WorkerError::Failed { reason });
                };
                let slot = stage.push(group, adapter).map_err(failed)?;
                Answer::Slot(slot).into()
            }
            Command::Remove { group, slot } => {
                let adapter = stage.remove(group, slot).map_err(failed)?;
                answered(take_apart(adapter))
            }
            Command::Extract { group, slot } => {
                let adapter = stage.stage().extract(group, slot).map_err(failed)?;
                answered(take_apart(adapter))
            }
            Command::CopyCache { from, to } => {
                if let Some(cache) = self.caches.get(&from) {
                    self.caches.insert(to, cache.clone());
                }
                Done::default()
            }
            Command::DropCache { cache } => {
                self.caches.remove(&cache);
                Done::default()
            }
            _ => {
                let reason = "that is not for a stage".to_owned();
                return Err(WorkerError::Failed { reason });
            }
        };
        Ok(done)
    }

    fn infer(
        &mut self,
        group: usize,
        microbatch: WireMicrobatch,
        cache: Option<u64>,
        hidden: Option<Tensor<2>>,
    ) -> Result<Done, WorkerError> {
        let microbatch = microbatch.microbatch()?;
        let layers = self.stage.stage().layers().len();
        let cache = cache.map(|number| {
            let empty = || vec![LayerCache::default(); layers];
            self.caches
                .entry(number)
                .or_insert_with(empty)
                .as_mut_slice()
        });
        let hidden = self.stage.infer(group, &microbatch, hidden, cache);
        Ok(hidden.map_err(|error| WorkerError::failed(&error))?.into())
    }

    /// Where a micro-batch's times go.
    fn times_of(&mut self, at: MicrobatchId) -> &mut MicrobatchTimes {
        let times = &mut self.times.entry(at.group).or_default().microbatches;
        if times.len() <= at.microbatch {
            times.resize(at.microbatch + 1, MicrobatchTimes::default());
        }
        &mut times[at.microbatch]
    }

    /// A pass that is over now.
    fn passed(&mut self, group: usize, arrived: Option<f64>, begun: f64) -> PassTimes {
        let free = self.free;
        self.worked(group, begun);
        PassTimes {
            arrived,
            free,
            done: self.free,
        }
    }

    fn worked(&mut self, group: usize, begun: f64) {
        self.free = now();
        self.times.entry(group).or_default().busy += self.free - begun;
    }
}

pub(super) fn only(inputs: Vec<Tensor<2>>) -> Result<Tensor<2>, WorkerError> {
    let count = inputs.len();
    let mut inputs = inputs.into_iter();
    inputs.next().filter(|_| count == 1).ok_or_else(|| {
        let reason = format!("{count} tensors where there must be one");
        WorkerError::Failed { reason }
    })
}

fn answered((_, tensors): (Specs, Vec<Tensor<2>>)) -> Done {
    Done {
        answer: Some(Answer::Done),
        outputs: tensors.into_iter().map(Output::Matrix).collect(),
    }
}

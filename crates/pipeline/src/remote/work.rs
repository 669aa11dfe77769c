use std::{collections::HashMap, time::Instant};

use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};
use loraloom_model::LayerCache;

use super::{
    adapters::{Specs, put_together, take_apart},
    error::WorkerError,
    wire::{Answer, Command, WireMemory},
    wire_microbatch::WireMicrobatch,
};
use crate::{Passage, PipelineError, TrainStage, local_stage::LocalStage};

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
    /// One number.
    pub(super) fn element(value: f32, device: &Device) -> Self {
        let data = TensorData::new(vec![value], [1]);
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
    caches: HashMap<u64, Vec<LayerCache>>,
    /// Spent on a group since it was last asked for.
    seconds: HashMap<usize, f64>,
}

impl Work {
    pub(super) fn new(stage: LocalStage) -> Self {
        Self {
            stage,
            caches: HashMap::new(),
            seconds: HashMap::new(),
        }
    }

    /// Does what has to do with the stage, on the stream that the controller was on when it asked:
    /// its tensors came on the same one, and a GPU keeps order only within a stream.
    pub(super) fn execute(
        &mut self,
        command: Command,
        mut inputs: Vec<Tensor<2>>,
    ) -> Result<Done, WorkerError> {
        let failed = |error: PipelineError| WorkerError::failed(&error);
        let stage = &mut self.stage;
        let done = match command {
            Command::Forward { at, microbatch } => {
                let microbatch = microbatch.microbatch()?;
                let at = Passage::from(at);
                let begun = Instant::now();
                let out = stage
                    .forward(at, &microbatch, inputs.pop())
                    .map_err(failed)?;
                self.worked(at.group, begun);
                let mut done = Done::default();
                done.outputs.extend(out.hidden.map(Output::Matrix));
                done.outputs.extend(out.losses.map(Output::Vector));
                done
            }
            Command::Backward { at } => {
                let at = Passage::from(at);
                let begun = Instant::now();
                let below = stage.backward(at, inputs.pop()).map_err(failed)?;
                let below = below.filter(|_| stage.stage().layers().start > 0);
                self.worked(at.group, begun);
                let mut done = Done::default();
                done.outputs.extend(below.map(Output::Matrix));
                done
            }
            Command::AddSquares { group } => {
                let begun = Instant::now();
                let squares = stage.add_squares(group, inputs.pop()).map_err(failed)?;
                self.worked(group, begun);
                squares.into()
            }
            Command::Update { group, updates } => {
                let squares = only(inputs)?;
                let updates: Vec<_> = updates.into_iter().map(|u| u.map(Into::into)).collect();
                let begun = Instant::now();
                let norms = stage.update(group, &updates, squares).map_err(failed)?;
                self.worked(group, begun);
                norms.into()
            }
            Command::Seconds { group } => {
                let seconds = self.seconds.remove(&group).unwrap_or_default();
                Done::element(seconds as f32, stage.stage().device())
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
                stage.change().swap_groups(first, second).map_err(failed)?;
                Answer::Done.into()
            }
            Command::Push { group, adapter } => {
                let layers = stage.stage().layers().len();
                let adapter = put_together(&adapter, inputs);
                let Some(adapter) = adapter.filter(|adapter| adapter.len() == layers) else {
                    let reason = format!("an adapter that is not one of {layers} layers");
                    return Err(WorkerError::Failed { reason });
                };
                let slot = stage.change().push(group, adapter).map_err(failed)?;
                Answer::Slot(slot).into()
            }
            Command::Remove { group, slot } => {
                let adapter = stage.change().remove(group, slot).map_err(failed)?;
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
            Command::Memory => {
                let usage = stage.stage().device().memory_pool_usage();
                let memory = usage.map(|usage| WireMemory {
                    in_use: usage.bytes_in_use,
                    reserved: usage.bytes_reserved,
                });
                Answer::Memory(memory).into()
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

    fn worked(&mut self, group: usize, begun: Instant) {
        *self.seconds.entry(group).or_default() += begun.elapsed().as_secs_f64();
    }
}

fn only(inputs: Vec<Tensor<2>>) -> Result<Tensor<2>, WorkerError> {
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

use std::{collections::BTreeMap, panic::resume_unwind, thread};

use burn::tensor::{Device, FloatDType};
use loraloom_config::{DtypeChoice, RunConfig, StageLocation};
use loraloom_model::{Checkpoint, LlamaConfig};
#[cfg(feature = "remote")]
use loraloom_pipeline::remote::{Controller, Reached, StageSpec};
use loraloom_pipeline::{Partitions, PipelineError, PipelineStage, Stage};

use super::dtype::resolve_dtype;
#[cfg(feature = "remote")]
use super::dtype::resolve_for;
#[cfg(feature = "remote")]
use crate::TrainerError;
use crate::error::Result;

/// The location of a stage, with its device opened.
pub type OpenedStage = StageLocation<Device>;

/// A stage's device, or its worker once that has accepted this run. No layers are loaded yet.
#[derive(Debug)]
pub(crate) enum ReachedStage {
    Device(Device),
    #[cfg(feature = "remote")]
    Worker(Box<Reached>),
}

/// Loads the stages of one model.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StageLoader<'a> {
    pub(crate) config: &'a RunConfig,
    pub(crate) model: &'a LlamaConfig,
    pub(crate) checkpoint: &'a Checkpoint,
}

impl StageLoader<'_> {
    /// Connects to the workers among the stages.
    #[cfg_attr(
        not(feature = "remote"),
        expect(clippy::unused_self, reason = "this build lacks the feature `remote`")
    )]
    pub(crate) fn reach(&self, stages: &[OpenedStage]) -> Result<Vec<ReachedStage>> {
        #[cfg(feature = "remote")]
        let controller = if self.config.pipeline.has_workers() {
            Some(self.controller()?)
        } else {
            None
        };
        let mut reached = Vec::with_capacity(stages.len());
        for stage in stages {
            reached.push(match stage {
                StageLocation::Device(device) => ReachedStage::Device(device.clone()),
                #[cfg(feature = "remote")]
                StageLocation::Remote(address) => {
                    let controller = controller.as_ref().ok_or(TrainerError::NoToken)?;
                    let worker = controller.reach(reached.len(), address, self.model)?;
                    ReachedStage::Worker(Box::new(worker))
                }
                #[cfg(not(feature = "remote"))]
                StageLocation::Remote(_) => {
                    let reason = "this build lacks the feature `remote`".to_owned();
                    return Err(PipelineError::Network { reason }.into());
                }
            });
        }
        Ok(reached)
    }

    #[cfg(feature = "remote")]
    fn controller(&self) -> Result<Controller> {
        let settings = &self.config.pipeline;
        let path = settings.token_file.as_ref().ok_or(TrainerError::NoToken)?;
        let token = std::fs::read_to_string(path).map_err(|source| TrainerError::Token {
            path: path.clone(),
            source,
        })?;
        let deadline = std::time::Duration::from_secs_f64(settings.step_deadline);
        Ok(Controller::new(&token, deadline)?)
    }

    /// The type for all stages; with `auto`, `float32` if they differ.
    pub(crate) fn dtype(&self, reached: &[ReachedStage]) -> Result<FloatDType> {
        let chosen = reached.iter().map(|stage| self.dtype_at(stage));
        let mut chosen = chosen.collect::<Result<Vec<_>, _>>()?;
        chosen.dedup();
        match chosen[..] {
            [dtype] => Ok(dtype),
            _ => Ok(FloatDType::F32),
        }
    }

    fn dtype_at(&self, stage: &ReachedStage) -> Result<FloatDType> {
        let (choice, stored): (DtypeChoice, _) = (self.config.dtype, self.checkpoint.dtype());
        match stage {
            ReachedStage::Device(device) => resolve_dtype(choice, device, stored),
            #[cfg(feature = "remote")]
            ReachedStage::Worker(worker) => {
                let supports = |dtype| worker.supports(dtype);
                resolve_for(choice, worker.on_cpu(), supports, stored)
            }
        }
    }

    /// Loads the layers of every stage, on all workers at the same time.
    pub(crate) fn load(
        &self,
        reached: Vec<ReachedStage>,
        partitions: &Partitions,
        dtype: FloatDType,
    ) -> Result<Vec<Box<dyn PipelineStage>>> {
        let mut stages = BTreeMap::new();
        let loaded = thread::scope(|scope| {
            #[cfg(not(feature = "remote"))]
            let _ = scope;
            #[cfg_attr(not(feature = "remote"), expect(unused_mut, reason = "no worker"))]
            let mut workers: Vec<(usize, Loading<'_>)> = Vec::new();
            let mut devices = Vec::new();
            for (stage, (reached, layers)) in
                reached.into_iter().zip(partitions.stages()).enumerate()
            {
                match reached {
                    ReachedStage::Device(device) => devices.push((stage, device, layers)),
                    #[cfg(feature = "remote")]
                    ReachedStage::Worker(worker) => {
                        let spec = StageSpec {
                            layers,
                            checkpoint: self.checkpoint,
                            dtype,
                            gradient_checkpointing: self.config.gradient_checkpointing,
                        };
                        let load = move || Ok(worker.load(&spec)?.into());
                        workers.push((stage, scope.spawn(load)));
                    }
                }
            }
            for (stage, device, layers) in devices {
                let loaded = Stage::load(self.checkpoint, self.model, layers, dtype, &device)?;
                let again = self.config.gradient_checkpointing;
                stages.insert(stage, loaded.with_gradient_checkpointing(again).into());
            }
            for (stage, worker) in workers {
                let loaded = worker.join().unwrap_or_else(|panic| resume_unwind(panic));
                stages.insert(stage, loaded?);
            }
            Ok::<_, PipelineError>(())
        });
        loaded?;
        Ok(stages.into_values().collect())
    }
}

/// A worker that is reading its layers.
type Loading<'scope> =
    thread::ScopedJoinHandle<'scope, Result<Box<dyn PipelineStage>, PipelineError>>;

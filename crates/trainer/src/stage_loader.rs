use std::{collections::BTreeMap, panic::resume_unwind, thread};

use burn::tensor::{Device, FloatDType};
use loraloom_config::{DtypeChoice, RunConfig};
use loraloom_model::{Checkpoint, LlamaConfig};
#[cfg(feature = "remote")]
use loraloom_pipeline::remote::{Controller, Reached, StageOrder, WorkerAddress};
use loraloom_pipeline::{AnyStage, Partitions, PipelineError, Stage};

#[cfg(feature = "remote")]
use crate::dtype::resolve_for;
use crate::{TrainerError, dtype::resolve_dtype};

/// What a stage is to be on.
#[derive(Debug, Clone)]
pub enum StagePlace {
    /// A device of this process.
    Device(Device),
    /// A worker, which holds the same model.
    #[cfg(feature = "remote")]
    Worker(WorkerAddress),
}

impl From<Device> for StagePlace {
    fn from(device: Device) -> Self {
        Self::Device(device)
    }
}

/// A place that is there, without its layers.
#[derive(Debug)]
pub(crate) enum ReachedPlace {
    Device(Device),
    #[cfg(feature = "remote")]
    Worker(Reached),
}

/// Loads the stages of one model.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StageLoader<'a> {
    pub(crate) config: &'a RunConfig,
    pub(crate) model: &'a LlamaConfig,
    pub(crate) checkpoint: &'a Checkpoint,
}

impl StageLoader<'_> {
    /// Takes the workers among the places.
    #[cfg_attr(
        not(feature = "remote"),
        expect(clippy::unnecessary_wraps, clippy::unused_self, reason = "no worker")
    )]
    pub(crate) fn reach(&self, places: &[StagePlace]) -> Result<Vec<ReachedPlace>, TrainerError> {
        #[cfg(feature = "remote")]
        let controller = if self.config.pipeline.has_workers() {
            Some(self.controller()?)
        } else {
            None
        };
        let mut reached = Vec::with_capacity(places.len());
        for place in places {
            reached.push(match place {
                StagePlace::Device(device) => ReachedPlace::Device(device.clone()),
                #[cfg(feature = "remote")]
                StagePlace::Worker(address) => {
                    let controller = controller.as_ref().ok_or(TrainerError::NoToken)?;
                    ReachedPlace::Worker(controller.reach(reached.len(), address, self.model)?)
                }
            });
        }
        Ok(reached)
    }

    #[cfg(feature = "remote")]
    fn controller(&self) -> Result<Controller, TrainerError> {
        let settings = &self.config.pipeline;
        let path = settings.token_file.as_ref().ok_or(TrainerError::NoToken)?;
        let token = std::fs::read_to_string(path).map_err(|source| TrainerError::Token {
            path: path.clone(),
            source,
        })?;
        let deadline = std::time::Duration::from_secs_f64(settings.step_deadline);
        Ok(Controller::new(&token, deadline)?)
    }

    /// One type for all stages; `auto` is `float32` where they would choose different ones.
    pub(crate) fn dtype(&self, reached: &[ReachedPlace]) -> Result<FloatDType, TrainerError> {
        let chosen = reached.iter().map(|place| self.dtype_at(place));
        let mut chosen = chosen.collect::<Result<Vec<_>, _>>()?;
        chosen.dedup();
        match chosen[..] {
            [dtype] => Ok(dtype),
            _ => Ok(FloatDType::F32),
        }
    }

    fn dtype_at(&self, place: &ReachedPlace) -> Result<FloatDType, TrainerError> {
        let (choice, stored): (DtypeChoice, _) = (self.config.dtype, self.checkpoint.dtype());
        match place {
            ReachedPlace::Device(device) => resolve_dtype(choice, device, stored),
            #[cfg(feature = "remote")]
            ReachedPlace::Worker(worker) => {
                let supports = |dtype| worker.supports(dtype);
                resolve_for(choice, worker.on_cpu(), supports, stored)
            }
        }
    }

    /// Has every place read its layers, workers all at the same time.
    pub(crate) fn load(
        &self,
        reached: Vec<ReachedPlace>,
        partitions: &Partitions,
        dtype: FloatDType,
    ) -> Result<Vec<AnyStage>, TrainerError> {
        let mut stages = BTreeMap::new();
        let loaded = thread::scope(|scope| {
            #[cfg(not(feature = "remote"))]
            let _ = scope;
            #[cfg_attr(not(feature = "remote"), expect(unused_mut, reason = "no worker"))]
            let mut workers: Vec<(usize, Loading<'_>)> = Vec::new();
            let mut devices = Vec::new();
            for (stage, (place, layers)) in reached.into_iter().zip(partitions.stages()).enumerate()
            {
                match place {
                    ReachedPlace::Device(device) => devices.push((stage, device, layers)),
                    #[cfg(feature = "remote")]
                    ReachedPlace::Worker(worker) => {
                        let order = StageOrder {
                            layers,
                            checkpoint: self.checkpoint,
                            dtype,
                            gradient_checkpointing: self.config.gradient_checkpointing,
                        };
                        let load = move || worker.load(&order).map(AnyStage::from);
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
type Loading<'scope> = thread::ScopedJoinHandle<'scope, Result<AnyStage, PipelineError>>;

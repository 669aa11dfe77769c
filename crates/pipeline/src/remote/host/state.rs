use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::{
    remote::EndpointId,
    tensor::{Device, FloatDType, Tensor},
};
use loraloom_model::{Checkpoint, LlamaConfig};

use super::{
    MakeStandIn,
    lease::Leases,
    receive_buffer::ReceiveBuffer,
    work::{Done, Work, only, vector},
};
use crate::{
    PipelineStage, Stage, StageLayers,
    executor::now,
    remote::{
        WorkerError,
        connection::{describe, weights_digest},
        wire::{Answer, Command, Greeting, LoadRequest, PROTOCOL, StageFailure},
    },
};

/// Types that weights are computed in.
const WEIGHT_DTYPES: [FloatDType; 3] = [FloatDType::F32, FloatDType::F16, FloatDType::BF16];

/// State of a worker.
pub(super) struct Host {
    pub(super) version: String,
    pub(super) checkpoint: Checkpoint,
    pub(super) config: LlamaConfig,
    pub(super) device: Device,
    pub(super) stand_in: Option<MakeStandIn>,
    pub(super) leases: Leases,
    pub(super) received: ReceiveBuffer,
    /// The stage, under the lease it was loaded for.
    pub(super) work: Mutex<Option<(u64, Work)>>,
    /// The first failure, and its lease.
    pub(super) failure: Mutex<Option<(u64, StageFailure)>>,
    pub(super) log: Box<dyn Fn(&str) + Send + Sync>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A pass that panicked is recorded as a failure, after which its stage is not used.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Host {
    /// Executes a command.
    ///
    /// # Errors
    /// The error for the controller.
    pub(super) fn execute(
        &self,
        lease: u64,
        command: Command,
        mut inputs: Vec<Tensor<2>>,
    ) -> Result<Done, WorkerError> {
        match command {
            Command::Ping => Ok(vector(vec![0.0], &self.device).into()),
            Command::Hello(greeting) => Ok(self.greet(&greeting)?.into()),
            Command::Health => Ok(Answer::Health(self.failed(lease)).into()),
            Command::Pulse => Ok(self.pulse().into()),
            // Does not wait for the pass that is being computed.
            Command::Deliver { tag } => {
                if self.leases.is_current(lease) {
                    self.received.put(tag, only(inputs)?);
                }
                Ok(Done::default())
            }
            Command::Load(request) => self.load(lease, &request),
            command => {
                let mut arrived = None;
                if let Some(tag) = command.takes() {
                    let wanted = || self.leases.is_current(lease);
                    let Some((tensor, at)) = self.received.take(tag, wanted) else {
                        return Err(WorkerError::because("an input tensor did not arrive"));
                    };
                    inputs.push(tensor);
                    arrived = Some(at);
                }
                let mut work = locked(&self.work);
                let work = work.as_mut().filter(|(loaded, _)| *loaded == lease);
                let Some((_, work)) = work.filter(|_| self.leases.is_current(lease)) else {
                    let reason = "it holds no layers for this controller";
                    return Err(WorkerError::because(reason));
                };
                work.execute(command, inputs, arrived)
            }
        }
    }

    fn greet(&self, greeting: &Greeting) -> Result<Answer, WorkerError> {
        let mismatch = |what: &str, worker: &str, controller: &str| {
            Err(WorkerError::Mismatch {
                what: what.to_owned(),
                worker: worker.to_owned(),
                controller: controller.to_owned(),
            })
        };
        if greeting.version != self.version {
            return mismatch("loraloom version", &self.version, &greeting.version);
        }
        if greeting.protocol != PROTOCOL {
            let (worker, controller) = (PROTOCOL.to_string(), greeting.protocol.to_string());
            return mismatch("protocol version", &worker, &controller);
        }
        let config = describe(&self.config);
        if greeting.config != config {
            let mut lines = config.lines().zip(greeting.config.lines());
            let (worker, controller) = lines
                .find(|(ours, theirs)| ours != theirs)
                .unwrap_or(("shorter", "longer"));
            let value = |line: &str| line.trim().trim_end_matches(',').to_owned();
            return mismatch("model configuration", &value(worker), &value(controller));
        }
        let controller = EndpointId::from_bytes(&greeting.controller)
            .map_err(|error| WorkerError::failed(&error))?;
        let lease = self.leases.claim(controller)?;
        self.say(&format!("controller {controller} has connected"));
        let supported = |dtype: &FloatDType| self.device.supports_dtype(*dtype);
        Ok(Answer::Yours {
            lease,
            on_cpu: self.device == Device::flex(),
            dtypes: WEIGHT_DTYPES.into_iter().filter(supported).collect(),
        })
    }

    fn pulse(&self) -> Answer {
        let usage = self.device.memory_pool_usage();
        Answer::Pulse {
            time: now(),
            reserved_bytes: usage.map(|usage| usage.bytes_reserved),
        }
    }

    /// Checks ranges of layers against the model.
    fn layers(&self, ranges: &[[usize; 2]]) -> Result<StageLayers, WorkerError> {
        let layers = self.config.num_hidden_layers;
        let by_partition = ranges.iter().map(|&[first, end]| first..end).collect();
        let found = StageLayers::new(by_partition).filter(|found| found.held().end <= layers);
        found.ok_or_else(|| {
            let reason = format!("a model of {layers} layers has no layers {ranges:?}");
            WorkerError::because(reason)
        })
    }

    fn load(&self, lease: u64, request: &LoadRequest) -> Result<Done, WorkerError> {
        let layers = self.layers(&request.layers)?;
        let held = layers.held();
        let mut work = locked(&self.work);
        if !self.leases.is_current(lease) {
            return Err(WorkerError::because("it serves another controller now"));
        }
        // Frees the memory of an earlier stage first.
        *work = None;
        let digest = weights_digest(&self.checkpoint, &self.config, &held)
            .map_err(|error| WorkerError::failed(&error))?;
        if digest != request.digest {
            return Err(WorkerError::Mismatch {
                what: format!("weights of layers {held:?}"),
                worker: named(digest),
                controller: named(request.digest),
            });
        }
        let (dtype, device) = (request.dtype, &self.device);
        if !device.supports_dtype(dtype) {
            let reason = format!("its device does not support {dtype:?}");
            return Err(WorkerError::because(reason));
        }
        let config = LlamaConfig {
            quantization: request.quantization.clone(),
            ..self.config.clone()
        };
        let stage = Stage::load(&self.checkpoint, &config, layers, dtype, device)?
            .with_gradient_checkpointing(request.gradient_checkpointing);
        let loaded = Answer::Loaded {
            weight_bytes: stage.weight_bytes(),
            products: stage.products(),
        };
        self.received.clear();
        let stand_in = self.stand_in.as_ref().map(|make| make());
        *work = Some((lease, Work::new(stage, stand_in)));
        self.say(&format!(
            "serves layers {}-{} as {dtype:?}",
            held.start,
            held.end.saturating_sub(1)
        ));
        Ok(loaded.into())
    }

    /// Records the reason of a pass's failure; the first one counts.
    pub(super) fn fail(&self, lease: u64, failure: StageFailure) {
        if !self.leases.is_current(lease) {
            return;
        }
        let line = format!("failed: {}", failure.reason);
        {
            let mut first = locked(&self.failure);
            if first.as_ref().is_some_and(|(of, _)| *of == lease) {
                return;
            }
            *first = Some((lease, failure));
        }
        self.say(&line);
    }

    /// The first failure under a lease. A matrix product may fail after its pass has returned.
    pub(super) fn failed(&self, lease: u64) -> Option<StageFailure> {
        if let Some(reason) = batchlora::product_failure() {
            let inherited = false;
            self.fail(lease, StageFailure { reason, inherited });
        }
        let failure = locked(&self.failure);
        let failure = failure.as_ref().filter(|(of, _)| *of == lease);
        failure.map(|(_, failure)| failure.clone())
    }

    /// Drops the stage of a controller that has left. Waits for the pass that is being computed.
    pub(super) fn release(&self, lease: u64) {
        let mut work = locked(&self.work);
        if work.take_if(|(loaded, _)| *loaded == lease).is_some() {
            self.received.clear();
            let _ = batchlora::product_failure();
        }
        drop(work);
        self.say("the controller disconnected; waiting for another");
    }

    fn say(&self, line: &str) {
        (self.log)(line);
    }
}

/// Shortens a digest for messages.
fn named(digest: [u8; 32]) -> String {
    let digits = blake3::Hash::from_bytes(digest).to_hex();
    format!("BLAKE3 {}", &digits[..16])
}

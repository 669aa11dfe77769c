use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use batchlora::GradientNorms;
use burn::{
    backend::{
        DispatchDevice, Remote,
        ir::{CustomOpIr, TensorIr},
        tensor::FloatTensor,
    },
    remote::CustomOpClient,
    tensor::{DType, Device, Shape, Tensor},
};
use loraloom_config::WorkerAddress;

use super::link::{End, Link};
use crate::{
    PipelineError, RemoteInbox, StageClock, Tag,
    executor::now,
    remote::{
        WorkerError,
        wire::{
            ANSWER, ANSWER_DTYPE, Answer, COMPUTE, CONTROL, Command, Envelope, GRADIENT, HIDDEN,
            OPERATION, SQUARES, StageFailure, answer_from_elements,
        },
    },
};

/// The sessions of a worker, and the state that they share.
#[derive(Debug)]
pub(crate) struct WorkerConnection {
    stage: usize,
    address: String,
    sessions: Vec<WorkerSession>,
    lease: u64,
    link: Arc<Link>,
    caches: AtomicU64,
    clock: Arc<StageClock>,
    /// Bytes that the worker's device had reserved at its last report; 0 if it does not report them.
    reserved_bytes: AtomicU64,
}

impl WorkerConnection {
    pub(super) fn new(
        stage: usize,
        address: &WorkerAddress,
        sessions: Vec<WorkerSession>,
        lease: u64,
        link: &Arc<Link>,
    ) -> Arc<Self> {
        let worker = Arc::new(Self {
            stage,
            address: address.to_string(),
            sessions,
            lease,
            link: Arc::clone(link),
            caches: AtomicU64::new(0),
            clock: Arc::default(),
            reserved_bytes: AtomicU64::new(0),
        });
        link.join(Arc::downgrade(&worker));
        worker
    }

    pub(super) fn next_cache(&self) -> u64 {
        self.caches.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    pub(super) fn sessions(&self) -> &[WorkerSession] {
        &self.sessions
    }

    /// The session that computes.
    pub(super) fn compute(&self) -> &Device {
        self.sessions[COMPUTE].device()
    }

    fn envelope(&self, command: Command) -> Envelope {
        let lease = self.lease;
        Envelope { lease, command }
    }

    /// A worker's error as an error of its stage.
    pub(super) fn problem(&self, problem: WorkerError) -> PipelineError {
        PipelineError::Worker {
            stage: self.stage,
            address: self.address.clone(),
            problem,
        }
    }

    /// The error of a worker that failed.
    pub(super) fn failed(&self, reason: impl Into<String>) -> PipelineError {
        self.problem(WorkerError::because(reason))
    }

    /// The end of all connections because of this stage.
    pub(super) fn end(&self, lost: bool, reason: String) -> End {
        End {
            stage: self.stage,
            address: self.address.clone(),
            lost,
            reason,
        }
    }

    /// Ends all connections because this stage is lost.
    pub(super) fn lose(&self, reason: &str) -> PipelineError {
        self.link.end(self.end(true, reason.to_owned()))
    }

    /// Ends all connections because a session has ended. The error is the worker's or another's failure
    /// where there is one.
    pub(super) fn session_ended(&self) -> PipelineError {
        let lost = || self.lose("one of its sessions closed");
        self.link.inquire().unwrap_or_else(lost)
    }

    /// The worker's first failure. Does not wait for what it computes.
    pub(super) fn health(&self) -> Result<Option<StageFailure>, SessionEnded> {
        let envelope = self.envelope(Command::Health);
        match self.sessions[CONTROL].ask(&envelope, Vec::new(), &[])? {
            Ok((Answer::Health(failure), _)) => Ok(failure),
            _ => Err(SessionEnded),
        }
    }

    /// The worker's clock.
    pub(super) fn clock(&self) -> &Arc<StageClock> {
        &self.clock
    }

    /// Bytes that the worker's device had reserved at its last [`pulse`](Self::pulse), if it reports
    /// them.
    pub(crate) fn reserved_bytes(&self) -> Option<u64> {
        let bytes = self.reserved_bytes.load(Ordering::Relaxed);
        Some(bytes).filter(|&bytes| bytes > 0)
    }

    /// Asks the worker for its time and memory. Does not wait for what it computes.
    pub(super) fn pulse(&self) -> Result<(), SessionEnded> {
        let envelope = self.envelope(Command::Pulse);
        let asked = now();
        let answer = self.sessions[CONTROL].ask(&envelope, Vec::new(), &[])?;
        let (answer, _) = answer.map_err(|_| SessionEnded)?;
        let Answer::Pulse {
            time,
            reserved_bytes,
        } = answer
        else {
            return Err(SessionEnded);
        };
        self.clock.observe(asked, now(), time);
        let bytes = reserved_bytes.unwrap_or_default();
        self.reserved_bytes.store(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// The error of stages on workers, if one of them cannot continue.
    pub(super) fn inquire(&self) -> Option<PipelineError> {
        self.link.inquire()
    }

    /// Sends a command to compute, and returns its outputs.
    pub(super) fn send(
        &self,
        command: Command,
        inputs: Vec<Tensor<2>>,
        promises: &[Promise],
    ) -> Result<Vec<FloatTensor<Remote>>, PipelineError> {
        self.link.check()?;
        let sent = self.sessions[COMPUTE].send(&self.envelope(command), inputs, promises);
        sent.map_err(|problem| self.problem(problem))
    }

    /// Sends a command, and waits until it is done.
    pub(super) fn ask(
        &self,
        command: Command,
        inputs: Vec<Tensor<2>>,
        promises: &[Promise],
    ) -> Result<(Answer, Vec<FloatTensor<Remote>>), PipelineError> {
        self.link.check()?;
        let answer = self.sessions[COMPUTE].ask(&self.envelope(command), inputs, promises);
        let answer = answer.map_err(|SessionEnded| self.session_ended())?;
        answer.map_err(|problem| self.problem(problem))
    }
}

impl RemoteInbox for WorkerConnection {
    fn send(&self, tag: Tag, tensor: Tensor<2>) -> Result<(), PipelineError> {
        self.link.check()?;
        let session = match tag {
            Tag::Hidden(_) => HIDDEN,
            Tag::Gradient(_) => GRADIENT,
            Tag::SquaresAbove(_) | Tag::Squares(_) => SQUARES,
        };
        let envelope = self.envelope(Command::Deliver { tag });
        let sent = self.sessions[session].send(&envelope, vec![tensor], &[]);
        sent.map(drop).map_err(|problem| self.problem(problem))
    }
}

/// One of the queues of a worker.
#[derive(Debug, Clone)]
pub(super) struct WorkerSession {
    device: Device,
}

/// Shape and type of an output that is still to be computed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Promise {
    shape: Vec<usize>,
    dtype: DType,
}

impl Promise {
    pub(super) fn vector(length: usize, dtype: DType) -> Self {
        let shape = vec![length];
        Self { shape, dtype }
    }

    pub(super) fn matrix(shape: [usize; 2], dtype: DType) -> Self {
        let shape = shape.to_vec();
        Self { shape, dtype }
    }

    /// The squares of a group's gradients; see [`GradientNorms::into_sums`].
    pub(super) fn squares(slots: usize) -> Self {
        let shape = GradientNorms::new(slots, &Device::flex())
            .into_sums()
            .dims();
        Self::matrix(shape, DType::F32)
    }
}

impl WorkerSession {
    pub(super) fn new(device: Device) -> Self {
        Self { device }
    }

    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    /// Sends a command, and returns its outputs.
    ///
    /// # Errors
    /// If the command cannot be encoded.
    pub(super) fn send(
        &self,
        envelope: &Envelope,
        inputs: Vec<Tensor<2>>,
        promises: &[Promise],
    ) -> Result<Vec<FloatTensor<Remote>>, WorkerError> {
        let scalars = envelope.to_scalars()?;
        let DispatchDevice::Remote(device) = self.device.as_dispatch() else {
            let reason = format!("{:?} is not remote", self.device);
            return Err(WorkerError::because(reason));
        };
        let inputs: Result<Vec<TensorIr>, WorkerError> = inputs
            .into_iter()
            .map(|tensor| {
                // A queue's operations take tensors of this queue only.
                let tensor = tensor.without_autodiff().to_device(&self.device);
                let primitive = tensor.try_into_primitive::<Remote>();
                let primitive =
                    primitive.map_err(|error| WorkerError::because(format!("{error:?}")))?;
                Ok(primitive.into_ir())
            })
            .collect();
        let client = CustomOpClient::new(device);
        let outputs: Vec<TensorIr> = promises
            .iter()
            .map(|promise| {
                let shape = Shape::from(promise.shape.clone());
                TensorIr::uninit(client.create_empty_handle(), shape, promise.dtype)
            })
            .collect();
        let operation = CustomOpIr::with_scalars(OPERATION, &inputs?, &outputs, scalars);
        let outputs = client.register(operation);
        // Otherwise Burn holds the operation back to send it with later ones.
        let flushed = self.device.flush();
        flushed.map_err(|error| WorkerError::because(format!("{error:?}")))?;
        Ok(outputs)
    }

    /// Sends a command and waits for its answer. The inner error is the worker's; the outer one says
    /// that the session has ended.
    pub(super) fn ask(
        &self,
        envelope: &Envelope,
        inputs: Vec<Tensor<2>>,
        promises: &[Promise],
    ) -> Result<Result<Reply, WorkerError>, SessionEnded> {
        let mut all = vec![Promise::vector(ANSWER, ANSWER_DTYPE)];
        all.extend_from_slice(promises);
        let mut outputs = match self.send(envelope, inputs, &all) {
            Ok(outputs) => outputs.into_iter(),
            Err(error) => return Ok(Err(error)),
        };
        let answer = outputs.next().ok_or(SessionEnded)?;
        let elements = read(Tensor::<1>::from_primitive::<Remote>(answer))?;
        Ok(match answer_from_elements(&elements) {
            Ok(Answer::Refused(error)) | Err(error) => Err(error),
            Ok(answer) => Ok((answer, outputs.collect())),
        })
    }

    /// Waits until the queue has executed all earlier commands.
    pub(super) fn ping(&self) -> Result<(), SessionEnded> {
        let envelope = Envelope {
            lease: 0,
            command: Command::Ping,
        };
        let promise = Promise::vector(1, DType::F32);
        let outputs = self.send(&envelope, Vec::new(), &[promise]);
        let output = outputs.ok().and_then(|mut outputs| outputs.pop());
        read(Tensor::<1>::from_primitive::<Remote>(
            output.ok_or(SessionEnded)?,
        ))?;
        Ok(())
    }
}

/// An answer and the outputs that follow it.
pub(super) type Reply = (Answer, Vec<FloatTensor<Remote>>);

/// A session has ended without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SessionEnded;

fn read(tensor: Tensor<1>) -> Result<Vec<f32>, SessionEnded> {
    let data = tensor.try_into_data().map_err(|_| SessionEnded)?;
    data.try_into_vec().map_err(|_| SessionEnded)
}

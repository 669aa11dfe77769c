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

use super::{
    OPERATION,
    envelope::{ANSWER, ANSWER_DTYPE, Envelope, answer_from_elements},
    error::WorkerError,
    wire::{Answer, Command},
};

/// One of the queues of a worker.
#[derive(Debug, Clone)]
pub(super) struct Session {
    device: Device,
}

/// Shape and type of a tensor that is to come.
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

    /// Squares of a group's gradients; see [`GradientNorms::into_sums`].
    pub(super) fn squares(slots: usize) -> Self {
        let shape = GradientNorms::new(slots, &Device::flex())
            .into_sums()
            .dims();
        Self::matrix(shape, DType::F32)
    }
}

impl Session {
    pub(super) fn new(device: Device) -> Self {
        Self { device }
    }

    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    /// Sends a command, and returns what will come of it.
    ///
    /// # Errors
    /// If the command cannot be written down.
    pub(super) fn send(
        &self,
        envelope: &Envelope,
        inputs: Vec<Tensor<2>>,
        promises: &[Promise],
    ) -> Result<Vec<FloatTensor<Remote>>, WorkerError> {
        let scalars = envelope.to_scalars()?;
        let failed = |reason: String| WorkerError::Failed { reason };
        let DispatchDevice::Remote(device) = self.device.as_dispatch() else {
            return Err(failed(format!("{:?} is not remote", self.device)));
        };
        let inputs: Result<Vec<TensorIr>, _> = inputs
            .into_iter()
            .map(|tensor| {
                // Nothing but the queue's own tensors can be named in it.
                let tensor = tensor.without_autodiff().to_device(&self.device);
                let primitive = tensor.try_into_primitive::<Remote>();
                let primitive = primitive.map_err(|error| failed(format!("{error:?}")))?;
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
        // Otherwise it would wait here for more to come.
        self.device
            .flush()
            .map_err(|error| failed(format!("{error:?}")))?;
        Ok(outputs)
    }

    /// Sends a command and waits for its answer. `Err` inside is the worker's, outside it is that
    /// there is no answer to be had.
    pub(super) fn ask(
        &self,
        envelope: &Envelope,
        inputs: Vec<Tensor<2>>,
        promises: &[Promise],
    ) -> Result<Result<Reply, WorkerError>, Silence> {
        let mut all = vec![Promise::vector(ANSWER, ANSWER_DTYPE)];
        all.extend_from_slice(promises);
        let mut outputs = match self.send(envelope, inputs, &all) {
            Ok(outputs) => outputs.into_iter(),
            Err(error) => return Ok(Err(error)),
        };
        let answer = outputs.next().ok_or(Silence)?;
        let elements = read(Tensor::<1>::from_primitive::<Remote>(answer))?;
        Ok(match answer_from_elements(&elements) {
            Ok(Answer::Refused(error)) | Err(error) => Err(error),
            Ok(answer) => Ok((answer, outputs.collect())),
        })
    }

    /// Waits until the queue has come to a command that is sent now.
    pub(super) fn ping(&self) -> Result<(), Silence> {
        let envelope = Envelope {
            lease: 0,
            command: Command::Ping,
        };
        let promise = Promise::vector(1, DType::F32);
        let outputs = self.send(&envelope, Vec::new(), &[promise]);
        let output = outputs.ok().and_then(|mut outputs| outputs.pop());
        read(Tensor::<1>::from_primitive::<Remote>(
            output.ok_or(Silence)?,
        ))?;
        Ok(())
    }
}

/// An answer and the tensors that come with it.
pub(super) type Reply = (Answer, Vec<FloatTensor<Remote>>);

/// A session has ended without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Silence;

fn read(tensor: Tensor<1>) -> Result<Vec<f32>, Silence> {
    let data = tensor.try_into_data().map_err(|_| Silence)?;
    data.try_into_vec().map_err(|_| Silence)
}

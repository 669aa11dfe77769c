//! Results on their way from the device, while the device is given more to do.

use std::{
    sync::mpsc,
    thread::{self, JoinHandle},
    time::Instant,
};

use burn::tensor::{ExecutionError, StreamId, Tensor, TensorData, Transaction};
use loraloom_model::{ModelError, causes};

use super::asked::Asked;
use crate::transfer::is_remote;

/// A read that was asked for.
///
/// Burn's asynchronous reads cannot be left to themselves on the thread that trains:
/// `into_data_async` defers the copy to the first access, and the first poll of a transaction
/// waits for the device on CUDA. So a thread of its own asks and waits, on the stream of the thread
/// that trains: the copy is queued after what was submitted before, and before what comes next. What is
/// on another machine is asked for by the thread that trains; see [`Asked`].
#[derive(Debug)]
pub(super) struct Readback {
    thread: JoinHandle<Arrival<Result<Vec<TensorData>, ExecutionError>>>,
}

/// What was read, and when it was there.
#[derive(Debug)]
pub(super) struct Arrival<T> {
    pub(super) values: T,
    pub(super) at: Instant,
}

impl Readback {
    /// Asks for tensors of one device, in order. Returns when the reading thread runs, which is
    /// before it has asked: should the caller be quicker to submit more, the values come that
    /// much later.
    ///
    /// # Errors
    /// [`ModelError::Device`] if there can be no further thread.
    pub(super) fn request(tensors: Vec<Tensor<1>>) -> Result<Self, ModelError> {
        if tensors.iter().all(|tensor| is_remote(&tensor.device())) {
            let asked: Vec<Asked> = tensors.into_iter().map(Asked::begin).collect();
            let read = move || Arrival {
                values: asked.into_iter().map(Asked::end).collect(),
                at: Instant::now(),
            };
            return Self::spawn(read);
        }
        let stream = StreamId::current();
        let (begun, has_begun) = mpsc::channel();
        let read = move || {
            // The other end waits for it.
            let _ = begun.send(());
            let read = || {
                let all = tensors
                    .into_iter()
                    .fold(Transaction::default(), Transaction::register);
                all.try_execute()
            };
            let values = stream.executes(read);
            Arrival {
                values,
                at: Instant::now(),
            }
        };
        let reading = Self::spawn(read)?;
        // The thread sends this first, or has ended, which `wait` tells.
        let _ = has_begun.recv();
        Ok(reading)
    }

    fn spawn(
        read: impl FnOnce() -> Arrival<Result<Vec<TensorData>, ExecutionError>> + Send + 'static,
    ) -> Result<Self, ModelError> {
        let thread = thread::Builder::new().name("readback".into()).spawn(read);
        let thread = thread.map_err(|error| failed(format!("no thread to read with: {error}")))?;
        Ok(Self { thread })
    }

    /// Waits for the values.
    ///
    /// # Errors
    /// [`ModelError::Device`] if an operation that they depend on failed.
    pub(super) fn wait(self) -> Result<Arrival<Vec<Vec<f32>>>, ModelError> {
        let Ok(Arrival { values, at }) = self.thread.join() else {
            return Err(failed("reading results from it panicked".into()));
        };
        let values = values.map_err(|error| failed(causes(&format!("{error:?}"))))?;
        if let Some(reason) = batchlora::product_failure() {
            return Err(failed(reason));
        }
        let values = values.into_iter().map(|data| {
            let values = data.convert::<f32>().try_into_vec();
            values.map_err(|error| failed(format!("{error:?}")))
        });
        let values = values.collect::<Result<_, _>>()?;
        Ok(Arrival { values, at })
    }
}

fn failed(reason: String) -> ModelError {
    ModelError::Device { reason }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, Tensor};

    use super::Readback;

    #[test]
    fn values_are_those_of_the_request_in_its_order() {
        let device = Device::flex();
        let first = Tensor::<1>::from_data([1f32, -2.0, 3.5], &device);
        let second = Tensor::<1>::from_data([7f32], &device);
        let pending = Readback::request(vec![first.clone() * 2.0, second]).expect("a thread");
        let later = Readback::request(vec![first.powi_scalar(2)]).expect("a thread");
        let values = pending.wait().expect("the values").values;
        assert_eq!(values, [vec![2.0, -4.0, 7.0], vec![7.0]]);
        assert_eq!(
            later.wait().expect("the values").values,
            [[1.0, 4.0, 12.25]]
        );
    }
}

use std::thread::{self, JoinHandle};

use burn::tensor::{Device, StreamId, Tensor, TensorData};
use loraloom_model::{ModelError, causes};

use crate::{PipelineError, stage_clock::now};

/// A tensor on its way to another device.
///
/// Between devices that work by themselves Burn queues the copy. Into this process, from another
/// machine or from a GPU to the CPU, it waits for the values, and panics if they never come; so a
/// thread of its own fetches them, and whoever sent the tensor on its way goes on with its work.
#[derive(Debug)]
pub(crate) enum Transfer {
    /// There, or promised.
    Queued(Box<Tensor<2>>),
    /// Under way to where nobody here sees it again.
    Delivered,
    /// Being fetched.
    Fetched {
        thread: JoinHandle<(Result<TensorData, String>, f64)>,
        device: Device,
    },
}

/// A tensor, unless it was delivered, and when it came from another process to this one.
pub(crate) type Taken = (Option<Tensor<2>>, Option<f64>);

impl Transfer {
    /// Sends a tensor on its way.
    ///
    /// # Errors
    /// If there can be no further thread.
    pub(crate) fn begin(tensor: Tensor<2>, device: &Device) -> Result<Self, PipelineError> {
        if !waits(&tensor, device) {
            return Ok(Self::Queued(Box::new(tensor.to_device(device))));
        }
        let stream = StreamId::current();
        let fetch = move || {
            let read = stream.executes(|| tensor.try_into_data());
            (read.map_err(|error| causes(&format!("{error:?}"))), now())
        };
        let thread = thread::Builder::new().name("fetch".into()).spawn(fetch);
        let thread =
            thread.map_err(|error| failed(format!("no thread to fetch a tensor: {error}")))?;
        let device = device.clone();
        Ok(Self::Fetched { thread, device })
    }

    /// Sends a tensor on its way that is used further here.
    ///
    /// # Errors
    /// If there can be no further thread.
    pub(crate) fn begin_copy(tensor: &Tensor<2>, device: &Device) -> Result<Self, PipelineError> {
        let mut copy = tensor.clone();
        if waits(&copy, device) {
            // Two threads must not hold the same remote tensor: each could take the other for the
            // last, and tell the worker to let go of it. Times one is every number itself.
            copy = copy.mul_scalar(1.0);
        }
        Self::begin(copy, device)
    }

    /// Waits for what has to be waited for. With when it was there, where that was here.
    ///
    /// # Errors
    /// If the tensor cannot be computed or fetched.
    pub(crate) fn end(self) -> Result<Taken, PipelineError> {
        match self {
            Self::Queued(tensor) => Ok((Some(*tensor), None)),
            Self::Delivered => Ok((None, None)),
            Self::Fetched { thread, device } => {
                let Ok((fetched, arrived)) = thread.join() else {
                    return Err(failed("fetching a tensor panicked".to_owned()));
                };
                let data = fetched.map_err(failed)?;
                let dtype = data.dtype();
                let tensor = Tensor::from_data(data, (&device, dtype));
                Ok((Some(tensor), Some(arrived)))
            }
        }
    }
}

/// Whether taking a tensor to a device waits for its values.
fn waits(tensor: &Tensor<2>, device: &Device) -> bool {
    let from = tensor.device();
    let into_memory = *device == Device::flex() || (is_remote(&from) && !is_remote(device));
    from != *device && into_memory
}

/// Whether a device is of another process.
#[cfg(feature = "remote")]
pub(crate) fn is_remote(device: &Device) -> bool {
    matches!(
        device.as_dispatch(),
        burn::backend::DispatchDevice::Remote(_)
    )
}

#[cfg(not(feature = "remote"))]
pub(crate) fn is_remote(_: &Device) -> bool {
    false
}

fn failed(reason: String) -> PipelineError {
    ModelError::Device { reason }.into()
}

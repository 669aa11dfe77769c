//! Reads of results, while the device goes on computing.

use std::{
    pin::Pin,
    sync::{Arc, mpsc},
    task::{Context, Poll, Wake, Waker},
    thread::{self, JoinHandle, Thread},
    time::Instant,
};

use burn::tensor::{ExecutionError, StreamId, Tensor, TensorData, Transaction};
use loraloom_model::ModelError;

use super::mailbox::is_remote;

/// A read that was requested.
///
/// Burn's asynchronous reads do not progress on their own: `into_data_async` defers the copy to the
/// first access, and the first poll of a transaction waits for the device on CUDA. So a separate
/// thread requests and waits, on the stream of the thread that trains: the copy is queued after
/// earlier submissions and before later ones. Values on another machine are requested by the thread
/// that trains; see [`RemoteRead`].
#[derive(Debug)]
pub(super) struct Readback {
    thread: JoinHandle<Arrival>,
}

/// Values and the time of their arrival.
type Arrival = (Result<Vec<TensorData>, ExecutionError>, Instant);

impl Readback {
    /// Requests tensors of one device, in order. Returns once the reading thread runs, which is before
    /// its request: if the caller submits more work first, the values come after that work.
    ///
    /// # Errors
    /// [`ModelError::Device`] if no thread can be started.
    pub(super) fn request(tensors: Vec<Tensor<1>>) -> Result<Self, ModelError> {
        if tensors.iter().all(|tensor| is_remote(&tensor.device())) {
            let reads: Vec<_> = tensors.into_iter().map(RemoteRead::request).collect();
            return Self::spawn(move || {
                let values = reads.into_iter().map(RemoteRead::wait).collect();
                (values, Instant::now())
            });
        }
        let stream = StreamId::current();
        let (begun, has_begun) = mpsc::channel();
        let read = move || {
            // The receiver is still waiting.
            let _ = begun.send(());
            let read = || {
                let all = Transaction::default();
                let all = tensors.into_iter().fold(all, Transaction::register);
                all.try_execute()
            };
            (stream.executes(read), Instant::now())
        };
        let reading = Self::spawn(read)?;
        // An error means that the thread has ended, which `wait` reports.
        let _ = has_begun.recv();
        Ok(reading)
    }

    fn spawn(read: impl FnOnce() -> Arrival + Send + 'static) -> Result<Self, ModelError> {
        let thread = thread::Builder::new().name("readback".into()).spawn(read);
        let thread = thread.map_err(|error| failed(format!("no thread to read with: {error}")))?;
        Ok(Self { thread })
    }

    /// Waits for the values, which come with the time of their arrival.
    ///
    /// # Errors
    /// [`ModelError::Device`] if an operation that they depend on failed.
    pub(super) fn wait(self) -> Result<(Vec<Vec<f32>>, Instant), ModelError> {
        let Ok((values, at)) = self.thread.join() else {
            return Err(failed("reading results from it panicked".into()));
        };
        let values = values.map_err(|error| ModelError::device(&error))?;
        if let Some(reason) = batchlora::product_failure() {
            return Err(failed(reason));
        }
        let values = values.into_iter().map(|data| {
            let values = data.convert::<f32>().try_into_vec();
            values.map_err(|error| ModelError::device(&error))
        });
        Ok((values.collect::<Result<_, _>>()?, at))
    }
}

type Data = Result<TensorData, ExecutionError>;

/// A read from another machine.
///
/// Burn's remote backend sends the request in a read's first poll and waits in later ones. So the
/// thread that submits makes the first poll before it submits more: requested later, the values would
/// come after all of that work.
enum RemoteRead {
    Ready(Data),
    Pending(Pin<Box<dyn Future<Output = Data> + Send>>),
}

/// Wakes a thread that waits for a future.
struct Waiter(Thread);

impl Wake for Waiter {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl RemoteRead {
    /// Sends the request without waiting.
    fn request(tensor: Tensor<1>) -> Self {
        let mut pending = Box::pin(tensor.into_data_async());
        let mut context = Context::from_waker(Waker::noop());
        match pending.as_mut().poll(&mut context) {
            Poll::Ready(data) => Self::Ready(data),
            Poll::Pending => Self::Pending(pending),
        }
    }

    fn wait(self) -> Data {
        let mut pending = match self {
            Self::Ready(data) => return data,
            Self::Pending(pending) => pending,
        };
        let waker = Waker::from(Arc::new(Waiter(thread::current())));
        let mut context = Context::from_waker(&waker);
        loop {
            if let Poll::Ready(data) = pending.as_mut().poll(&mut context) {
                return data;
            }
            thread::park();
        }
    }
}

fn failed(reason: String) -> ModelError {
    ModelError::Device { reason }
}

#[cfg(test)]
mod tests {
    use std::{
        task::Poll,
        thread,
        time::{Duration, Instant},
    };

    use burn::tensor::{Device, Tensor, TensorData};

    use super::{Readback, RemoteRead};

    #[test]
    fn values_are_those_of_the_request_in_its_order() {
        let device = Device::flex();
        let first = Tensor::<1>::from_data([1f32, -2.0, 3.5], &device);
        let second = Tensor::<1>::from_data([7f32], &device);
        let pending = Readback::request(vec![first.clone() * 2.0, second]).expect("a thread");
        let later = Readback::request(vec![first.powi_scalar(2)]).expect("a thread");
        let (values, _) = pending.wait().expect("the values");
        assert_eq!(values, [vec![2.0, -4.0, 7.0], vec![7.0]]);
        assert_eq!(later.wait().expect("the values").0, [[1.0, 4.0, 12.25]]);
    }

    #[test]
    fn values_that_come_later_are_waited_for() {
        let tensor = Tensor::<1>::from_data([4f32, 2.0], &Device::flex());
        let data = RemoteRead::request(tensor).wait().expect("the values");
        assert_eq!(data.try_into_vec::<f32>().expect("floats"), [4.0, 2.0]);

        let ready = Instant::now() + Duration::from_millis(30);
        let late = std::future::poll_fn(move |context| {
            if Instant::now() >= ready {
                return Poll::Ready(Ok(TensorData::new(vec![1f32], [1])));
            }
            let waker = context.waker().clone();
            thread::spawn(move || {
                thread::sleep(Duration::from_millis(10));
                waker.wake();
            });
            Poll::Pending
        });
        assert!(RemoteRead::Pending(Box::pin(late)).wait().is_ok());
        assert!(Instant::now() >= ready);
    }
}

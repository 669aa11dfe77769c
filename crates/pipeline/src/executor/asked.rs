//! Reads from another machine, asked for in order with everything else.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
};

use burn::tensor::{ExecutionError, Tensor, TensorData};

type Data = Result<TensorData, ExecutionError>;

/// A tensor's values that were asked for.
///
/// Burn's remote backend asks in a read's first poll, and waits in later ones. So the first is made by
/// the thread that submits, before it submits more: asked for later, values would come when all of
/// that is computed.
pub(super) enum Asked {
    There(Data),
    Coming(Pin<Box<dyn Future<Output = Data> + Send>>),
}

impl fmt::Debug for Asked {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Asked").finish_non_exhaustive()
    }
}

/// Wakes a thread that waits for a future.
struct Waiter(Thread);

impl Wake for Waiter {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl Asked {
    /// Asks, and does not wait.
    pub(super) fn begin(tensor: Tensor<1>) -> Self {
        let mut coming = Box::pin(tensor.into_data_async());
        match coming
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
        {
            Poll::Ready(data) => Self::There(data),
            Poll::Pending => Self::Coming(coming),
        }
    }

    /// Waits.
    pub(super) fn end(self) -> Data {
        let mut coming = match self {
            Self::There(data) => return data,
            Self::Coming(coming) => coming,
        };
        let waker = Waker::from(Arc::new(Waiter(thread::current())));
        let mut context = Context::from_waker(&waker);
        loop {
            if let Poll::Ready(data) = coming.as_mut().poll(&mut context) {
                return data;
            }
            thread::park();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        task::Poll,
        thread,
        time::{Duration, Instant},
    };

    use burn::tensor::{Device, Tensor, TensorData};

    use super::Asked;

    #[test]
    fn what_comes_later_is_waited_for() {
        let tensor = Tensor::<1>::from_data([4f32, 2.0], &Device::flex());
        let data = Asked::begin(tensor).end().expect("the values");
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
        assert!(Asked::Coming(Box::pin(late)).end().is_ok());
        assert!(Instant::now() >= ready);
    }
}

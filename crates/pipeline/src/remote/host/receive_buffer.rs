use std::{
    collections::{HashMap, VecDeque},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use burn::tensor::Tensor;

use crate::{Tag, executor::now};

/// Interval at which a waiting pass checks whether its controller is still there.
const LOOK: Duration = Duration::from_millis(100);

/// Tensors of other stages, until a pass takes them.
///
/// A tensor could instead be moved from the queue that it arrived on to the one that computes. But the
/// move would be requested with the pass, behind all requests made until then, and would wait for all
/// of them. So a tensor is put here as soon as it arrives.
#[derive(Default)]
pub(super) struct ReceiveBuffer {
    received: Mutex<Received>,
    came: Condvar,
}

#[derive(Default)]
struct Received {
    /// With their times of arrival, on this process's clock.
    there: HashMap<Tag, VecDeque<(Tensor<2>, f64)>>,
    /// An expected tensor did not arrive.
    broken: bool,
}

impl ReceiveBuffer {
    fn received(&self) -> MutexGuard<'_, Received> {
        // No panic leaves the tensors half changed.
        self.received.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a tensor that has arrived.
    pub(super) fn put(&self, tag: Tag, tensor: Tensor<2>) {
        let mut received = self.received();
        let of_kind = received.there.entry(tag).or_default();
        of_kind.push_back((tensor, now()));
        self.came.notify_all();
    }

    /// Ends all waits: a tensor will not arrive.
    pub(super) fn fail(&self) {
        self.received().broken = true;
        self.came.notify_all();
    }

    /// True if a tensor did not arrive.
    pub(super) fn is_broken(&self) -> bool {
        self.received().broken
    }

    /// Waits for a tensor; `None` if it will not arrive, or `wanted` has become false.
    pub(super) fn take(&self, tag: Tag, wanted: impl Fn() -> bool) -> Option<(Tensor<2>, f64)> {
        let mut received = self.received();
        loop {
            if let Some(found) = received.there.get_mut(&tag).and_then(VecDeque::pop_front) {
                return Some(found);
            }
            if received.broken || !wanted() {
                return None;
            }
            let waited = self.came.wait_timeout(received, LOOK);
            received = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Drops the tensors of an earlier stage.
    pub(super) fn clear(&self) {
        *self.received() = Received::default();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicBool, Ordering},
        thread,
        time::Duration,
    };

    use burn::tensor::{Device, Tensor};

    use super::ReceiveBuffer;
    use crate::Tag;

    #[test]
    fn a_tensor_is_waited_for_and_taken_once() {
        let buffer = ReceiveBuffer::default();
        let number = |value: f32| Tensor::<2>::from_data([[value]], &Device::flex());
        thread::scope(|scope| {
            let taken = scope.spawn(|| buffer.take(Tag::Squares(1), || true));
            buffer.put(Tag::Squares(0), number(1.0));
            thread::sleep(Duration::from_millis(20));
            buffer.put(Tag::Squares(1), number(2.0));
            buffer.put(Tag::Squares(1), number(3.0));
            let (tensor, _) = taken.join().expect("no panic").expect("it has come");
            assert!((tensor.into_scalar::<f32>() - 2.0).abs() < 1e-6);
        });
        let (tensor, _) = buffer.take(Tag::Squares(1), || true).expect("the next");
        assert!((tensor.into_scalar::<f32>() - 3.0).abs() < 1e-6);
        assert!(buffer.take(Tag::Squares(1), || false).is_none());
    }

    #[test]
    fn nobody_waits_for_what_does_not_come() {
        let buffer = ReceiveBuffer::default();
        let wanted = AtomicBool::new(true);
        thread::scope(|scope| {
            let wait = |group| {
                let wanted = || wanted.load(Ordering::Relaxed);
                buffer.take(Tag::SquaresAbove(group), wanted).is_none()
            };
            let given_up = scope.spawn(move || wait(0));
            wanted.store(false, Ordering::Relaxed);
            assert!(given_up.join().expect("no panic"));
            wanted.store(true, Ordering::Relaxed);
            let broken = scope.spawn(move || wait(1));
            buffer.fail();
            assert!(broken.join().expect("no panic"));
        });
        assert!(buffer.is_broken());
        buffer.clear();
        assert!(!buffer.is_broken());
    }
}

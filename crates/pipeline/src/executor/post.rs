//! Tensors on their way between stages.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        mpsc::{Receiver, Sender, TryRecvError, channel},
    },
};

use burn::tensor::{Device, Tensor};

use crate::{
    Delivery, Parcel, PipelineError, TrainStage,
    crossing::{Crossing, Taken},
};

/// A tensor for a stage; `None` tells it that another stage failed, and that nothing more will come.
type Letter = Option<(Parcel, Crossing)>;

/// What other stages sent to this one.
#[derive(Debug)]
pub(super) struct Inbox {
    stage: usize,
    receiver: Receiver<Letter>,
    arrived: HashMap<Parcel, Crossing>,
    /// Whether another thread may be about to send.
    waits: bool,
}

/// The way to all stages.
#[derive(Debug, Clone)]
pub(super) struct Outbox {
    boxes: Vec<Addressee>,
}

/// A stage as others see it.
#[derive(Debug, Clone)]
struct Addressee {
    letters: Sender<Letter>,
    device: Device,
    /// Where it is in another process.
    delivery: Option<Arc<dyn Delivery>>,
}

/// A box for every stage. Without `waits` a letter must
/// have been sent before it is taken.
pub(super) fn boxes<S: TrainStage>(stages: &[S], waits: bool) -> (Vec<Inbox>, Outbox) {
    let (mut inboxes, mut boxes) = (Vec::new(), Vec::new());
    for (stage, taker) in stages.iter().enumerate() {
        let (sender, receiver) = channel();
        boxes.push(Addressee {
            letters: sender,
            device: taker.device(),
            delivery: taker.delivery(),
        });
        inboxes.push(Inbox {
            stage,
            receiver,
            arrived: HashMap::new(),
            waits,
        });
    }
    (inboxes, Outbox { boxes })
}

impl Inbox {
    /// The tensor, once it is there, unless it was delivered to where the stage is; with when it was,
    /// if it came from another process to this one.
    ///
    /// # Errors
    /// [`PipelineError::Stopped`] if another stage failed; or why the tensor cannot be had.
    pub(super) fn take(&mut self, parcel: Parcel) -> Result<Taken, PipelineError> {
        let stage = self.stage;
        loop {
            if let Some(tensor) = self.arrived.remove(&parcel) {
                return tensor.end();
            }
            let letter = if self.waits {
                self.receiver.recv().map_err(|_| TryRecvError::Disconnected)
            } else {
                self.receiver.try_recv()
            };
            match letter {
                Ok(Some((parcel, tensor))) => {
                    self.arrived.insert(parcel, tensor);
                }
                Ok(None) | Err(TryRecvError::Disconnected) => {
                    return Err(PipelineError::Stopped { stage });
                }
                Err(TryRecvError::Empty) => {
                    let missing = format!("{parcel:?}");
                    return Err(PipelineError::NotSent { stage, missing });
                }
            }
        }
    }
}

impl Outbox {
    /// Starts a tensor on its way.
    ///
    /// # Errors
    /// If it cannot leave.
    pub(super) fn send(
        &self,
        stage: usize,
        parcel: Parcel,
        tensor: Tensor<2>,
    ) -> Result<(), PipelineError> {
        let to = &self.boxes[stage];
        let crossing = match &to.delivery {
            Some(delivery) => {
                delivery.deliver(parcel, tensor)?;
                Crossing::Delivered
            }
            None => Crossing::begin(tensor, &to.device)?,
        };
        self.post(stage, parcel, crossing);
        Ok(())
    }

    fn post(&self, stage: usize, parcel: Parcel, crossing: Crossing) {
        // Who has ended needs no letters; why it ended is told elsewhere.
        let _ = self.boxes[stage].letters.send(Some((parcel, crossing)));
    }

    /// Sends a tensor to every stage but this one, which goes on with it.
    ///
    /// # Errors
    /// If it cannot leave.
    pub(super) fn send_others(
        &self,
        stage: usize,
        parcel: Parcel,
        tensor: &Tensor<2>,
    ) -> Result<(), PipelineError> {
        let mut others = (0..self.boxes.len()).filter(|&other| other != stage);
        others.try_for_each(|other| {
            let to = &self.boxes[other];
            if to.delivery.is_some() {
                return self.send(other, parcel, tensor.clone());
            }
            let crossing = Crossing::begin_copy(tensor, &to.device)?;
            self.post(other, parcel, crossing);
            Ok(())
        })
    }

    /// Tells all stages not to wait any more.
    pub(super) fn stop(&self) {
        for stage in &self.boxes {
            let _ = stage.letters.send(None);
        }
    }
}

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
    PipelineError, RemoteInbox, Tag, TrainStage,
    transfer::{Taken, Transfer},
};

/// A tensor for a stage; `None` tells it that another stage failed, and that nothing more will come.
type Message = Option<(Tag, Transfer)>;

/// What other stages sent to this one.
#[derive(Debug)]
pub(super) struct Inbox {
    stage: usize,
    receiver: Receiver<Message>,
    arrived: HashMap<Tag, Transfer>,
    /// Whether another thread may be about to send.
    waits: bool,
}

/// The way to all stages.
#[derive(Debug, Clone)]
pub(super) struct Outbox {
    boxes: Vec<Destination>,
}

/// A stage as others see it.
#[derive(Debug, Clone)]
struct Destination {
    sender: Sender<Message>,
    device: Device,
    /// Where it is in another process.
    remote: Option<Arc<dyn RemoteInbox>>,
}

/// A box for every stage. Without `waits` a message must have been sent before it is taken.
pub(super) fn boxes<S: TrainStage>(stages: &[S], waits: bool) -> (Vec<Inbox>, Outbox) {
    let (mut inboxes, mut boxes) = (Vec::new(), Vec::new());
    for (stage, taker) in stages.iter().enumerate() {
        let (sender, receiver) = channel();
        boxes.push(Destination {
            sender,
            device: taker.device(),
            remote: taker.remote_inbox(),
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
    pub(super) fn take(&mut self, tag: Tag) -> Result<Taken, PipelineError> {
        let stage = self.stage;
        loop {
            if let Some(tensor) = self.arrived.remove(&tag) {
                return tensor.end();
            }
            let message = if self.waits {
                self.receiver.recv().map_err(|_| TryRecvError::Disconnected)
            } else {
                self.receiver.try_recv()
            };
            match message {
                Ok(Some((tag, tensor))) => {
                    self.arrived.insert(tag, tensor);
                }
                Ok(None) | Err(TryRecvError::Disconnected) => {
                    return Err(PipelineError::Stopped { stage });
                }
                Err(TryRecvError::Empty) => {
                    let missing = format!("{tag:?}");
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
        tag: Tag,
        tensor: Tensor<2>,
    ) -> Result<(), PipelineError> {
        let to = &self.boxes[stage];
        let transfer = match &to.remote {
            Some(remote) => {
                remote.send(tag, tensor)?;
                Transfer::Delivered
            }
            None => Transfer::begin(tensor, &to.device)?,
        };
        self.post(stage, tag, transfer);
        Ok(())
    }

    fn post(&self, stage: usize, tag: Tag, transfer: Transfer) {
        // A stage that has ended takes no messages; its own result says why it ended.
        let _ = self.boxes[stage].sender.send(Some((tag, transfer)));
    }

    /// Sends a tensor to every stage but this one, which goes on with it.
    ///
    /// # Errors
    /// If it cannot leave.
    pub(super) fn send_others(
        &self,
        stage: usize,
        tag: Tag,
        tensor: &Tensor<2>,
    ) -> Result<(), PipelineError> {
        let mut others = (0..self.boxes.len()).filter(|&other| other != stage);
        others.try_for_each(|other| {
            let to = &self.boxes[other];
            if to.remote.is_some() {
                return self.send(other, tag, tensor.clone());
            }
            let transfer = Transfer::begin_copy(tensor, &to.device)?;
            self.post(other, tag, transfer);
            Ok(())
        })
    }

    /// Tells all stages not to wait any more.
    pub(super) fn stop(&self) {
        for stage in &self.boxes {
            let _ = stage.sender.send(None);
        }
    }
}

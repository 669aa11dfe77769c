//! Messages between stages.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc,
        mpsc::{Receiver, Sender, TryRecvError, channel},
    },
    thread::{self, JoinHandle},
};

use burn::tensor::{Device, StreamId, Tensor, TensorData};
use loraloom_model::{ModelError, causes};
use serde::{Deserialize, Serialize};

use super::times::now;
use crate::{MicrobatchId, PipelineError, TrainStage};

/// The content of a message to a stage. A group's iterations follow each other, so no two messages with
/// the same tag are under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Tag {
    /// Output of the stage below.
    Hidden(MicrobatchId),
    /// Gradient of the receiver's output.
    Gradient(MicrobatchId),
    /// Squares of a group's gradients at the stages above.
    SquaresAbove(usize),
    /// Squares of a group's gradients at all stages.
    Squares(usize),
}

/// Sends tensors to a stage in another process, which keeps each until a pass takes it.
pub trait RemoteInbox: fmt::Debug + Send + Sync {
    /// Starts the transfer of a tensor.
    ///
    /// # Errors
    /// If the stage is lost.
    fn send(&self, tag: Tag, tensor: Tensor<2>) -> Result<(), PipelineError>;
}

/// A tensor for a stage; `None` says that another stage failed, and that no further message comes.
type Message = Option<(Tag, Transfer)>;

/// Messages of other stages to this one.
#[derive(Debug)]
pub(super) struct Inbox {
    stage: usize,
    receiver: Receiver<Message>,
    arrived: HashMap<Tag, Transfer>,
    /// True if another thread may still send a missing message.
    waits: bool,
}

/// Sends messages to all stages.
#[derive(Debug, Clone)]
pub(super) struct Outbox {
    boxes: Vec<Destination>,
}

/// A stage as its senders see it.
#[derive(Debug, Clone)]
struct Destination {
    sender: Sender<Message>,
    device: Device,
    /// For a stage in another process.
    remote: Option<Arc<dyn RemoteInbox>>,
}

/// An inbox for every stage. Without `waits` a message must have been sent before it is taken.
pub(super) fn boxes<S: TrainStage + ?Sized>(
    stages: &[Box<S>],
    waits: bool,
) -> (Vec<Inbox>, Outbox) {
    let (mut inboxes, mut boxes) = (Vec::new(), Vec::new());
    for (stage, receiving) in stages.iter().enumerate() {
        let (sender, receiver) = channel();
        boxes.push(Destination {
            sender,
            device: receiving.device().clone(),
            remote: receiving.remote_inbox(),
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
    /// Waits for a tensor and takes it.
    ///
    /// # Errors
    /// [`PipelineError::Stopped`] if another stage failed, or the error of the transfer.
    pub(super) fn take(&mut self, tag: Tag) -> Result<Taken, PipelineError> {
        let stage = self.stage;
        loop {
            if let Some(transfer) = self.arrived.remove(&tag) {
                return transfer.end();
            }
            let message = if self.waits {
                self.receiver.recv().map_err(|_| TryRecvError::Disconnected)
            } else {
                self.receiver.try_recv()
            };
            match message {
                Ok(Some((tag, transfer))) => {
                    self.arrived.insert(tag, transfer);
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
    /// Sends a tensor to a stage.
    ///
    /// # Errors
    /// If the transfer cannot begin.
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
        // The receiver may have ended; its own result says why.
        let _ = self.boxes[stage].sender.send(Some((tag, transfer)));
    }

    /// Sends a tensor to every stage but `stage`, which goes on using it.
    ///
    /// # Errors
    /// If a transfer cannot begin.
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

    /// Tells all stages to stop waiting.
    pub(super) fn stop(&self) {
        for stage in &self.boxes {
            let _ = stage.sender.send(None);
        }
    }
}

/// A tensor under way to another device.
///
/// Burn queues a copy between devices that work asynchronously. A copy into this process, from
/// another machine or from a GPU to the CPU, waits for the values and panics if they never come; so
/// a thread of its own fetches them, and the sender goes on.
#[derive(Debug)]
pub(crate) enum Transfer {
    /// On the device, or queued there.
    Queued(Box<Tensor<2>>),
    /// Sent to a stage in another process.
    Delivered,
    /// Being fetched.
    Fetched {
        thread: JoinHandle<(Result<TensorData, String>, f64)>,
        device: Device,
    },
}

/// A tensor, unless it was sent to the stage's process, and the time of its arrival if it came from
/// another process to this one.
pub(crate) type Taken = (Option<Tensor<2>>, Option<f64>);

impl Transfer {
    /// Begins to move a tensor to a device.
    ///
    /// # Errors
    /// If no thread can be started.
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

    /// Begins to copy a tensor that stays in use here.
    ///
    /// # Errors
    /// If no thread can be started.
    fn begin_copy(tensor: &Tensor<2>, device: &Device) -> Result<Self, PipelineError> {
        let mut copy = tensor.clone();
        if waits(&copy, device) {
            // Burn drops the worker's tensor with whichever handle of this process it takes for the
            // last, so two threads must not share one. A product with 1 is a copy, bit for bit.
            copy = copy.mul_scalar(1.0);
        }
        Self::begin(copy, device)
    }

    /// Waits for the tensor.
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

/// True if moving a tensor to a device waits for its values.
fn waits(tensor: &Tensor<2>, device: &Device) -> bool {
    let from = tensor.device();
    let into_memory = *device == Device::flex() || (is_remote(&from) && !is_remote(device));
    from != *device && into_memory
}

/// True if a device belongs to another process.
#[cfg(feature = "remote")]
pub(super) fn is_remote(device: &Device) -> bool {
    matches!(
        device.as_dispatch(),
        burn::backend::DispatchDevice::Remote(_)
    )
}

#[cfg(not(feature = "remote"))]
pub(super) fn is_remote(_: &Device) -> bool {
    false
}

fn failed(reason: String) -> PipelineError {
    ModelError::Device { reason }.into()
}

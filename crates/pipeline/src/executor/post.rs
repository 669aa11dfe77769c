//! Tensors on their way between stages.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        mpsc::{Receiver, Sender, TryRecvError, channel},
    },
};

use burn::tensor::{Device, Tensor};

use crate::{Arrivals, Passage, PipelineError, TrainStage, Way, crossing::Crossing};

/// What a tensor is to the stage that gets it. A group's steps follow each other, so that no two
/// letters under way are for the same thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Subject {
    /// Output of the stage below.
    Hidden(Passage),
    /// Gradient of the stage's own output.
    Gradient(Passage),
    /// Squares of a group's gradients at the stages above.
    SquaresAbove(usize),
    /// Squares of a group's gradients at all stages.
    Squares(usize),
}

impl Subject {
    fn way(self) -> Way {
        match self {
            Self::Hidden(_) => Way::Hidden,
            Self::Gradient(_) => Way::Gradient,
            Self::SquaresAbove(_) | Self::Squares(_) => Way::Squares,
        }
    }
}

/// A tensor for a stage; `None` tells it that another stage failed, and that nothing more will come.
type Letter = Option<(Subject, Crossing)>;

/// What other stages sent to this one.
#[derive(Debug)]
pub(super) struct Inbox {
    stage: usize,
    receiver: Receiver<Letter>,
    arrived: HashMap<Subject, Crossing>,
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
    /// Where it takes what comes to it, by way.
    entrances: [Device; 3],
    arrivals: Option<Arc<dyn Arrivals>>,
}

/// A box for every stage, at whose entrances its letters arrive. Without `waits` a letter must
/// have been sent before it is taken.
pub(super) fn boxes<S: TrainStage>(stages: &[S], waits: bool) -> (Vec<Inbox>, Outbox) {
    let (mut inboxes, mut boxes) = (Vec::new(), Vec::new());
    for (stage, taker) in stages.iter().enumerate() {
        let (sender, receiver) = channel();
        boxes.push(Addressee {
            letters: sender,
            entrances: Way::ALL.map(|way| taker.entrance(way)),
            arrivals: taker.arrivals(),
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
    /// The tensor, once it is there; with when it was, if it came from another process to this one.
    ///
    /// # Errors
    /// [`PipelineError::Stopped`] if another stage failed; or why the tensor cannot be had.
    pub(super) fn take(
        &mut self,
        subject: Subject,
    ) -> Result<(Tensor<2>, Option<f64>), PipelineError> {
        let stage = self.stage;
        loop {
            if let Some(tensor) = self.arrived.remove(&subject) {
                return tensor.end();
            }
            let letter = if self.waits {
                self.receiver.recv().map_err(|_| TryRecvError::Disconnected)
            } else {
                self.receiver.try_recv()
            };
            match letter {
                Ok(Some((subject, tensor))) => {
                    self.arrived.insert(subject, tensor);
                }
                Ok(None) | Err(TryRecvError::Disconnected) => {
                    return Err(PipelineError::Stopped { stage });
                }
                Err(TryRecvError::Empty) => {
                    let missing = format!("{subject:?}");
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
        subject: Subject,
        tensor: Tensor<2>,
    ) -> Result<(), PipelineError> {
        let crossing = Crossing::begin(tensor, self.entrance(stage, subject))?;
        if let Subject::Hidden(at) | Subject::Gradient(at) = subject
            && let Some(arrivals) = &self.boxes[stage].arrivals
        {
            arrivals.expect(subject.way(), at)?;
        }
        self.post(stage, subject, crossing);
        Ok(())
    }

    fn entrance(&self, stage: usize, subject: Subject) -> &Device {
        &self.boxes[stage].entrances[subject.way() as usize]
    }

    fn post(&self, stage: usize, subject: Subject, crossing: Crossing) {
        // Who has ended needs no letters; why it ended is told elsewhere.
        let _ = self.boxes[stage].letters.send(Some((subject, crossing)));
    }

    /// Sends a tensor to every stage but this one, which goes on with it.
    ///
    /// # Errors
    /// If it cannot leave.
    pub(super) fn send_others(
        &self,
        stage: usize,
        subject: Subject,
        tensor: &Tensor<2>,
    ) -> Result<(), PipelineError> {
        let mut others = (0..self.boxes.len()).filter(|&other| other != stage);
        others.try_for_each(|other| {
            let crossing = Crossing::begin_copy(tensor, self.entrance(other, subject))?;
            self.post(other, subject, crossing);
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

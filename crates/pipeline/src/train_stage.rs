use std::sync::Arc;

use batchlora::SlotUpdate;
use burn::tensor::{Device, Tensor};

use crate::{Measurement, Microbatch, MicrobatchId, PipelineError, RemoteInbox};

/// What came out of a forward pass.
#[derive(Debug)]
pub struct Forwarded {
    /// Hidden states for the stage above, `[rows, d_model]`; `None` from the last stage.
    pub hidden: Option<Tensor<2>>,
    /// Cross-entropy of every target in nats, `[targets]`, from the last stage.
    pub losses: Option<Tensor<1>>,
}

/// What the executor asks of a stage, wherever its layers are. A stage keeps what a micro-batch's
/// backward pass needs from its forward pass on, and a group's gradients until its optimizer step.
///
/// Tensors that go in are on the stage's [`device`](Self::device), or were
/// [delivered](Self::remote_inbox) to where the stage is; those that come out may be still to be computed.
pub trait TrainStage: Send {
    /// What the stage computes on.
    fn device(&self) -> Device;

    /// Whether a pass is over when its call returns, so that its time can be taken from outside.
    fn computes_in_call(&self) -> bool;

    /// Whether the stage may be given a thread of its own. Not where a device orders work, and what
    /// becomes of a tensor, by the thread that submits it.
    fn may_have_thread(&self) -> bool {
        true
    }

    /// Where the stage is in another process and measures itself: what it will have measured of a
    /// group's step of so many micro-batches. Asked once a step.
    ///
    /// # Errors
    /// If the stage is lost.
    fn measurement(
        &mut self,
        group: usize,
        microbatches: usize,
    ) -> Result<Option<Measurement>, PipelineError> {
        let _ = (group, microbatches);
        Ok(None)
    }

    /// Where the stage is in another process: the way to it. What is sent by it is not given to the
    /// passes that take it.
    fn remote_inbox(&self) -> Option<Arc<dyn RemoteInbox>> {
        None
    }

    /// A micro-batch through the stage's layers. The first stage embeds the tokens itself, the last
    /// one goes on to the losses and their gradient.
    ///
    /// # Errors
    /// If the micro-batch does not fit the stage, or the stage is lost.
    fn forward(
        &mut self,
        at: MicrobatchId,
        microbatch: &Microbatch,
        hidden: Option<Tensor<2>>,
    ) -> Result<Forwarded, PipelineError>;

    /// The gradient `[rows, d_model]` of a micro-batch's hidden states back through the layers; the
    /// last stage has it already. Returns the gradient for the stage below, `None` from the first.
    /// The adapters' gradients are added to those of the group's micro-batches before.
    ///
    /// # Errors
    /// If there is no such micro-batch under way, or the stage is lost.
    fn backward(
        &mut self,
        at: MicrobatchId,
        gradient: Option<Tensor<2>>,
    ) -> Result<Option<Tensor<2>>, PipelineError>;

    /// The squares of a group's gradients, by slot, on top of those of the stages above; see
    /// [`GradientNorms::into_sums`](batchlora::GradientNorms::into_sums).
    ///
    /// # Errors
    /// If there is no such group, or the stage is lost.
    fn add_squares(
        &mut self,
        group: usize,
        above: Option<Tensor<2>>,
    ) -> Result<Tensor<2>, PipelineError>;

    /// The optimizer step of a group with the squares of all stages, unless they were delivered.
    /// Returns the squared norm of each slot's gradient, `[slots]`. Slots without an update keep
    /// their gradients, and later backward passes add to them.
    ///
    /// # Errors
    /// If there is no such group, or the stage is lost.
    fn update(
        &mut self,
        group: usize,
        updates: &[Option<SlotUpdate>],
        squares: Option<Tensor<2>>,
    ) -> Result<Tensor<1>, PipelineError>;
}

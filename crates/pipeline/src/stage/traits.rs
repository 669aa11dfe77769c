use std::{fmt, sync::Arc};

use batchlora::{Segments, SlotUpdate};
use burn::tensor::{Device, Tensor};
use loraloom_model::{LayerAdapter, LayerCache, LlamaConfig, Projection};

#[cfg(feature = "remote")]
use crate::remote::RemoteCache;
use crate::{
    MemoryGauge, Microbatch, MicrobatchId, PendingTimes, PipelineError, RemoteInbox, StageLayers,
};

/// Result of a forward pass.
#[derive(Debug)]
pub struct Forwarded {
    /// Hidden states for the stage above, `[rows, d_model]`; `None` from the last stage.
    pub hidden: Option<Tensor<2>>,
    /// Cross-entropy of every target in nats, `[targets]`, from the last stage.
    pub losses: Option<Tensor<1>>,
}

/// The operations of a stage that the [executor](crate::executor) calls. Between a micro-batch's
/// forward and backward pass the stage keeps its activations, and until a group's optimizer step the
/// group's gradients.
///
/// Input tensors are on the stage's [`device`](Self::device), or were [sent](Self::remote_inbox) to
/// its process before. Output tensors may not be computed yet.
pub trait TrainStage: Send {
    /// The device that the stage computes on.
    fn device(&self) -> &Device;

    /// True if a pass has ended when its call returns, so that the caller can time it.
    fn computes_in_call(&self) -> bool;

    /// True if another thread than the caller's may run the stage. `false` where a device orders work
    /// and frees tensors by the thread that submits.
    fn may_have_thread(&self) -> bool {
        true
    }

    /// For a stage in another process: the times that it measures for a group's step of `microbatches` micro-batches.
    /// Called once a step.
    ///
    /// # Errors
    /// If the stage is lost.
    fn measurement(
        &mut self,
        group: usize,
        microbatches: usize,
    ) -> Result<Option<PendingTimes>, PipelineError> {
        let _ = (group, microbatches);
        Ok(None)
    }

    /// For a stage in another process: the inbox for its tensors. Passes that use a tensor sent there are called
    /// without it.
    fn remote_inbox(&self) -> Option<Arc<dyn RemoteInbox>> {
        None
    }

    /// Runs a micro-batch through the stage's layers. The first stage embeds the tokens, the last one
    /// computes the losses and their gradient as well.
    ///
    /// # Errors
    /// If the micro-batch does not fit the stage, or the stage is lost.
    fn forward(
        &mut self,
        at: MicrobatchId,
        microbatch: &Microbatch,
        hidden: Option<Tensor<2>>,
    ) -> Result<Forwarded, PipelineError>;

    /// Propagates the gradient `[rows, d_model]` of a micro-batch's hidden states back through the
    /// layers; the last stage has it from its forward pass. Returns the gradient for the stage below,
    /// `None` from the first. The adapters' gradients are added to those of the group's earlier
    /// micro-batches.
    ///
    /// # Errors
    /// If no forward pass of this micro-batch came before, or the stage is lost.
    fn backward(
        &mut self,
        at: MicrobatchId,
        gradient: Option<Tensor<2>>,
    ) -> Result<Option<Tensor<2>>, PipelineError>;

    /// Adds the squares of a group's gradients, by slot, to those of the stages above; see
    /// [`GradientNorms::into_sums`](batchlora::GradientNorms::into_sums).
    ///
    /// # Errors
    /// If there is no such group, or the stage is lost.
    fn add_squares(
        &mut self,
        group: usize,
        above: Option<Tensor<2>>,
    ) -> Result<Tensor<2>, PipelineError>;

    /// Takes a group's optimizer step, given the squares of all stages unless they were sent before.
    /// Returns the squared norm of each slot's gradient, `[slots]`. A slot without an update keeps its
    /// gradient, and later backward passes add to it.
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

/// A stage of a [`Pipeline`](crate::Pipeline), in this process or on a worker: it also holds adapters
/// in groups, and infers.
pub trait PipelineStage: TrainStage + fmt::Debug {
    /// The decoder layers of the stage.
    fn layers(&self) -> &StageLayers;

    /// The configuration of the whole model.
    fn config(&self) -> &LlamaConfig;

    /// Name of the device, or address of the worker.
    fn name(&self) -> String;

    /// Bytes of the frozen weights in memory.
    fn weight_bytes(&self) -> u64;

    /// Name of the library that multiplies the stage's matrices.
    fn products(&self) -> String;

    /// Measures the memory of the stage's device.
    fn gauge(&self) -> MemoryGauge;

    /// Another stage with the same weights, which are not copied, and without groups; `None` if the stage is in another
    /// process.
    fn twin(&self) -> Option<Box<dyn PipelineStage>> {
        None
    }

    /// For a stage in another process: the error of stages there, if one of them cannot continue.
    fn failure(&self) -> Option<PipelineError> {
        None
    }

    /// Fails passes in which this process has more than `bytes` allocated, without `aside` bytes, on the
    /// CPU of this process. Elsewhere the driver reports that memory has run out.
    fn limit_memory(&mut self, bytes: Option<u64>, aside: u64) {
        let _ = (bytes, aside);
    }

    /// Drops the passes that are under way and all gradients. `false` if the stage cannot.
    fn abandon(&mut self) -> bool {
        false
    }

    /// Adds empty groups until there are `count`.
    ///
    /// # Errors
    /// If the stage is lost.
    fn reserve_groups(&mut self, count: usize) -> Result<(), PipelineError>;

    /// Exchanges the adapters of two groups and their gradients.
    ///
    /// # Errors
    /// If there is no such group, or the stage is lost.
    fn swap_groups(&mut self, first: usize, second: usize) -> Result<(), PipelineError>;

    /// Adds an adapter, given by the layers that the group has on this stage, and returns its slot.
    /// Drops the group's gradients, which no longer fit its slots.
    ///
    /// # Errors
    /// If there is no such group, a part of the adapter does not fit its layer, or the stage is lost.
    fn push(&mut self, group: usize, adapter: Vec<LayerAdapter>) -> Result<usize, PipelineError>;

    /// Takes an adapter out; later slots of its group move down by one. Drops the group's gradients.
    ///
    /// # Errors
    /// If there is no such group or slot, or the stage is lost.
    fn remove(&mut self, group: usize, slot: usize) -> Result<Vec<LayerAdapter>, PipelineError>;

    /// Copies an adapter, by the layers that its group has on this stage.
    ///
    /// # Errors
    /// If there is no such group or slot, or the stage is lost.
    fn extract(&self, group: usize, slot: usize) -> Result<Vec<LayerAdapter>, PipelineError>;

    /// An empty cache of so many [blocks](loraloom_model::BLOCK_TOKENS) for [`infer`](Self::infer).
    fn cache(&self, blocks: usize) -> StageCache;

    /// Runs a micro-batch forward without keeping activations. `hidden` is `None` for the first stage.
    /// With a cache, of this stage, the micro-batch continues the sequences in it, as
    /// [`Microbatch::cached`] says.
    ///
    /// # Errors
    /// If there is no such group, a segment names a slot that does not exist, a token has no block in the cache, or the
    /// stage is lost.
    fn infer(
        &self,
        group: usize,
        microbatch: &Microbatch,
        hidden: Option<Tensor<2>>,
        cache: Option<&mut StageCache>,
    ) -> Result<Tensor<2>, PipelineError>;

    /// As [`infer`](Self::infer) without a cache. `see` is called with the model's layer and the input of each
    /// projection, `[rows, width]`, also of the output projection.
    ///
    /// # Errors
    /// As [`infer`](Self::infer)'s, or [`PipelineError::NotHere`] if the stage is in another process.
    fn observe(
        &self,
        group: usize,
        microbatch: &Microbatch,
        hidden: Option<Tensor<2>>,
        see: &mut dyn FnMut(usize, Projection, &Tensor<2>),
    ) -> Result<Tensor<2>, PipelineError> {
        let _ = (group, microbatch, hidden, see);
        let (layers, part) = (self.layers().held(), "inputs of projections");
        Err(PipelineError::NotHere { layers, part })
    }

    /// The frozen weight of a projection of one of the stage's layers, `[d_in, d_out]`; `None` if it has none.
    fn weight(&self, layer: usize, projection: Projection) -> Option<Tensor<2>> {
        let _ = (layer, projection);
        None
    }

    /// Cross-entropy of all targets in nats, and 1 for each target that is the likeliest token or 0,
    /// `[2, targets]`, on the last stage.
    ///
    /// # Errors
    /// If the stage does not end the model, or is lost.
    fn target_scores(
        &self,
        group: usize,
        microbatch: &Microbatch,
        hidden: Tensor<2>,
    ) -> Result<Tensor<2>, PipelineError>;

    /// Logits `[rows, vocabulary]` of hidden states `[rows, d_model]`, on the last stage. `segments` assigns those
    /// rows to a group's slots.
    ///
    /// # Errors
    /// If the stage does not end the model, or is lost.
    fn logits(
        &self,
        group: usize,
        segments: &Segments,
        hidden: Tensor<2>,
    ) -> Result<Tensor<2>, PipelineError>;
}

/// Keys and values of a stage's layers, for sequences that are being continued.
#[derive(Debug)]
pub enum StageCache {
    /// In this process, one per layer that the stage holds.
    Local(Vec<LayerCache>),
    /// On a worker.
    #[cfg(feature = "remote")]
    Remote(RemoteCache),
}

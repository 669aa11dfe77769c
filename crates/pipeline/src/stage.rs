use std::ops::Range;

use batchlora::{AdamWStep, GradientNorms};
use burn::tensor::{Device, FloatDType, Tensor};
use loraloom_model::{
    Backbone, Checkpoint, LayerAdapter, LayerCache, LayerGradients, LlamaConfig, Targets,
};

use crate::{
    PipelineError, StageGradients, Tape,
    microbatch::PlacedMicrobatch,
    stage_adapters::StageAdapters,
    tape::{LayerTape, backward},
};

/// A contiguous part of the backbone on one device, with the adapters of all groups at its layers
/// and their optimizer state.
///
/// Every decoder layer has a graph of its own: its input is a leaf, the gradient from above enters
/// at its end, and what comes out at the leaf is handed to the layer below. With gradient
/// checkpointing a layer's graph is built in the backward pass only.
#[derive(Debug)]
pub struct Stage {
    config: LlamaConfig,
    backbone: Backbone,
    layers: Range<usize>,
    groups: Vec<StageAdapters>,
    device: Device,
    dtype: FloatDType,
    gradient_checkpointing: bool,
}

impl Stage {
    /// Reads decoder layers `layers` of a checkpoint onto a device.
    ///
    /// # Errors
    /// If the checkpoint does not hold what the configuration says.
    pub fn load(
        checkpoint: &Checkpoint,
        config: &LlamaConfig,
        layers: Range<usize>,
        dtype: FloatDType,
        device: &Device,
    ) -> Result<Self, PipelineError> {
        let backbone = Backbone::load(checkpoint, config, layers.clone(), dtype, device)?;
        Ok(Self::new(backbone, config, layers, (dtype, device)))
    }

    /// Decoder layers `layers` with random weights; see [`Backbone::random`].
    ///
    /// # Errors
    /// As [`load`](Self::load), of which nothing can happen here.
    pub fn random(
        config: &LlamaConfig,
        layers: Range<usize>,
        dtype: FloatDType,
        device: &Device,
    ) -> Result<Self, PipelineError> {
        let backbone = Backbone::random(config, layers.clone(), dtype, device)?;
        Ok(Self::new(backbone, config, layers, (dtype, device)))
    }

    fn new(
        backbone: Backbone,
        config: &LlamaConfig,
        layers: Range<usize>,
        (dtype, device): (FloatDType, &Device),
    ) -> Self {
        Self {
            config: config.clone(),
            backbone,
            layers,
            groups: Vec::new(),
            device: device.clone(),
            dtype,
            gradient_checkpointing: false,
        }
    }

    /// Keeps only the inputs of layers in the forward pass and computes the rest again in the
    /// backward pass.
    pub fn with_gradient_checkpointing(mut self, enabled: bool) -> Self {
        self.gradient_checkpointing = enabled;
        self
    }

    /// The device this stage computes on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// What this stage computes in.
    pub(crate) fn dtype(&self) -> FloatDType {
        self.dtype
    }

    /// Bytes of the frozen weights in memory.
    pub fn weight_bytes(&self) -> u64 {
        self.backbone.weight_bytes()
    }

    /// The decoder layers this stage holds.
    pub fn layers(&self) -> Range<usize> {
        self.layers.clone()
    }

    /// Whether the stage has the head.
    pub(crate) fn ends_model(&self) -> bool {
        self.backbone.head().is_some()
    }

    /// The configuration of the whole model.
    pub(crate) fn config(&self) -> &LlamaConfig {
        &self.config
    }

    fn group(&self, group: usize) -> Result<&StageAdapters, PipelineError> {
        let groups = self.groups.len();
        let found = self.groups.get(group);
        found.ok_or(PipelineError::NoSuchGroup { group, groups })
    }

    fn group_mut(&mut self, group: usize) -> Result<&mut StageAdapters, PipelineError> {
        let groups = self.groups.len();
        let found = self.groups.get_mut(group);
        found.ok_or(PipelineError::NoSuchGroup { group, groups })
    }

    /// Makes sure that there are groups 0 to `count`, without it; new ones are empty.
    pub(crate) fn reserve_groups(&mut self, count: usize) {
        while self.groups.len() < count {
            let (layers, device) = (self.layers.clone(), &self.device);
            let empty = StageAdapters::new(&self.config, layers, device);
            self.groups.push(empty);
        }
    }

    /// Exchanges the adapters of two groups.
    ///
    /// # Errors
    /// If there is no such group.
    pub(crate) fn swap_groups(&mut self, first: usize, second: usize) -> Result<(), PipelineError> {
        self.group(first)?;
        self.group(second)?;
        self.groups.swap(first, second);
        Ok(())
    }

    /// Adds an adapter to a group, given by this stage's layers in order, and returns its slot.
    ///
    /// # Errors
    /// If there is no such group, or a part of the adapter does not fit its layer.
    pub(crate) fn push(
        &mut self,
        group: usize,
        adapter: Vec<LayerAdapter>,
    ) -> Result<usize, PipelineError> {
        self.group_mut(group)?.push(adapter)
    }

    /// Takes an adapter out; later slots of its group move down by one.
    ///
    /// # Errors
    /// If there is no such group or slot.
    pub(crate) fn remove(
        &mut self,
        group: usize,
        slot: usize,
    ) -> Result<Vec<LayerAdapter>, PipelineError> {
        self.group_mut(group)?.remove(slot)
    }

    /// A copy of an adapter, by this stage's layers in order.
    ///
    /// # Errors
    /// If there is no such group or slot.
    pub(crate) fn extract(
        &self,
        group: usize,
        slot: usize,
    ) -> Result<Vec<LayerAdapter>, PipelineError> {
        self.group(group)?.extract(slot)
    }

    /// Embeds token ids: `[tokens, d_model]`.
    ///
    /// # Errors
    /// If the stage does not begin the model.
    pub(crate) fn embed(&self, ids: &[u32]) -> Result<Tensor<2>, PipelineError> {
        self.backbone
            .embed(ids)
            .ok_or_else(|| self.lacks("embedding"))
    }

    /// The layers over hidden states `[rows, d_model]`, and what backward needs of it.
    ///
    /// # Errors
    /// If a segment of the batch names a slot that does not exist.
    pub(crate) fn forward(
        &self,
        group: usize,
        hidden: Tensor<2>,
        microbatch: &PlacedMicrobatch,
    ) -> Result<(Tensor<2>, Tape), PipelineError> {
        let adapters = self.group(group)?;
        let begins_model = self.layers.start == 0;
        let mut hidden = hidden.without_autodiff();
        let mut tape = Tape { layers: Vec::new() };
        for (index, layer) in self.backbone.layers().iter().enumerate() {
            let lora = adapters.attach(index, microbatch)?;
            // Below the first adapter nothing asks for a gradient.
            let first_trained = tape.layers.is_empty() && begins_model;
            if first_trained && lora.is_base_only() {
                hidden = layer.forward(hidden, &microbatch.batch, &lora)?;
                continue;
            }
            let input = hidden.autodiff();
            let input = if first_trained {
                input
            } else {
                input.require_grad()
            };
            let lora = lora.require_grad();
            if self.gradient_checkpointing {
                let plain = input.clone().without_autodiff();
                let plain_lora = lora.clone().without_autodiff();
                hidden = layer.forward(plain, &microbatch.batch, &plain_lora)?;
                tape.layers.push(LayerTape {
                    input,
                    lora,
                    output: None,
                });
            } else {
                let output = layer.forward(input.clone(), &microbatch.batch, &lora)?;
                hidden = output.clone().without_autodiff();
                tape.layers.push(LayerTape {
                    input,
                    lora,
                    output: Some(output),
                });
            }
        }
        Ok((hidden, tape))
    }

    /// Walks the tape back from the gradient of the stage's output `[rows, d_model]`: the gradients
    /// of its adapters, and of its input unless the stage begins the model.
    ///
    /// # Errors
    /// If a layer that is computed again cannot be.
    pub(crate) fn backward(
        &self,
        tape: Tape,
        gradient: Tensor<2>,
        microbatch: &PlacedMicrobatch,
    ) -> Result<(StageGradients, Option<Tensor<2>>), PipelineError> {
        let mut layers = vec![LayerGradients::default(); self.layers.len()];
        let first = self.layers.len() - tape.layers.len();
        let mut gradient = Some(gradient);
        for (index, taped) in tape.layers.into_iter().enumerate().rev() {
            let Some(above) = gradient.take() else { break };
            let LayerTape {
                input,
                lora,
                output,
            } = taped;
            let layer = &self.backbone.layers()[first + index];
            let output = match output {
                Some(output) => output,
                None => layer.forward(input.clone(), &microbatch.batch, &lora)?,
            };
            let mut gradients = backward(output, above);
            layers[first + index] = lora.take_gradients(&mut gradients);
            gradient = input.grad_remove(&mut gradients);
        }
        Ok((StageGradients { layers }, gradient))
    }

    /// The layers over hidden states `[rows, d_model]` without keeping anything.
    ///
    /// # Errors
    /// If there is no such group, or a segment of the batch names a slot that does not exist.
    pub(crate) fn infer(
        &self,
        group: usize,
        mut hidden: Tensor<2>,
        microbatch: &PlacedMicrobatch,
    ) -> Result<Tensor<2>, PipelineError> {
        let adapters = self.group(group)?;
        for (index, layer) in self.backbone.layers().iter().enumerate() {
            let lora = adapters.attach(index, microbatch)?;
            hidden = layer.forward(hidden, &microbatch.batch, &lora)?;
        }
        Ok(hidden)
    }

    /// The layers over the next tokens of sequences whose past is in the caches, one per layer.
    ///
    /// # Errors
    /// As [`infer`](Self::infer).
    pub(crate) fn infer_cached(
        &self,
        group: usize,
        mut hidden: Tensor<2>,
        microbatch: &PlacedMicrobatch,
        caches: &mut [LayerCache],
    ) -> Result<Tensor<2>, PipelineError> {
        let adapters = self.group(group)?;
        let layers = self.backbone.layers().iter().zip(caches);
        for (index, (layer, cache)) in layers.enumerate() {
            let lora = adapters.attach(index, microbatch)?;
            hidden = layer.forward_cached(hidden, &microbatch.batch, &lora, cache)?;
        }
        Ok(hidden)
    }

    /// Losses of all targets and the gradient of the stage's output; see
    /// [`LanguageModelHead::loss`](loraloom_model::LanguageModelHead::loss).
    ///
    /// # Errors
    /// If the stage does not end the model.
    pub(crate) fn loss(
        &self,
        hidden: Tensor<2>,
        targets: &Targets,
    ) -> Result<(Tensor<1>, Tensor<2>), PipelineError> {
        let head = self.backbone.head().ok_or_else(|| self.lacks("head"))?;
        Ok(head.loss(hidden, targets))
    }

    /// Losses of all targets, without the gradient.
    ///
    /// # Errors
    /// If the stage does not end the model.
    pub(crate) fn target_losses(
        &self,
        hidden: Tensor<2>,
        targets: &Targets,
    ) -> Result<Tensor<1>, PipelineError> {
        let head = self.backbone.head().ok_or_else(|| self.lacks("head"))?;
        Ok(head.target_losses(hidden, targets))
    }

    /// Logits `[rows, vocabulary]` of hidden states `[rows, d_model]`.
    ///
    /// # Errors
    /// If the stage does not end the model.
    pub(crate) fn logits(&self, hidden: Tensor<2>) -> Result<Tensor<2>, PipelineError> {
        let head = self.backbone.head().ok_or_else(|| self.lacks("head"))?;
        Ok(head.logits(hidden))
    }

    /// Each slot's squared gradients on top of those of the stages above.
    ///
    /// # Errors
    /// If there is no such group.
    pub(crate) fn add_squares(
        &self,
        group: usize,
        above: Option<GradientNorms>,
        gradients: Option<&StageGradients>,
    ) -> Result<GradientNorms, PipelineError> {
        Ok(self.group(group)?.add_squares(above, gradients))
    }

    /// What is left of a group's gradients for later: those of slots that do not take this step.
    ///
    /// # Errors
    /// If there is no such group.
    pub(crate) fn keep(
        &self,
        group: usize,
        gradients: &StageGradients,
        kept: impl Fn(usize) -> bool + Copy,
    ) -> Result<StageGradients, PipelineError> {
        Ok(self.group(group)?.keep(gradients, kept))
    }

    /// Steps all adapters of a group at this stage.
    ///
    /// # Errors
    /// If there is no such group.
    pub(crate) fn step(
        &mut self,
        group: usize,
        gradients: StageGradients,
        step: &AdamWStep,
    ) -> Result<(), PipelineError> {
        self.group_mut(group)?.step(gradients, step);
        Ok(())
    }

    fn lacks(&self, part: &'static str) -> PipelineError {
        PipelineError::NotHere {
            first: self.layers.start,
            end: self.layers.end,
            part,
        }
    }
}

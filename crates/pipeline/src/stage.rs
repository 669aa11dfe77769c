use std::ops::Range;

use batchlora::{AdamWStep, GradientNorms};
use burn::tensor::{Device, FloatDType, Tensor};
use loraloom_model::{
    Backbone, Checkpoint, LayerAdapter, LayerBanks, LayerCache, LayerGradients, LlamaConfig,
    Projection, Targets,
};

use crate::{
    Microbatch, PipelineError, StageGradients, Tape,
    tape::{LayerTape, backward},
};

/// A contiguous part of the backbone on one device, with its layers' adapters and their optimizer
/// state.
///
/// Every decoder layer has a graph of its own: its input is a leaf, the gradient from above enters
/// at its end, and what comes out at the leaf is handed to the layer below. With gradient
/// checkpointing a layer's graph is built in the backward pass only.
#[derive(Debug)]
pub struct Stage {
    backbone: Backbone,
    layers: Range<usize>,
    banks: Vec<LayerBanks>,
    device: Device,
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
        Ok(Self::new(backbone, config, layers, device))
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
        Ok(Self::new(backbone, config, layers, device))
    }

    fn new(
        backbone: Backbone,
        config: &LlamaConfig,
        layers: Range<usize>,
        device: &Device,
    ) -> Self {
        let banks = layers
            .clone()
            .map(|layer| LayerBanks::new(config, layer, device))
            .collect();
        Self {
            backbone,
            layers,
            banks,
            device: device.clone(),
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

    /// The decoder layers this stage holds.
    pub fn layers(&self) -> Range<usize> {
        self.layers.clone()
    }

    /// Adds an adapter, given by this stage's layers in order, and returns its slot.
    ///
    /// # Errors
    /// If a part of it does not fit its layer.
    pub fn push(&mut self, adapter: Vec<LayerAdapter>) -> Result<usize, PipelineError> {
        let mut slot = 0;
        for (banks, part) in self.banks.iter_mut().zip(adapter) {
            slot = banks.push(part)?;
        }
        Ok(slot)
    }

    /// Takes an adapter out; later slots move down by one.
    ///
    /// # Errors
    /// If there is no such slot.
    pub fn remove(&mut self, slot: usize) -> Result<Vec<LayerAdapter>, PipelineError> {
        let parts = self.banks.iter_mut().map(|banks| banks.remove(slot));
        Ok(parts.collect::<Result<_, _>>()?)
    }

    /// A copy of an adapter, by this stage's layers in order.
    ///
    /// # Errors
    /// If there is no such slot.
    pub fn extract(&self, slot: usize) -> Result<Vec<LayerAdapter>, PipelineError> {
        let parts = self.banks.iter().map(|banks| banks.extract(slot));
        Ok(parts.collect::<Result<_, _>>()?)
    }

    /// Embeds token ids: `[tokens, d_model]`.
    ///
    /// # Errors
    /// If the stage does not begin the model.
    pub fn embed(&self, ids: &[u32]) -> Result<Tensor<2>, PipelineError> {
        self.backbone
            .embed(ids)
            .ok_or_else(|| self.lacks("embedding"))
    }

    /// The layers over hidden states `[rows, d_model]`, and what backward needs of it.
    ///
    /// # Errors
    /// If a segment of the batch names a slot that does not exist.
    pub fn forward(
        &self,
        hidden: Tensor<2>,
        microbatch: &Microbatch,
    ) -> Result<(Tensor<2>, Tape), PipelineError> {
        let begins_model = self.layers.start == 0;
        let mut hidden = hidden.without_autodiff();
        let mut tape = Tape { layers: Vec::new() };
        for (layer, banks) in self.backbone.layers().iter().zip(&self.banks) {
            let lora = banks.attach(&microbatch.segments, microbatch.draws.as_deref())?;
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
    pub fn backward(
        &self,
        tape: Tape,
        gradient: Tensor<2>,
        microbatch: &Microbatch,
    ) -> Result<(StageGradients, Option<Tensor<2>>), PipelineError> {
        let mut layers = vec![LayerGradients::default(); self.banks.len()];
        let first = self.banks.len() - tape.layers.len();
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
    /// If a segment of the batch names a slot that does not exist.
    pub fn infer(
        &self,
        hidden: Tensor<2>,
        microbatch: &Microbatch,
    ) -> Result<Tensor<2>, PipelineError> {
        let mut hidden = hidden;
        for (layer, banks) in self.backbone.layers().iter().zip(&self.banks) {
            let lora = banks.attach(&microbatch.segments, microbatch.draws.as_deref())?;
            hidden = layer.forward(hidden, &microbatch.batch, &lora)?;
        }
        Ok(hidden)
    }

    /// The layers over the next tokens of sequences whose past is in the caches, one per layer.
    ///
    /// # Errors
    /// If a segment of the batch names a slot that does not exist.
    pub fn infer_cached(
        &self,
        hidden: Tensor<2>,
        microbatch: &Microbatch,
        caches: &mut [LayerCache],
    ) -> Result<Tensor<2>, PipelineError> {
        let mut hidden = hidden;
        for ((layer, banks), cache) in self.backbone.layers().iter().zip(&self.banks).zip(caches) {
            let lora = banks.attach(&microbatch.segments, microbatch.draws.as_deref())?;
            hidden = layer.forward_cached(hidden, &microbatch.batch, &lora, cache)?;
        }
        Ok(hidden)
    }

    /// Losses of all targets and the gradient of the stage's output; see
    /// [`LanguageModelHead::loss`](loraloom_model::LanguageModelHead::loss).
    ///
    /// # Errors
    /// If the stage does not end the model.
    pub fn loss(
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
    pub fn target_losses(
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
    pub fn logits(&self, hidden: Tensor<2>) -> Result<Tensor<2>, PipelineError> {
        let head = self.backbone.head().ok_or_else(|| self.lacks("head"))?;
        Ok(head.logits(hidden))
    }

    /// This stage's share of each slot's squared gradient norm, `[slots]`; `None` if there is no
    /// gradient.
    pub fn squared_gradient_norms(&self, gradients: &StageGradients) -> Option<Tensor<1>> {
        let mut norms: Option<GradientNorms> = None;
        for (banks, layer) in self.banks.iter().zip(&gradients.layers) {
            for (projection, gradient) in Projection::ALL.into_iter().zip(&layer.0) {
                let Some(gradient) = gradient else { continue };
                let bank = banks.bank(projection);
                let before = norms
                    .take()
                    .unwrap_or_else(|| GradientNorms::new(bank.num_slots(), &self.device));
                norms = Some(before.add(bank, gradient));
            }
        }
        norms.map(GradientNorms::finish)
    }

    /// Steps all adapters of this stage.
    pub fn step(&mut self, gradients: StageGradients, step: &AdamWStep) {
        for (banks, layer) in self.banks.iter_mut().zip(gradients.layers) {
            for (projection, gradient) in Projection::ALL.into_iter().zip(layer.0) {
                if let Some(gradient) = gradient {
                    step.apply(banks.bank_mut(projection), gradient);
                }
            }
        }
    }

    fn lacks(&self, part: &'static str) -> PipelineError {
        PipelineError::NotHere {
            first: self.layers.start,
            end: self.layers.end,
            part,
        }
    }
}

mod groups;

use std::ops::Range;

use burn::tensor::{DType, Device, FloatDType, Tensor};
use loraloom_model::{
    Backbone, Checkpoint, DecoderLayer, LayerCache, LayerGradients, LlamaConfig, RotaryTables,
    Targets, cost::frozen_parameters,
};

use crate::{
    PipelineError, StageGradients, StageLayers, Tape, device_memory,
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
///
/// A group's passes run through the layers that the group has here, which may be fewer than the
/// stage holds: see [`StageLayers`].
#[derive(Debug)]
pub struct Stage {
    config: LlamaConfig,
    backbone: Backbone,
    layers: StageLayers,
    groups: Vec<StageAdapters>,
    device: Device,
    dtype: FloatDType,
    rotary: RotaryTables,
    gradient_checkpointing: bool,
}

impl Stage {
    /// Reads decoder layers `layers` of a checkpoint onto a device.
    ///
    /// # Errors
    /// If the checkpoint does not hold what the configuration says, or the device cannot hold it.
    pub fn load(
        checkpoint: &Checkpoint,
        config: &LlamaConfig,
        layers: impl Into<StageLayers>,
        dtype: FloatDType,
        device: &Device,
    ) -> Result<Self, PipelineError> {
        let layers = layers.into();
        check_room(config, &layers, dtype, device)?;
        let backbone = Backbone::load(checkpoint, config, layers.held(), dtype, device)?;
        Ok(Self::new(backbone, config, layers, (dtype, device)))
    }

    /// Decoder layers `layers` with random weights; see [`Backbone::random`].
    ///
    /// # Errors
    /// If the device cannot hold them.
    pub fn random(
        config: &LlamaConfig,
        layers: impl Into<StageLayers>,
        dtype: FloatDType,
        device: &Device,
    ) -> Result<Self, PipelineError> {
        let layers = layers.into();
        check_room(config, &layers, dtype, device)?;
        let backbone = Backbone::random(config, layers.held(), dtype, device)?;
        Ok(Self::new(backbone, config, layers, (dtype, device)))
    }

    fn new(
        backbone: Backbone,
        config: &LlamaConfig,
        layers: StageLayers,
        (dtype, device): (FloatDType, &Device),
    ) -> Self {
        Self {
            config: config.clone(),
            backbone,
            layers,
            groups: Vec::new(),
            device: device.clone(),
            dtype,
            rotary: RotaryTables::new(config, device),
            gradient_checkpointing: false,
        }
    }

    /// Keeps only the inputs of layers in the forward pass and computes the rest again in the
    /// backward pass.
    pub fn with_gradient_checkpointing(mut self, enabled: bool) -> Self {
        self.gradient_checkpointing = enabled;
        self
    }

    /// What batches gather the rotary tables of their tokens from.
    pub(crate) fn rotary(&self) -> &RotaryTables {
        &self.rotary
    }

    /// The device this stage computes on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The type this stage computes in.
    pub fn dtype(&self) -> FloatDType {
        self.dtype
    }

    /// Bytes of the frozen weights in memory.
    pub fn weight_bytes(&self) -> u64 {
        self.backbone.weight_bytes()
    }

    /// What multiplies its matrices, for people.
    pub fn products(&self) -> String {
        batchlora::products(&self.device)
    }

    /// The decoder layers this stage holds.
    pub fn layers(&self) -> Range<usize> {
        self.layers.held()
    }

    /// Which of them it runs for whom.
    pub(crate) fn layers_by_group(&self) -> &StageLayers {
        &self.layers
    }

    /// Where in this stage's layers those of a group are.
    fn within(&self, adapters: &StageAdapters) -> Range<usize> {
        let first = self.layers.held().start;
        let Range { start, end } = adapters.layers();
        start - first..end - first
    }

    fn decoder_layers(&self, adapters: &StageAdapters) -> &[DecoderLayer] {
        &self.backbone.layers()[self.within(adapters)]
    }

    /// Whether the stage has the head.
    pub(crate) fn ends_model(&self) -> bool {
        self.backbone.head().is_some()
    }

    /// The configuration of the whole model.
    pub(crate) fn config(&self) -> &LlamaConfig {
        &self.config
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
        let begins_model = adapters.layers().start == 0;
        let mut hidden = hidden.without_autodiff();
        let mut tape = Tape { layers: Vec::new() };
        for (index, layer) in self.decoder_layers(adapters).iter().enumerate() {
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

    /// Walks a group's tape back from the gradient of the stage's output `[rows, d_model]`: the
    /// gradients of its adapters, and of its input unless the stage begins the model.
    ///
    /// # Errors
    /// If there is no such group, or a layer that is computed again cannot be.
    pub(crate) fn backward(
        &self,
        group: usize,
        tape: Tape,
        gradient: Tensor<2>,
        microbatch: &PlacedMicrobatch,
    ) -> Result<(StageGradients, Option<Tensor<2>>), PipelineError> {
        let decoder_layers = self.decoder_layers(self.group(group)?);
        let mut layers = vec![LayerGradients::default(); decoder_layers.len()];
        let first = decoder_layers.len() - tape.layers.len();
        let mut gradient = Some(gradient);
        for (index, taped) in tape.layers.into_iter().enumerate().rev() {
            let Some(above) = gradient.take() else { break };
            let LayerTape {
                input,
                lora,
                output,
            } = taped;
            let layer = &decoder_layers[first + index];
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
        for (index, layer) in self.decoder_layers(adapters).iter().enumerate() {
            let lora = adapters.attach(index, microbatch)?;
            hidden = layer.forward(hidden, &microbatch.batch, &lora)?;
        }
        Ok(hidden)
    }

    /// The layers over the next tokens of sequences whose past is in the caches, one per layer that
    /// the stage holds.
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
        let caches = caches.iter_mut().skip(self.within(adapters).start);
        let layers = self.decoder_layers(adapters).iter().zip(caches);
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

    fn lacks(&self, part: &'static str) -> PipelineError {
        let Range { start, end } = self.layers.held();
        PipelineError::NotHere {
            first: start,
            end,
            part,
        }
    }
}

/// Refuses weights that are more than a device has, where it says what it has.
fn check_room(
    config: &LlamaConfig,
    layers: &StageLayers,
    dtype: FloatDType,
    device: &Device,
) -> Result<(), PipelineError> {
    let held = layers.held();
    let bytes = frozen_parameters(config, &held) as u64 * DType::from(dtype).size() as u64;
    match device_memory(device) {
        Some(there) if bytes > there => Err(PipelineError::TooLarge {
            first: held.start,
            end: held.end,
            bytes,
            dtype: format!("{dtype:?}").to_lowercase(),
            there,
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, FloatDType};
    use loraloom_model::LlamaConfig;

    use super::Stage;
    use crate::PipelineError;

    #[test]
    fn weights_that_the_device_cannot_hold_are_refused_before_they_are_made() {
        let mut model = LlamaConfig::named("micro").unwrap();
        // 4 TiB of embeddings and as much for the output projection.
        (model.d_model, model.vocab_size) = (1 << 20, 1 << 20);
        let layers = 0..model.num_hidden_layers;
        let error = Stage::random(&model, layers, FloatDType::F32, &Device::flex()).unwrap_err();
        assert!(
            matches!(error, PipelineError::TooLarge { bytes, .. } if bytes > 8 << 40),
            "{error}"
        );
        let said = error.to_string();
        assert!(said.contains("GB of weights in f32"), "{said}");
    }
}

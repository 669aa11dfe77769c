use batchlora::{AdamWStep, GradientNorms, LoraPair, SlotUpdate, seed_gradient};
use burn::tensor::{Device, Gradients, Tensor};
use loraloom_model::{LayerGradients, LayerLora, Projection};

use super::{
    Forwarded, Microbatch, MicrobatchId, PipelineStage, Stage, TrainStage, local::Group,
    microbatch::PlacedMicrobatch,
};
use crate::{HostMemory, PipelineError};

/// State that a forward pass keeps for its backward pass.
#[derive(Debug)]
pub(super) struct SavedActivations {
    /// A graph per layer of the group, from the first layer that has an adapter on.
    layers: Vec<LayerTape>,
    microbatch: PlacedMicrobatch,
    /// Token ids, if the embedding has adapters.
    ids: Vec<u32>,
    /// Of the stage's output, on the last stage.
    gradient: Option<Tensor<2>>,
    /// Of the adapters of the output projection.
    head_gradient: Option<LoraPair>,
}

/// The graph of one decoder layer.
#[derive(Debug)]
struct LayerTape {
    /// The layer's input `[rows, d_model]`: a leaf.
    input: Tensor<2>,
    /// The layer's adapters: leaves.
    lora: LayerLora,
    /// The end of the graph; `None` if the layer is to be recomputed.
    output: Option<Tensor<2>>,
}

impl Group {
    fn num_slots(&self) -> usize {
        let first = self.banks.first();
        first.map_or(0, |banks| banks.bank(Projection::Q).num_slots())
    }

    /// The gradients of the slots that `kept` selects.
    fn keep(
        &self,
        gradients: &[LayerGradients],
        kept: impl Fn(usize) -> bool + Copy,
    ) -> Vec<LayerGradients> {
        let layers = self.banks.iter().zip(gradients);
        let layers = layers.map(|(banks, gradients)| {
            LayerGradients(Projection::ALL.map(|projection| {
                let gradient = gradients.0[projection as usize].clone()?;
                Some(banks.bank(projection).keep_slots(gradient, kept))
            }))
        });
        layers.collect()
    }
}

impl Stage {
    /// Runs a group's layers over hidden states `[rows, d_model]`.
    fn forward_layers(
        &self,
        group: &Group,
        hidden: Tensor<2>,
        microbatch: &PlacedMicrobatch,
    ) -> Result<(Tensor<2>, Vec<LayerTape>), PipelineError> {
        let begins_model = group.layers.start == 0;
        let mut hidden = hidden.without_autodiff();
        let mut tapes: Vec<LayerTape> = Vec::new();
        for (layer, banks) in self.decoder_layers(group).iter().zip(&group.banks) {
            let lora = banks.attach(&microbatch.segments, microbatch.draws.as_deref())?;
            // Below the first adapter nothing asks for a gradient.
            let first_trained = tapes.is_empty() && begins_model;
            if first_trained && lora.is_base_only() {
                hidden = layer.forward(hidden, &microbatch.batch, &lora)?;
                continue;
            }
            let input = hidden.autodiff();
            let embeds = lora.part(Projection::EmbedTokens).is_some();
            let input = if first_trained && !embeds {
                input
            } else {
                input.require_grad()
            };
            let lora = lora.require_grad();
            let output = if self.gradient_checkpointing {
                let plain = input.clone().without_autodiff();
                let plain_lora = lora.clone().without_autodiff();
                hidden = layer.forward(plain, &microbatch.batch, &plain_lora)?;
                None
            } else {
                let output = layer.forward(input.clone(), &microbatch.batch, &lora)?;
                hidden = output.clone().without_autodiff();
                Some(output)
            };
            tapes.push(LayerTape {
                input,
                lora,
                output,
            });
        }
        Ok((hidden, tapes))
    }

    /// Walks a group's graphs back from the gradient of the stage's output `[rows, d_model]`. Returns
    /// the gradients of the adapters by layer, and of the input unless the stage begins the model.
    fn backward_layers(
        &self,
        group: &Group,
        saved: SavedActivations,
        gradient: Tensor<2>,
    ) -> Result<(Vec<LayerGradients>, Option<Tensor<2>>), PipelineError> {
        let SavedActivations {
            layers: tapes,
            microbatch,
            ids,
            head_gradient,
            ..
        } = saved;
        let layers = self.decoder_layers(group);
        let mut by_layer = vec![LayerGradients::default(); layers.len()];
        let first = layers.len() - tapes.len();
        let mut gradient = Some(gradient);
        for (index, tape) in tapes.into_iter().enumerate().rev() {
            let Some(above) = gradient.take() else { break };
            let LayerTape {
                input,
                lora,
                output,
            } = tape;
            let output = match output {
                Some(output) => output,
                None => layers[first + index].forward(input.clone(), &microbatch.batch, &lora)?,
            };
            let mut gradients = backward(output, above);
            let of_layer = &mut by_layer[first + index];
            *of_layer = lora.take_gradients(&mut gradients);
            gradient = input.grad_remove(&mut gradients);
            // The first layer's.
            if let Some(adapters) = lora.part(Projection::EmbedTokens)
                && let Some(of_input) = gradient.take()
            {
                let pair = self.backbone.embedding_gradient(&ids, adapters, of_input);
                of_layer.0[Projection::EmbedTokens as usize] = Some(pair);
            }
        }
        if let Some(last) = by_layer.last_mut() {
            last.0[Projection::LmHead as usize] = head_gradient;
        }
        Ok((by_layer, gradient))
    }

    /// # Errors
    /// [`PipelineError::OutOfMemory`] if the pass that has just ended exceeded the memory limit.
    fn keep_to_limit(&self) -> Result<(), PipelineError> {
        if let Some((limit, memory)) = self.memory_limit.zip(HostMemory::counted()) {
            let used = (memory.peak)().saturating_sub(limit.aside);
            let limit = limit.bytes;
            if used > limit {
                let layers = self.layers().held();
                return Err(PipelineError::OutOfMemory {
                    layers,
                    used,
                    limit,
                });
            }
        }
        Ok(())
    }

    fn misses(&self, pass: &'static str, problem: &'static str) -> PipelineError {
        let layers = self.layers().held();
        PipelineError::NothingUnderWay {
            layers,
            pass,
            problem,
        }
    }
}

impl TrainStage for Stage {
    fn device(&self) -> &Device {
        &self.device
    }

    fn computes_in_call(&self) -> bool {
        self.device == Device::flex()
    }

    fn may_have_thread(&self) -> bool {
        self.computes_in_call()
    }

    fn forward(
        &mut self,
        at: MicrobatchId,
        microbatch: &Microbatch,
        hidden: Option<Tensor<2>>,
    ) -> Result<Forwarded, PipelineError> {
        let placed = microbatch.place(&self.rotary);
        let group = self.group(at.group)?;
        let hidden = self.input(group, hidden, microbatch)?;
        let (hidden, layers) = self.forward_layers(group, hidden, &placed)?;
        let first = layers.first();
        let embeds = first.is_some_and(|tape| tape.lora.part(Projection::EmbedTokens).is_some());
        let ids = if embeds {
            microbatch.ids.clone()
        } else {
            Vec::new()
        };
        let mut saved = SavedActivations {
            layers,
            microbatch: placed,
            ids,
            gradient: None,
            head_gradient: None,
        };
        let (hidden, losses) = match self.backbone.head() {
            Some(head) => {
                let (segments, draws) = (&microbatch.segments, microbatch.draws.as_deref());
                let adapters = Self::head_adapters(group, segments, draws);
                let loss = head.loss(hidden, &microbatch.targets, adapters)?;
                saved.gradient = Some(loss.gradient);
                saved.head_gradient = loss.adapters;
                (None, Some(loss.losses))
            }
            None => (Some(hidden), None),
        };
        let group = self.group_mut(at.group)?;
        group.activations.insert(at.microbatch, saved);
        self.keep_to_limit()?;
        Ok(Forwarded { hidden, losses })
    }

    fn backward(
        &mut self,
        at: MicrobatchId,
        gradient: Option<Tensor<2>>,
    ) -> Result<Option<Tensor<2>>, PipelineError> {
        let saved = self.group_mut(at.group)?.activations.remove(&at.microbatch);
        let Some(mut saved) = saved else {
            return Err(self.misses("backward pass", "no forward pass before it"));
        };
        let Some(gradient) = gradient.or(saved.gradient.take()) else {
            return Err(self.misses("backward pass", "no gradient of its outputs"));
        };
        let (gradients, below) = self.backward_layers(self.group(at.group)?, saved, gradient)?;
        let sums = &mut self.group_mut(at.group)?.gradients;
        match sums {
            Some(sums) => {
                for (sum, part) in sums.iter_mut().zip(gradients) {
                    sum.accumulate(part);
                }
            }
            None => *sums = Some(gradients),
        }
        self.keep_to_limit()?;
        Ok(below)
    }

    fn add_squares(
        &mut self,
        group: usize,
        above: Option<Tensor<2>>,
    ) -> Result<Tensor<2>, PipelineError> {
        let group = self.group(group)?;
        let mut norms = match above {
            Some(sums) => GradientNorms::from_sums(sums),
            None => GradientNorms::new(group.num_slots(), &self.device),
        };
        // From the last layer to the first, so that the sums have the same bits however layers are
        // spread over stages.
        let gradients = group.gradients.as_deref().unwrap_or_default();
        for (banks, layer) in group.banks.iter().zip(gradients).rev() {
            for (projection, gradient) in Projection::ALL.into_iter().zip(&layer.0) {
                if let Some(gradient) = gradient {
                    norms = norms.add(banks.bank(projection), gradient);
                }
            }
        }
        Ok(norms.into_sums())
    }

    fn update(
        &mut self,
        group: usize,
        updates: &[Option<SlotUpdate>],
        squares: Option<Tensor<2>>,
    ) -> Result<Tensor<1>, PipelineError> {
        let Some(squares) = squares else {
            return Err(self.misses("optimizer step", "no squares of gradients"));
        };
        let norms = GradientNorms::from_sums(squares).finish();
        let group = self.group_mut(group)?;
        if updates.iter().all(Option::is_none) {
            return Ok(norms);
        }
        let Some(gradients) = group.gradients.take() else {
            return Ok(norms);
        };
        if updates.iter().any(Option::is_none) {
            let waits = |slot: usize| updates.get(slot).is_some_and(Option::is_none);
            group.gradients = Some(group.keep(&gradients, waits));
        }
        let step = AdamWStep::new(updates, norms.clone());
        for (banks, layer) in group.banks.iter_mut().zip(gradients) {
            for (projection, gradient) in Projection::ALL.into_iter().zip(layer.0) {
                let Some(gradient) = gradient else { continue };
                let bank = banks.bank_mut(projection);
                match projection {
                    Projection::EmbedTokens => step.apply_to_embedding(bank, gradient),
                    _ => step.apply(bank, gradient),
                }
            }
        }
        Ok(norms)
    }
}

/// Backward through one graph whose end has this gradient.
fn backward(output: Tensor<2>, gradient: Tensor<2>) -> Gradients {
    seed_gradient(output, gradient).backward()
}

/// More operations than a decoder layer has one after another.
const LAYER_DEPTH: usize = 64;

/// Frees the graphs of forward passes that were dropped without a backward pass.
///
/// Burn frees them when any backward pass ends, one operation of each graph at a time: the last whose
/// result nothing holds.
pub(super) fn free_dropped_graphs(device: &Device) {
    let device = device.clone().without_autodiff();
    for _ in 0..LAYER_DEPTH {
        let ones = Tensor::<2>::ones([1, 1], &device);
        backward(ones.clone().autodiff().require_grad(), ones);
    }
}

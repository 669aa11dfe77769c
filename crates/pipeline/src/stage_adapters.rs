use std::ops::Range;

use batchlora::{AdamWStep, GradientNorms};
use burn::tensor::Device;
use loraloom_model::{
    LayerAdapter, LayerBanks, LayerGradients, LayerLora, LlamaConfig, Projection,
};

use crate::{PipelineError, StageGradients, microbatch::PlacedMicrobatch};

/// The adapters of one group at the layers that it has on a stage, with their optimizer state. A slot
/// is the same task at every layer of every stage.
#[derive(Debug)]
pub(crate) struct StageAdapters {
    /// Which of the model's layers these are.
    range: Range<usize>,
    layers: Vec<LayerBanks>,
    device: Device,
}

impl StageAdapters {
    pub(crate) fn new(config: &LlamaConfig, range: Range<usize>, device: &Device) -> Self {
        Self {
            layers: range
                .clone()
                .map(|layer| LayerBanks::new(config, layer, device))
                .collect(),
            range,
            device: device.clone(),
        }
    }

    /// The model's layers that they belong to.
    pub(crate) fn layers(&self) -> Range<usize> {
        self.range.clone()
    }

    pub(crate) fn push(&mut self, adapter: Vec<LayerAdapter>) -> Result<usize, PipelineError> {
        let mut slot = 0;
        for (banks, part) in self.layers.iter_mut().zip(adapter) {
            slot = banks.push(part)?;
        }
        Ok(slot)
    }

    pub(crate) fn remove(&mut self, slot: usize) -> Result<Vec<LayerAdapter>, PipelineError> {
        let parts = self.layers.iter_mut().map(|banks| banks.remove(slot));
        Ok(parts.collect::<Result<_, _>>()?)
    }

    pub(crate) fn extract(&self, slot: usize) -> Result<Vec<LayerAdapter>, PipelineError> {
        let parts = self.layers.iter().map(|banks| banks.extract(slot));
        Ok(parts.collect::<Result<_, _>>()?)
    }

    /// The adapters of one layer, counted from the group's first, in one forward pass.
    pub(crate) fn attach(
        &self,
        layer: usize,
        microbatch: &PlacedMicrobatch,
    ) -> Result<LayerLora, PipelineError> {
        let draws = microbatch.draws.as_deref();
        Ok(self.layers[layer].attach(&microbatch.segments, draws)?)
    }

    fn num_slots(&self) -> usize {
        let first = self.layers.first();
        first.map_or(0, |banks| banks.bank(Projection::Q).num_slots())
    }

    /// Each slot's squared gradients on top of those of the stages above. Layers are added from the
    /// last to the first, so the sums have the same bits however layers are spread over stages.
    pub(crate) fn add_squares(
        &self,
        above: Option<GradientNorms>,
        gradients: Option<&StageGradients>,
    ) -> GradientNorms {
        let mut norms = above.unwrap_or_else(|| GradientNorms::new(self.num_slots(), &self.device));
        let Some(gradients) = gradients else {
            return norms;
        };
        for (banks, layer) in self.layers.iter().zip(&gradients.layers).rev() {
            for (projection, gradient) in Projection::ALL.into_iter().zip(&layer.0) {
                if let Some(gradient) = gradient {
                    norms = norms.add(banks.bank(projection), gradient);
                }
            }
        }
        norms
    }

    /// What is left of the gradients for later: those of slots that do not take this step.
    pub(crate) fn keep(
        &self,
        gradients: &StageGradients,
        kept: impl Fn(usize) -> bool + Copy,
    ) -> StageGradients {
        let layers = self.layers.iter().zip(&gradients.layers);
        let layers = layers.map(|(banks, layer)| {
            let pairs = Projection::ALL.map(|projection| {
                let gradient = layer.0[projection as usize].clone();
                gradient.map(|gradient| banks.bank(projection).keep_slots(gradient, kept))
            });
            LayerGradients(pairs)
        });
        StageGradients {
            layers: layers.collect(),
        }
    }

    /// Steps all adapters of the group at this stage.
    pub(crate) fn step(&mut self, gradients: StageGradients, step: &AdamWStep) {
        for (banks, layer) in self.layers.iter_mut().zip(gradients.layers) {
            for (projection, gradient) in Projection::ALL.into_iter().zip(layer.0) {
                if let Some(gradient) = gradient {
                    step.apply(banks.bank_mut(projection), gradient);
                }
            }
        }
    }
}

use std::{collections::HashMap, ops::Range};

use batchlora::{DropoutDraw, Segments};
use burn::tensor::{DType, Device, FloatDType, Tensor};
use loraloom_model::{
    Backbone, Checkpoint, DecoderLayer, HeadAdapters, LanguageModelHead, LayerAdapter, LayerBanks,
    LayerCache, LayerGradients, LlamaConfig, ModelError, Projection, RotaryTables,
    cost::weight_bytes,
};

use super::{
    Microbatch, PipelineStage, StageCache, TrainStage,
    passes::{SavedActivations, free_dropped_graphs},
};
use crate::{MemoryGauge, PipelineError, StageLayers, device_memory, device_name};

/// A stage on a device of this process.
///
/// Every decoder layer has a graph of its own: its input is a leaf, the gradient from above enters at
/// its end, and the gradient of the leaf goes to the layer below. With gradient checkpointing a
/// layer's graph is built in the backward pass only.
///
/// A group's passes run through the layers that the group has here, which may be fewer than the
/// stage holds: see [`StageLayers`].
#[derive(Debug)]
pub struct Stage {
    config: LlamaConfig,
    pub(super) backbone: Backbone,
    layers: StageLayers,
    groups: Vec<Group>,
    pub(super) device: Device,
    dtype: FloatDType,
    pub(super) rotary: RotaryTables,
    pub(super) gradient_checkpointing: bool,
    /// Of this process during a pass, on the CPU.
    pub(super) memory_limit: Option<MemoryLimit>,
}

/// Limit on a process's allocations.
#[derive(Debug, Clone, Copy)]
pub(super) struct MemoryLimit {
    pub(super) bytes: u64,
    /// Bytes that do not count.
    pub(super) aside: u64,
}

/// The adapters of a group at the layers that it has on a stage, and the state of its step. A slot is
/// the same task at every layer of every stage.
#[derive(Debug)]
pub(super) struct Group {
    /// The model's layers that `banks` are for.
    pub(super) layers: Range<usize>,
    pub(super) banks: Vec<LayerBanks>,
    /// Of optimizer steps that are still to be taken, by layer.
    pub(super) gradients: Option<Vec<LayerGradients>>,
    /// Forward passes that wait for their backward pass, by micro-batch.
    pub(super) activations: HashMap<usize, SavedActivations>,
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
        Self::new(config, layers.into(), dtype, device, |held| {
            Backbone::load(checkpoint, config, held, dtype, device)
        })
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
        Self::new(config, layers.into(), dtype, device, |held| {
            Backbone::random(config, held, dtype, device)
        })
    }

    /// Refuses weights that exceed the device's memory, if it reports it, before they are loaded.
    fn new(
        config: &LlamaConfig,
        layers: StageLayers,
        dtype: FloatDType,
        device: &Device,
        backbone: impl FnOnce(Range<usize>) -> Result<Backbone, ModelError>,
    ) -> Result<Self, PipelineError> {
        let held = layers.held();
        let bytes = weight_bytes(config, &held, DType::from(dtype).size()) as u64;
        if let Some(there) = device_memory(device)
            && bytes > there
        {
            return Err(PipelineError::TooLarge {
                layers: held,
                bytes,
                dtype: format!("{dtype:?}").to_lowercase(),
                there,
            });
        }
        Ok(Self {
            config: config.clone(),
            backbone: backbone(held)?,
            layers,
            groups: Vec::new(),
            device: device.clone(),
            dtype,
            rotary: RotaryTables::new(config, device),
            gradient_checkpointing: false,
            memory_limit: None,
        })
    }

    /// Keeps only the inputs of layers in the forward pass and computes the rest again in the
    /// backward pass.
    pub fn with_gradient_checkpointing(mut self, enabled: bool) -> Self {
        self.gradient_checkpointing = enabled;
        self
    }

    /// The type this stage computes in.
    pub fn dtype(&self) -> FloatDType {
        self.dtype
    }

    /// Number of decoder layers that a group has here.
    ///
    /// # Errors
    /// If there is no such group.
    #[cfg(feature = "remote")]
    pub(crate) fn group_depth(&self, group: usize) -> Result<usize, PipelineError> {
        Ok(self.group(group)?.banks.len())
    }

    pub(super) fn group(&self, group: usize) -> Result<&Group, PipelineError> {
        let groups = self.groups.len();
        let found = self.groups.get(group);
        found.ok_or(PipelineError::NoSuchGroup { group, groups })
    }

    pub(super) fn group_mut(&mut self, group: usize) -> Result<&mut Group, PipelineError> {
        let groups = self.groups.len();
        let found = self.groups.get_mut(group);
        found.ok_or(PipelineError::NoSuchGroup { group, groups })
    }

    /// Positions of a group's layers among those that the stage holds.
    fn within(&self, group: &Group) -> Range<usize> {
        let first = self.layers.held().start;
        group.layers.start - first..group.layers.end - first
    }

    pub(super) fn decoder_layers(&self, group: &Group) -> &[DecoderLayer] {
        &self.backbone.layers()[self.within(group)]
    }

    /// Hidden states that enter the layers, `[rows, d_model]`: those of the stage below, or the
    /// embedded tokens.
    ///
    /// # Errors
    /// If there are none and the stage does not begin the model.
    pub(super) fn input(
        &self,
        group: &Group,
        hidden: Option<Tensor<2>>,
        microbatch: &Microbatch,
    ) -> Result<Tensor<2>, PipelineError> {
        let adapters = match group.banks.first() {
            Some(banks) if hidden.is_none() => {
                let bank = banks.bank(Projection::EmbedTokens);
                bank.attach(&microbatch.segments, None)?
            }
            _ => None,
        };
        hidden
            .or_else(|| self.backbone.embed(&microbatch.ids, adapters.as_ref()))
            .ok_or_else(|| self.lacks("embedding"))
    }

    /// A group's adapters of the output projection; `None` if the group has no layer here.
    pub(super) fn head_adapters<'a>(
        group: &'a Group,
        segments: &'a Segments,
        draws: Option<&'a [DropoutDraw]>,
    ) -> Option<HeadAdapters<'a>> {
        let bank = group.banks.last()?.bank(Projection::LmHead);
        Some(HeadAdapters {
            bank,
            segments,
            draws,
        })
    }

    fn head(&self) -> Result<&LanguageModelHead, PipelineError> {
        self.backbone.head().ok_or_else(|| self.lacks("head"))
    }

    fn lacks(&self, part: &'static str) -> PipelineError {
        let layers = self.layers.held();
        PipelineError::NotHere { layers, part }
    }
}

impl From<Stage> for Box<dyn PipelineStage> {
    fn from(stage: Stage) -> Self {
        Box::new(stage)
    }
}

impl PipelineStage for Stage {
    fn layers(&self) -> &StageLayers {
        &self.layers
    }

    fn config(&self) -> &LlamaConfig {
        &self.config
    }

    fn name(&self) -> String {
        device_name(&self.device)
    }

    fn weight_bytes(&self) -> u64 {
        self.backbone.weight_bytes()
    }

    fn products(&self) -> String {
        batchlora::products(&self.device)
    }

    fn gauge(&self) -> MemoryGauge {
        MemoryGauge::of(&self.device)
    }

    fn twin(&self) -> Option<Box<dyn PipelineStage>> {
        Some(Box::new(Self {
            config: self.config.clone(),
            backbone: self.backbone.clone(),
            layers: self.layers.clone(),
            groups: Vec::new(),
            device: self.device.clone(),
            dtype: self.dtype,
            rotary: RotaryTables::new(&self.config, &self.device),
            gradient_checkpointing: false,
            memory_limit: None,
        }))
    }

    fn limit_memory(&mut self, bytes: Option<u64>, aside: u64) {
        let bytes = bytes.filter(|_| self.computes_in_call());
        self.memory_limit = bytes.map(|bytes| MemoryLimit { bytes, aside });
    }

    fn abandon(&mut self) -> bool {
        for group in &mut self.groups {
            group.activations.clear();
            group.gradients = None;
        }
        free_dropped_graphs(&self.device);
        // Errors of the failed pass do not count against the next one.
        let _ = self.device.sync();
        let _ = batchlora::product_failure();
        true
    }

    fn reserve_groups(&mut self, count: usize) -> Result<(), PipelineError> {
        while self.groups.len() < count {
            let layers = self.layers.of_group(self.groups.len());
            let empty = |layer| LayerBanks::new(&self.config, layer, &self.device);
            self.groups.push(Group {
                banks: layers.clone().map(empty).collect(),
                layers,
                gradients: None,
                activations: HashMap::new(),
            });
        }
        Ok(())
    }

    fn swap_groups(&mut self, first: usize, second: usize) -> Result<(), PipelineError> {
        self.group(first)?;
        self.group(second)?;
        self.groups.swap(first, second);
        Ok(())
    }

    fn push(
        &mut self,
        group: usize,
        mut adapter: Vec<LayerAdapter>,
    ) -> Result<usize, PipelineError> {
        let layers = self.decoder_layers(self.group(group)?);
        for (layer, parts) in layers.iter().zip(&mut adapter) {
            for (projection, part) in Projection::ALL.into_iter().zip(parts) {
                if let Some(state) = part.take_if(|state| state.spec.use_dora)
                    && let Some(weight) = self.backbone.weight(layer, projection)
                {
                    *part = Some(state.with_norms_of(&weight));
                }
            }
        }
        let group = self.group_mut(group)?;
        group.gradients = None;
        let mut slot = 0;
        for (banks, part) in group.banks.iter_mut().zip(adapter) {
            slot = banks.push(part)?;
        }
        Ok(slot)
    }

    fn remove(&mut self, group: usize, slot: usize) -> Result<Vec<LayerAdapter>, PipelineError> {
        let group = self.group_mut(group)?;
        group.gradients = None;
        let parts = group.banks.iter_mut().map(|banks| banks.remove(slot));
        Ok(parts.collect::<Result<_, _>>()?)
    }

    fn extract(&self, group: usize, slot: usize) -> Result<Vec<LayerAdapter>, PipelineError> {
        let group = self.group(group)?;
        let parts = group.banks.iter().map(|banks| banks.extract(slot));
        Ok(parts.collect::<Result<_, _>>()?)
    }

    fn cache(&self, blocks: usize) -> StageCache {
        let layers = self.backbone.layers().iter();
        let cache = |_| LayerCache::new(blocks, &self.config, self.dtype.into(), &self.device);
        StageCache::Local(layers.map(cache).collect())
    }

    fn infer(
        &self,
        group: usize,
        microbatch: &Microbatch,
        hidden: Option<Tensor<2>>,
        cache: Option<&mut StageCache>,
    ) -> Result<Tensor<2>, PipelineError> {
        let placed = microbatch.place(&self.rotary);
        let group = self.group(group)?;
        let mut hidden = self.input(group, hidden, microbatch)?;
        let mut cached = match (cache, &microbatch.cached) {
            (Some(StageCache::Local(caches)), Some(tables)) => {
                let caches = &mut caches[self.within(group)];
                let blocks = caches.first().map_or(usize::MAX, LayerCache::blocks);
                let wrong = tables.check(&microbatch.sequences, blocks).err();
                wrong.map_or(Ok(()), |wrong| Err(PipelineError::Blocks(wrong)))?;
                Some((caches, tables))
            }
            _ => None,
        };
        let layers = self.decoder_layers(group).iter().zip(&group.banks);
        for (index, (layer, banks)) in layers.enumerate() {
            let lora = banks.attach(&placed.segments, placed.draws.as_deref())?;
            hidden = match &mut cached {
                Some((caches, tables)) => {
                    let cache = &mut caches[index];
                    layer.forward_cached(hidden, &placed.batch, &lora, cache, tables)?
                }
                None => layer.forward(hidden, &placed.batch, &lora)?,
            };
        }
        Ok(hidden)
    }

    fn observe(
        &self,
        group: usize,
        microbatch: &Microbatch,
        hidden: Option<Tensor<2>>,
        see: &mut dyn FnMut(usize, Projection, &Tensor<2>),
    ) -> Result<Tensor<2>, PipelineError> {
        let placed = microbatch.place(&self.rotary);
        let group = self.group(group)?;
        let mut hidden = self.input(group, hidden, microbatch)?;
        let layers = self.decoder_layers(group).iter().zip(&group.banks);
        for ((layer, banks), index) in layers.zip(group.layers.start..) {
            let lora = banks.attach(&placed.segments, placed.draws.as_deref())?;
            let see = &mut |projection, x: &Tensor<2>| see(index, projection, x);
            hidden = layer.forward_observed(hidden, &placed.batch, &lora, see)?;
        }
        if let Some(head) = self.backbone.head() {
            let last = self.config.num_hidden_layers - 1;
            see(last, Projection::LmHead, &head.normal(hidden.clone()));
        }
        Ok(hidden)
    }

    fn weight(&self, layer: usize, projection: Projection) -> Option<Tensor<2>> {
        let within = layer.checked_sub(self.layers.held().start)?;
        let layer = self.backbone.layers().get(within)?;
        self.backbone.weight(layer, projection)
    }

    fn target_scores(
        &self,
        group: usize,
        microbatch: &Microbatch,
        hidden: Tensor<2>,
    ) -> Result<Tensor<2>, PipelineError> {
        let adapters = Self::head_adapters(self.group(group)?, &microbatch.segments, None);
        let head = self.head()?;
        Ok(head.target_scores(hidden, &microbatch.targets, adapters)?)
    }

    fn logits(
        &self,
        group: usize,
        segments: &Segments,
        hidden: Tensor<2>,
    ) -> Result<Tensor<2>, PipelineError> {
        let adapters = Self::head_adapters(self.group(group)?, segments, None);
        Ok(self.head()?.logits(hidden, adapters)?)
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
        assert!(said.contains(" GiB of weights in f32"), "{said}");
    }
}

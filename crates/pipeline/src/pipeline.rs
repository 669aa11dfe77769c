use std::ops::Range;

use burn::tensor::{Device, Tensor};
use loraloom_model::{LayerAdapter, LayerCache, LlamaConfig, to_host};

use crate::{
    Microbatch, PipelineError, Stage,
    executor::{Passes, Steps, run},
    local_stage::LocalStage,
};

/// The whole backbone as stages one above the other, and the adapters over it in groups.
///
/// A group's adapters are numbered by slot, the same at every stage. There is always a group 0.
#[derive(Debug)]
pub struct Pipeline {
    stages: Vec<LocalStage>,
}

/// Keys and values of all layers, for sequences that are being continued.
#[derive(Debug, Clone)]
pub struct Caches {
    stages: Vec<Vec<LayerCache>>,
}

impl Caches {
    /// Tokens that every sequence has in the caches.
    pub fn tokens(&self) -> usize {
        let first = self.stages.first().and_then(|layers| layers.first());
        first.map_or(0, LayerCache::len)
    }
}

impl Pipeline {
    /// Puts stages together.
    ///
    /// # Errors
    /// [`PipelineError::Gap`] if they do not hold all layers of the model, each once and in order.
    pub fn new(stages: Vec<Stage>) -> Result<Self, PipelineError> {
        let layers: Vec<Range<usize>> = stages.iter().map(Stage::layers).collect();
        let mut end = 0;
        let in_order = layers.iter().all(|range| {
            let follows = range.start == end;
            end = range.end;
            follows
        });
        let whole = stages.last().is_some_and(Stage::ends_model);
        if !in_order || !whole {
            return Err(PipelineError::Gap { layers });
        }
        let mut pipeline = Self {
            stages: stages.into_iter().map(LocalStage::new).collect(),
        };
        pipeline.reserve_groups(1);
        Ok(pipeline)
    }

    /// Decoder layers of each stage.
    pub fn layers(&self) -> impl ExactSizeIterator<Item = Range<usize>> {
        self.stages.iter().map(|stage| stage.stage().layers())
    }

    /// The device of each stage.
    pub fn devices(&self) -> impl ExactSizeIterator<Item = &Device> {
        self.stages.iter().map(|stage| stage.stage().device())
    }

    /// The configuration of the model.
    ///
    /// # Panics
    /// Never: there is a stage.
    pub fn config(&self) -> &LlamaConfig {
        self.stages[0].stage().config()
    }

    /// Makes sure that there are groups 0 to `count`, without it; new ones are empty.
    pub fn reserve_groups(&mut self, count: usize) {
        for stage in &mut self.stages {
            stage.stage_mut().reserve_groups(count);
        }
    }

    /// Exchanges the adapters of two groups.
    ///
    /// # Errors
    /// If there is no such group.
    pub fn swap_groups(&mut self, first: usize, second: usize) -> Result<(), PipelineError> {
        let mut stages = self.stages.iter_mut();
        stages.try_for_each(|stage| stage.stage_mut().swap_groups(first, second))
    }

    /// Adds an adapter, given by all layers in order, to a group; returns its slot.
    ///
    /// # Errors
    /// If there is no such group, or the adapter does not fit the model.
    pub fn push(
        &mut self,
        group: usize,
        mut adapter: Vec<LayerAdapter>,
    ) -> Result<usize, PipelineError> {
        let mut slot = 0;
        for stage in &mut self.stages {
            let above = adapter.split_off(stage.stage().layers().len().min(adapter.len()));
            slot = stage.stage_mut().push(group, adapter)?;
            adapter = above;
        }
        Ok(slot)
    }

    /// Takes an adapter out; later slots of its group move down by one.
    ///
    /// # Errors
    /// If there is no such group or slot.
    pub fn remove(
        &mut self,
        group: usize,
        slot: usize,
    ) -> Result<Vec<LayerAdapter>, PipelineError> {
        let stages = self.stages.iter_mut();
        let parts = stages.map(|stage| stage.stage_mut().remove(group, slot));
        Ok(parts.collect::<Result<Vec<_>, _>>()?.concat())
    }

    /// A copy of an adapter, by all layers in order.
    ///
    /// # Errors
    /// If there is no such group or slot.
    pub fn extract(&self, group: usize, slot: usize) -> Result<Vec<LayerAdapter>, PipelineError> {
        let stages = self.stages.iter();
        let parts = stages.map(|stage| stage.stage().extract(group, slot));
        Ok(parts.collect::<Result<Vec<_>, _>>()?.concat())
    }

    /// Trains: see [`run`].
    ///
    /// # Errors
    /// The first error of a stage or of `steps`.
    pub fn run<T: Steps>(&mut self, passes: &Passes, steps: &mut T) -> Result<(), T::Error> {
        self.reserve_groups(passes.shape.groups);
        run(&mut self.stages, passes, steps)
    }

    /// The losses of a micro-batch's targets in nats, in their order.
    ///
    /// # Errors
    /// If there is no such group or slot, or a device fails.
    pub fn target_losses(
        &self,
        group: usize,
        microbatch: &Microbatch,
    ) -> Result<Vec<f32>, PipelineError> {
        let hidden = self.infer(group, microbatch)?;
        let losses = self.head().target_losses(hidden, &microbatch.targets)?;
        Ok(to_host(losses)?)
    }

    /// The logits of every row of a micro-batch, `[rows, vocabulary]` row by row.
    ///
    /// # Errors
    /// If there is no such group or slot, or a device fails.
    pub fn logits(&self, group: usize, microbatch: &Microbatch) -> Result<Vec<f32>, PipelineError> {
        let hidden = self.infer(group, microbatch)?;
        Ok(to_host(self.head().logits(hidden)?)?)
    }

    /// Empty caches.
    pub fn caches(&self) -> Caches {
        Caches {
            stages: self
                .layers()
                .map(|layers| vec![LayerCache::default(); layers.len()])
                .collect(),
        }
    }

    /// The logits after the last token of every sequence, `[sequences, vocabulary]` row by row, with
    /// what came before taken from the caches. All sequences have as many tokens.
    ///
    /// # Errors
    /// If there is no such group or slot, or a device fails.
    pub fn next_logits(
        &self,
        group: usize,
        microbatch: &Microbatch,
        caches: &mut Caches,
    ) -> Result<Vec<f32>, PipelineError> {
        let mut caches = caches.stages.iter_mut();
        let hidden = self.through(microbatch, |stage, hidden, placed| {
            let caches = caches.next().map_or(&mut [][..], Vec::as_mut_slice);
            stage.infer_cached(group, hidden, placed, caches)
        })?;
        let ([rows, width], count) = (hidden.dims(), microbatch.sequences.len());
        let tokens = rows / count;
        let last = hidden
            .reshape([count, tokens, width])
            .narrow(1, tokens - 1, 1);
        Ok(to_host(self.head().logits(last.reshape([count, width]))?)?)
    }

    /// Output of the last layer, `[rows, d_model]`.
    fn infer(&self, group: usize, microbatch: &Microbatch) -> Result<Tensor<2>, PipelineError> {
        self.through(microbatch, |stage, hidden, placed| {
            stage.infer(group, hidden, placed)
        })
    }

    /// A micro-batch through all stages, one after the other.
    fn through(
        &self,
        microbatch: &Microbatch,
        mut pass: impl FnMut(
            &Stage,
            Tensor<2>,
            &crate::microbatch::PlacedMicrobatch,
        ) -> Result<Tensor<2>, PipelineError>,
    ) -> Result<Tensor<2>, PipelineError> {
        let mut hidden = self.stages[0].stage().embed(&microbatch.ids)?;
        for stage in &self.stages {
            let stage = stage.stage();
            let placed = microbatch.place(stage.config(), stage.device());
            hidden = pass(stage, hidden.to_device(stage.device()), &placed)?;
        }
        Ok(hidden)
    }

    fn head(&self) -> &Stage {
        self.stages[self.stages.len() - 1].stage()
    }
}

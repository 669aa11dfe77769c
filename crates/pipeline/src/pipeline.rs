use std::ops::Range;

use burn::tensor::{Device, Tensor};
use loraloom_model::{LayerAdapter, LlamaConfig, to_host};

use crate::{
    AnyStage, MemoryGauge, Microbatch, Partitions, PipelineError, Stage, StageLayers,
    any_stage::StageCache,
    executor::{Passes, Steps, run},
};

/// The whole backbone as stages one above the other, and the adapters over it in groups.
///
/// A group's adapters are numbered by slot, the same at every stage. There is always a group 0.
/// Groups may have their layers on different stages; see [`Partitions`].
#[derive(Debug)]
pub struct Pipeline {
    stages: Vec<AnyStage>,
    partitions: Partitions,
    /// Which partition each group has. The stages keep the same.
    turns: Vec<usize>,
    /// By group.
    revisions: Vec<u64>,
    /// The last revision that was given out.
    newest: u64,
}

/// Keys and values of all layers, for sequences that are being continued.
#[derive(Debug, Clone)]
pub struct Caches {
    stages: Vec<StageCache>,
    tokens: usize,
    /// The partition of the group that began them.
    turn: Option<usize>,
}

impl Caches {
    /// Tokens that every sequence has in the caches.
    pub fn tokens(&self) -> usize {
        self.tokens
    }
}

impl Pipeline {
    /// Puts stages together.
    ///
    /// # Errors
    /// [`PipelineError::Gap`] if they do not run all layers of the model for every group, each once and
    /// in order, and [`PipelineError::Turns`] if they do not agree on how groups take turns.
    pub fn new(stages: Vec<Stage>) -> Result<Self, PipelineError> {
        Self::of(stages.into_iter().map(AnyStage::from).collect())
    }

    /// Puts stages together, wherever they are.
    ///
    /// # Errors
    /// As [`new`](Self::new), or if a stage is lost.
    pub fn of(stages: Vec<AnyStage>) -> Result<Self, PipelineError> {
        let layers = stages.iter().map(AnyStage::layers_by_group).cloned();
        let partitions = Partitions::of_stages(&layers.collect::<Vec<_>>())?;
        if !stages.last().is_some_and(AnyStage::ends_model) {
            let layers = partitions.of_group(0).to_vec();
            return Err(PipelineError::Gap { layers });
        }
        let mut pipeline = Self {
            stages,
            partitions,
            turns: Vec::new(),
            revisions: Vec::new(),
            newest: 0,
        };
        pipeline.reserve_groups(1)?;
        Ok(pipeline)
    }

    /// Decoder layers that each stage holds.
    pub fn layers(&self) -> impl ExactSizeIterator<Item = Range<usize>> {
        self.stages.iter().map(AnyStage::layers)
    }

    /// Which of them the stages run for whom, as groups come.
    pub fn partitions(&self) -> &Partitions {
        &self.partitions
    }

    /// The device of each stage.
    pub fn devices(&self) -> impl ExactSizeIterator<Item = &Device> {
        self.stages.iter().map(AnyStage::device)
    }

    /// Devices of this process, with the layers of the stages on them.
    pub fn local_devices(&self) -> impl Iterator<Item = (Device, StageLayers)> {
        let stages = self.stages.iter().filter(|stage| stage.is_local());
        stages.map(|stage| (stage.device().clone(), stage.layers_by_group().clone()))
    }

    /// What each stage is on, for people.
    pub fn names(&self) -> impl ExactSizeIterator<Item = String> {
        self.stages.iter().map(AnyStage::name)
    }

    /// The configuration of the model.
    ///
    /// # Panics
    /// Never: there is a stage.
    pub fn config(&self) -> &LlamaConfig {
        self.stages[0].config()
    }

    /// Makes sure that there are groups 0 to `count`, without it; new ones are empty, and take the
    /// partition whose turn it is.
    ///
    /// # Errors
    /// If a stage is lost.
    pub fn reserve_groups(&mut self, count: usize) -> Result<(), PipelineError> {
        if self.revisions.len() < count {
            self.revisions.resize(count, 0);
            let new = self.turns.len()..count;
            self.turns
                .extend(new.map(|group| self.partitions.turn(group)));
        }
        let mut stages = self.stages.iter_mut();
        stages.try_for_each(|stage| stage.reserve_groups(count))
    }

    /// Stands for the gradients that the stages keep of a group's adapters until these are updated: as
    /// long as it is the same number, they are there. No two groups with adapters ever have the same,
    /// and none of them comes again.
    pub fn revision(&self, group: usize) -> u64 {
        self.revisions.get(group).copied().unwrap_or(0)
    }

    /// Says that what the stages keep of a group's gradients is dropped.
    fn revise(&mut self, group: usize) {
        self.newest += 1;
        if let Some(revision) = self.revisions.get_mut(group) {
            *revision = self.newest;
        }
    }

    /// Bytes of the weights that each stage has in memory.
    pub fn weight_bytes(&self) -> impl ExactSizeIterator<Item = u64> {
        self.stages.iter().map(AnyStage::weight_bytes)
    }

    /// What multiplies the matrices of each stage, for people.
    pub fn products(&self) -> impl ExactSizeIterator<Item = String> {
        self.stages.iter().map(AnyStage::products)
    }

    /// The memory of every device that stages are on, each device once.
    pub fn memory_gauges(&self) -> Vec<MemoryGauge> {
        let mut gauges: Vec<MemoryGauge> = Vec::new();
        for stage in &self.stages {
            let gauge = stage.gauge();
            if !gauges.iter().any(|other| other.is_same(&gauge)) {
                gauges.push(gauge);
            }
        }
        gauges
    }

    /// Has a pass fail with [`PipelineError::OutOfMemory`] after which this process had allocated
    /// more bytes than this, on stages that compute in its memory, if allocations are
    /// [counted](crate::HostMemory).
    pub fn limit_memory(&mut self, bytes: Option<u64>) {
        for stage in &mut self.stages {
            stage.limit_memory(bytes);
        }
    }

    /// Drops everything that a run which failed has left at the stages: passes under way and
    /// gradients. Which adapters had taken their step is not known; they are to be taken out. Whether
    /// all stages could do so: those on other machines cannot.
    pub fn abandon(&mut self) -> bool {
        (0..self.revisions.len()).for_each(|group| self.revise(group));
        let mut all = true;
        for stage in &mut self.stages {
            all &= stage.abandon();
        }
        all
    }

    /// Exchanges the adapters of two groups, which stay at their layers, and what is kept of their
    /// gradients.
    ///
    /// # Errors
    /// If there is no such group.
    pub fn swap_groups(&mut self, first: usize, second: usize) -> Result<(), PipelineError> {
        let mut stages = self.stages.iter_mut();
        stages.try_for_each(|stage| stage.swap_groups(first, second))?;
        self.revisions.swap(first, second);
        self.turns.swap(first, second);
        Ok(())
    }

    /// Which partition a group has.
    fn turn(&self, group: usize) -> Result<usize, PipelineError> {
        let groups = self.turns.len();
        let found = self.turns.get(group).copied();
        found.ok_or(PipelineError::NoSuchGroup { group, groups })
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
        let turn = self.turn(group)?;
        self.revise(group);
        let mut slot = 0;
        let layers = self.partitions.of_group(turn);
        for (stage, layers) in self.stages.iter_mut().zip(layers) {
            let above = adapter.split_off(layers.len().min(adapter.len()));
            slot = stage.push(group, adapter)?;
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
        self.revise(group);
        let parts = self
            .stages
            .iter_mut()
            .map(|stage| stage.remove(group, slot));
        Ok(parts.collect::<Result<Vec<_>, _>>()?.concat())
    }

    /// A copy of an adapter, by all layers in order.
    ///
    /// # Errors
    /// If there is no such group or slot.
    pub fn extract(&self, group: usize, slot: usize) -> Result<Vec<LayerAdapter>, PipelineError> {
        let parts = self.stages.iter().map(|stage| stage.extract(group, slot));
        Ok(parts.collect::<Result<Vec<_>, _>>()?.concat())
    }

    /// Trains: see [`run`].
    ///
    /// # Errors
    /// The first error of a stage or of `steps`.
    pub fn run<T: Steps>(&mut self, passes: &Passes, steps: &mut T) -> Result<(), T::Error> {
        self.reserve_groups(passes.shape.groups)?;
        run(&mut self.stages, passes, steps)
            .map_err(|error| self.failure().map_or(error, Into::into))
    }

    /// Why nothing comes of stages on other machines any more, where one of them is to blame:
    /// whoever reads what it should have computed learns only that it is not there.
    pub fn failure(&self) -> Option<PipelineError> {
        self.stages.iter().find_map(AnyStage::failure)
    }

    /// The error of a read, or the reason for it.
    fn read<const D: usize>(&self, tensor: Tensor<D>) -> Result<Vec<f32>, PipelineError> {
        to_host(tensor).map_err(|error| self.failure().unwrap_or_else(|| error.into()))
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
        self.read(self.head().target_losses(hidden, &microbatch.targets)?)
    }

    /// The logits of every row of a micro-batch, `[rows, vocabulary]` row by row.
    ///
    /// # Errors
    /// If there is no such group or slot, or a device fails.
    pub fn logits(&self, group: usize, microbatch: &Microbatch) -> Result<Vec<f32>, PipelineError> {
        let hidden = self.infer(group, microbatch)?;
        self.read(self.head().logits(hidden)?)
    }

    /// Empty caches.
    pub fn caches(&self) -> Caches {
        Caches {
            stages: self.stages.iter().map(AnyStage::cache).collect(),
            tokens: 0,
            turn: None,
        }
    }

    /// The logits after the last token of every sequence, `[sequences, vocabulary]` row by row, with
    /// what came before taken from the caches. All sequences have as many tokens.
    ///
    /// # Errors
    /// If there is no such group or slot, a device fails, or the caches were begun by a group with
    /// another partition.
    pub fn next_logits(
        &self,
        group: usize,
        microbatch: &Microbatch,
        caches: &mut Caches,
    ) -> Result<Vec<f32>, PipelineError> {
        let turn = self.turn(group)?;
        if *caches.turn.get_or_insert(turn) != turn {
            return Err(PipelineError::OtherPartition { group });
        }
        let mut hidden = None;
        for (stage, cache) in self.stages.iter().zip(&mut caches.stages) {
            hidden = Some(stage.infer(group, microbatch, hidden, Some(cache))?);
        }
        let hidden = hidden.ok_or_else(|| self.empty())?;
        let ([rows, width], count) = (hidden.dims(), microbatch.sequences.len());
        let tokens = rows / count;
        caches.tokens += tokens;
        let last = hidden
            .reshape([count, tokens, width])
            .narrow(1, tokens - 1, 1);
        self.read(self.head().logits(last.reshape([count, width]))?)
    }

    /// Output of the last layer, `[rows, d_model]`.
    fn infer(&self, group: usize, microbatch: &Microbatch) -> Result<Tensor<2>, PipelineError> {
        let mut hidden = None;
        for stage in &self.stages {
            hidden = Some(stage.infer(group, microbatch, hidden, None)?);
        }
        hidden.ok_or_else(|| self.empty())
    }

    fn empty(&self) -> PipelineError {
        let layers = self.layers().collect();
        PipelineError::Gap { layers }
    }

    fn head(&self) -> &AnyStage {
        &self.stages[self.stages.len() - 1]
    }
}

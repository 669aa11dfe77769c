use std::ops::Range;

use batchlora::{Segment, Segments};
use burn::tensor::{Device, Tensor, TensorData};
use loraloom_model::{LayerAdapter, LlamaConfig, Projection, Sampled, SampledRow, sample, to_host};

use crate::{
    HostMemory, MemoryGauge, Microbatch, Partitions, PipelineError, PipelineStage, StageCache,
    StageLayers,
    executor::{IterationPlanner, Passes, Transfer, run},
};

/// The whole backbone as stages one above the other, and the adapters over it in groups.
///
/// A group's adapters are numbered by slot, the same at every stage. There is always a group 0.
/// Groups may have their layers on different stages; see [`Partitions`].
#[derive(Debug)]
pub struct Pipeline {
    stages: Vec<Box<dyn PipelineStage>>,
    partitions: Partitions,
    /// The partition of each group.
    turns: Vec<usize>,
    /// By group.
    revisions: Vec<u64>,
    /// The largest revision so far.
    newest: u64,
}

/// Keys and values of all layers, in blocks. A sequence is continued by the group that began it, since groups may have
/// their layers on different stages.
#[derive(Debug)]
pub struct Caches {
    stages: Vec<StageCache>,
}

impl Pipeline {
    /// Puts stages together, local ones or workers.
    ///
    /// # Errors
    /// [`PipelineError::Gap`] if they do not run all layers of the model for every group, each once and
    /// in order, [`PipelineError::Turns`] if they do not agree on how groups take turns, or an error of
    /// a stage that is lost.
    pub fn new<S: Into<Box<dyn PipelineStage>>>(stages: Vec<S>) -> Result<Self, PipelineError> {
        let stages: Vec<Box<dyn PipelineStage>> = stages.into_iter().map(Into::into).collect();
        let layers: Vec<_> = stages.iter().map(|stage| stage.layers().clone()).collect();
        let partitions = Partitions::of_stages(&layers)?;
        let last = stages.last();
        if last.is_none_or(|stage| stage.layers().held().end != stage.config().num_hidden_layers) {
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

    /// Another pipeline over the same weights, which are not copied, and without adapters: for another thread. `None` if
    /// a stage is in another process.
    ///
    /// # Errors
    /// None: its stages fit each other as these do.
    pub fn twin(&self) -> Result<Option<Self>, PipelineError> {
        let stages: Option<Vec<_>> = self.stages.iter().map(|stage| stage.twin()).collect();
        stages.map(Self::new).transpose()
    }

    /// Decoder layers that each stage holds.
    pub fn layers(&self) -> impl ExactSizeIterator<Item = Range<usize>> {
        self.stages.iter().map(|stage| stage.layers().held())
    }

    /// The layers that each stage runs for each group.
    pub fn partitions(&self) -> &Partitions {
        &self.partitions
    }

    /// Devices of this process, with the layers of the stages on them.
    pub fn local_devices(&self) -> impl Iterator<Item = (Device, StageLayers)> {
        let stages = self.stages.iter();
        let local = stages.filter(|stage| stage.remote_inbox().is_none());
        local.map(|stage| (stage.device().clone(), stage.layers().clone()))
    }

    /// The name of each stage's device or worker.
    pub fn names(&self) -> impl ExactSizeIterator<Item = String> {
        self.stages.iter().map(|stage| stage.name())
    }

    /// The configuration of the model.
    ///
    /// # Panics
    /// Never: there is a stage.
    pub fn config(&self) -> &LlamaConfig {
        self.stages[0].config()
    }

    /// Adds groups until there are `count`. New ones are empty, and take the partition whose turn it
    /// is.
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

    /// Names the gradients that the stages keep for a group until its adapters are updated: they are
    /// there as long as the number is the same. No two groups with adapters have the same number, and
    /// a number that has changed never returns.
    pub fn revision(&self, group: usize) -> u64 {
        self.revisions.get(group).copied().unwrap_or(0)
    }

    /// Notes that the stages drop a group's gradients.
    fn revise(&mut self, group: usize) {
        self.newest += 1;
        if let Some(revision) = self.revisions.get_mut(group) {
            *revision = self.newest;
        }
    }

    /// Bytes of the weights that each stage has in memory.
    pub fn weight_bytes(&self) -> impl ExactSizeIterator<Item = u64> {
        self.stages.iter().map(|stage| stage.weight_bytes())
    }

    /// Name of the library that multiplies the matrices of each stage.
    pub fn products(&self) -> impl ExactSizeIterator<Item = String> {
        self.stages.iter().map(|stage| stage.products())
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

    /// Fails passes with [`PipelineError::OutOfMemory`] in which this process has more than `bytes`
    /// allocated, without `aside` bytes that are no pass's, on CPU stages of this process, if allocations are
    /// [counted](crate::HostMemory). What it had allocated until now does not count.
    pub fn limit_memory(&mut self, bytes: Option<u64>, aside: u64) {
        for stage in &mut self.stages {
            stage.limit_memory(bytes, aside);
        }
        if let Some(memory) = HostMemory::counted() {
            (memory.take_peak)();
        }
    }

    /// Drops the passes under way and the gradients that a failed run left at the stages. It is unknown which
    /// adapters took their step; the caller removes them. Returns `false` if a stage, such as one on another machine,
    /// could not.
    pub fn abandon(&mut self) -> bool {
        (0..self.revisions.len()).for_each(|group| self.revise(group));
        let mut all = true;
        for stage in &mut self.stages {
            all &= stage.abandon();
        }
        all
    }

    /// Exchanges the adapters of two groups, which stay at their layers, and their gradients.
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

    /// The partition of a group.
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
        let stages = self.stages.iter_mut();
        let parts = stages.map(|stage| stage.remove(group, slot));
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
    /// The first error of a stage or of `planner`.
    pub fn run<T: IterationPlanner>(
        &mut self,
        passes: &Passes,
        planner: &mut T,
    ) -> Result<(), T::Error> {
        self.reserve_groups(passes.shape.groups)?;
        run(&mut self.stages, passes, planner)
            .map_err(|error| self.failure().map_or(error, Into::into))
    }

    /// The error of stages on other machines, if one of them cannot continue. The error of a read from a lost stage
    /// reports only that the values are missing.
    pub fn failure(&self) -> Option<PipelineError> {
        self.stages.iter().find_map(|stage| stage.failure())
    }

    /// Reads a tensor. The error is the cause where a stage knows it.
    fn read<const D: usize>(&self, tensor: Tensor<D>) -> Result<Vec<f32>, PipelineError> {
        to_host(tensor).map_err(|error| self.failure().unwrap_or_else(|| error.into()))
    }

    /// The losses of a micro-batch's targets in nats, in their order, and whether each target is the
    /// likeliest token.
    ///
    /// # Errors
    /// If there is no such group or slot, or a device fails.
    pub fn target_scores(
        &self,
        group: usize,
        microbatch: &Microbatch,
    ) -> Result<(Vec<f32>, Vec<bool>), PipelineError> {
        let hidden = self.infer(group, microbatch)?;
        let scores = self.head().target_scores(group, microbatch, hidden)?;
        let mut losses = self.read(scores)?;
        let correct = losses.split_off(losses.len() / 2);
        Ok((losses, correct.iter().map(|&one| one > 0.5).collect()))
    }

    /// The logits of every row of a micro-batch, `[rows, vocabulary]` row by row.
    ///
    /// # Errors
    /// If there is no such group or slot, or a device fails.
    pub fn logits(&self, group: usize, microbatch: &Microbatch) -> Result<Vec<f32>, PipelineError> {
        let hidden = self.infer(group, microbatch)?;
        let logits = self.head().logits(group, &microbatch.segments, hidden)?;
        self.read(logits)
    }

    /// Empty caches of so many [blocks](loraloom_model::BLOCK_TOKENS).
    pub fn caches(&self, blocks: usize) -> Caches {
        let stages = self.stages.iter();
        Caches {
            stages: stages.map(|stage| stage.cache(blocks)).collect(),
        }
    }

    /// Continues sequences in the caches, and picks a token after each of some rows, given in order.
    ///
    /// # Errors
    /// If there is no such group or slot, a token has no block in the caches, or a device fails.
    pub fn next_tokens(
        &self,
        group: usize,
        microbatch: &Microbatch,
        caches: &mut Caches,
        rows: &[usize],
        sampled: &[SampledRow],
    ) -> Result<Vec<Sampled>, PipelineError> {
        let stages = &mut caches.stages;
        let hidden = self.through(|index, stage, below| {
            stage.infer(group, microbatch, below, Some(&mut stages[index]))
        })?;
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let indices: Vec<i32> = rows.iter().map(|&row| row as i32).collect();
        let indices = TensorData::new(indices, [rows.len()]);
        let selected = hidden
            .clone()
            .select(0, Tensor::from_data(indices, &hidden.device()));
        let within = |row: usize| rows.partition_point(|&other| other < row);
        let segments = microbatch.segments.iter().map(|segment| Segment {
            rows: within(segment.rows.start)..within(segment.rows.end),
            slot: segment.slot,
        });
        let segments = Segments::new(rows.len(), segments.collect())?;
        let mut logits = self.head().logits(group, &segments, selected)?;
        if self.head().remote_inbox().is_some() {
            // Workers have no operations of their own.
            let shape = logits.dims();
            let values = TensorData::new(self.read(logits)?, shape);
            logits = Tensor::from_data(values, &Device::flex());
        }
        sample(logits, sampled).map_err(|error| self.failure().unwrap_or_else(|| error.into()))
    }

    /// Runs a micro-batch forward. `see` is called with the layer and the input of each projection, `[rows, width]`.
    ///
    /// # Errors
    /// If there is no such group or slot, a device fails, or a stage is in another process.
    pub fn observe(
        &self,
        group: usize,
        microbatch: &Microbatch,
        see: &mut dyn FnMut(usize, Projection, &Tensor<2>),
    ) -> Result<(), PipelineError> {
        self.through(|_, stage, below| stage.observe(group, microbatch, below, see))?;
        Ok(())
    }

    /// The frozen weight of a projection, `[d_in, d_out]` row after row; `None` if no stage of this process has it.
    ///
    /// # Errors
    /// If a device fails.
    pub fn weight(
        &self,
        layer: usize,
        projection: Projection,
    ) -> Result<Option<Vec<f32>>, PipelineError> {
        let weight = self
            .stages
            .iter()
            .find_map(|stage| stage.weight(layer, projection));
        weight.map(|weight| self.read(weight)).transpose()
    }

    /// Output of the last layer, `[rows, d_model]`.
    fn infer(&self, group: usize, microbatch: &Microbatch) -> Result<Tensor<2>, PipelineError> {
        self.through(|_, stage, below| stage.infer(group, microbatch, below, None))
    }

    /// Output of the last stage, given what each makes of the one below.
    fn through(
        &self,
        mut pass: impl FnMut(
            usize,
            &dyn PipelineStage,
            Option<Tensor<2>>,
        ) -> Result<Tensor<2>, PipelineError>,
    ) -> Result<Tensor<2>, PipelineError> {
        let mut hidden = None;
        for (index, stage) in self.stages.iter().enumerate() {
            let input = match hidden {
                Some(below) => Transfer::begin(below, stage.device())?.end()?.0,
                None => None,
            };
            hidden = Some(pass(index, &**stage, input)?);
        }
        hidden.ok_or_else(|| {
            let layers = self.layers().collect();
            PipelineError::Gap { layers }
        })
    }

    fn head(&self) -> &dyn PipelineStage {
        &*self.stages[self.stages.len() - 1]
    }
}

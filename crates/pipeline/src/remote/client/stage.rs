use std::{collections::HashMap, sync::Arc};

use batchlora::{Segments, SlotUpdate};
use burn::{
    backend::{Remote, tensor::FloatTensor},
    tensor::{DType, Device, FloatDType, Tensor},
};
use loraloom_model::{LayerAdapter, LlamaConfig};

use super::{
    link::Monitor,
    worker_connection::{Promise, WorkerConnection},
};
use crate::{
    Forwarded, MemoryGauge, Microbatch, MicrobatchId, PendingTimes, PipelineError, PipelineStage,
    RemoteInbox, StageCache, StageLayers, StageTimes, TrainStage,
    remote::wire::{
        Answer, Command, Specs, WireCache, WireMicrobatch, put_together, shapes, take_apart,
    },
};

/// A stage on a worker. Calls that compute return at once, with tensors that are still to be computed.
#[derive(Debug)]
pub struct RemoteStage {
    pub(super) worker: Arc<WorkerConnection>,
    pub(super) config: LlamaConfig,
    pub(super) layers: StageLayers,
    pub(super) dtype: DType,
    /// True if the worker computes on its CPU, and can time its passes.
    pub(super) on_cpu: bool,
    pub(super) weight_bytes: u64,
    pub(super) products: String,
    /// By group and slot.
    pub(super) groups: Vec<Vec<Specs>>,
    /// Rows of passes that are under way.
    pub(super) under_way: HashMap<MicrobatchId, usize>,
    pub(super) _monitor: Monitor,
}

fn first<const D: usize>(outputs: Vec<FloatTensor<Remote>>) -> Option<Tensor<D>> {
    let output = outputs.into_iter().next();
    output.map(Tensor::<D>::from_primitive::<Remote>)
}

impl RemoteStage {
    fn ends_model(&self) -> bool {
        self.layers.held().end == self.config.num_hidden_layers
    }

    fn begins_model(&self) -> bool {
        self.layers.held().start == 0
    }

    fn group(&self, group: usize) -> Result<&Vec<Specs>, PipelineError> {
        let groups = self.groups.len();
        let found = self.groups.get(group);
        found.ok_or(PipelineError::NoSuchGroup { group, groups })
    }

    fn slot(&self, group: usize, slot: usize) -> Result<&Specs, PipelineError> {
        let slots = self.group(group)?;
        let found = slots.get(slot);
        let slots = slots.len();
        found.ok_or_else(|| batchlora::BatchLoraError::NoSuchSlot { slot, slots }.into())
    }

    /// Sends a command that gives one output.
    fn compute<const D: usize>(
        &self,
        command: Command,
        input: Option<Tensor<2>>,
        promise: Promise,
        what: &str,
    ) -> Result<Tensor<D>, PipelineError> {
        let outputs = self
            .worker
            .send(command, Vec::from_iter(input), &[promise])?;
        first(outputs).ok_or_else(|| self.worker.failed(format!("it returned no {what}")))
    }

    fn ask(&self, command: Command, inputs: Vec<Tensor<2>>) -> Result<Answer, PipelineError> {
        let (answer, _) = self.worker.ask(command, inputs, &[])?;
        Ok(answer)
    }

    fn fetch(
        &self,
        group: usize,
        slot: usize,
        command: Command,
    ) -> Result<Vec<LayerAdapter>, PipelineError> {
        let specs = self.slot(group, slot)?;
        let promises: Vec<Promise> = shapes(specs, &self.config)
            .into_iter()
            .map(|shape| Promise::matrix(shape, DType::F32))
            .collect();
        let (answer, outputs) = self.worker.ask(command, Vec::new(), &promises)?;
        let tensors = outputs.into_iter().map(Tensor::from_primitive::<Remote>);
        put_together(specs, tensors.collect()).ok_or_else(|| self.strange(&answer))
    }

    fn strange(&self, answer: &Answer) -> PipelineError {
        let problem = format!("unexpected answer {answer:?}");
        self.worker.failed(problem)
    }

    fn hidden(&self, rows: usize) -> Promise {
        Promise::matrix([rows, self.config.d_model], self.dtype)
    }

    fn describe(&self, microbatch: &Microbatch) -> WireMicrobatch {
        WireMicrobatch::new(microbatch, self.begins_model(), self.ends_model())
    }
}

impl TrainStage for RemoteStage {
    fn device(&self) -> &Device {
        self.worker.compute()
    }

    fn computes_in_call(&self) -> bool {
        false
    }

    // A worker's GPU orders work by the thread of the controller, as one of this machine does.
    fn may_have_thread(&self) -> bool {
        self.on_cpu
    }

    fn measurement(
        &mut self,
        group: usize,
        microbatches: usize,
    ) -> Result<Option<PendingTimes>, PipelineError> {
        if !self.on_cpu {
            return Ok(None);
        }
        let length = StageTimes::length(microbatches);
        let promise = Promise::vector(length, DType::from(FloatDType::F32));
        let command = Command::Times {
            group,
            microbatches,
        };
        let values = self.compute(command, None, promise, "times")?;
        let clock = Arc::clone(self.worker.clock());
        Ok(Some(PendingTimes { values, clock }))
    }

    fn remote_inbox(&self) -> Option<Arc<dyn RemoteInbox>> {
        let inbox: Arc<dyn RemoteInbox> = self.worker.clone();
        Some(inbox)
    }

    fn forward(
        &mut self,
        at: MicrobatchId,
        microbatch: &Microbatch,
        hidden: Option<Tensor<2>>,
    ) -> Result<Forwarded, PipelineError> {
        self.group(at.group)?;
        let rows = microbatch.segments.rows();
        let command = Command::Forward {
            at,
            delivered: hidden.is_none() && !self.begins_model(),
            microbatch: self.describe(microbatch),
        };
        let ends_model = self.ends_model();
        let promise = if ends_model {
            Promise::vector(microbatch.targets.rows.len(), DType::F32)
        } else {
            self.hidden(rows)
        };
        let outputs = self
            .worker
            .send(command, Vec::from_iter(hidden), &[promise])?;
        self.under_way.insert(at, rows);
        let (hidden, losses) = if ends_model {
            (None, first(outputs))
        } else {
            (first(outputs), None)
        };
        Ok(Forwarded { hidden, losses })
    }

    fn backward(
        &mut self,
        at: MicrobatchId,
        gradient: Option<Tensor<2>>,
    ) -> Result<Option<Tensor<2>>, PipelineError> {
        let Some(rows) = self.under_way.remove(&at) else {
            return Err(PipelineError::NothingUnderWay {
                layers: self.layers.held(),
                pass: "backward pass",
                problem: "no forward pass before it",
            });
        };
        let promise = (!self.begins_model()).then(|| self.hidden(rows));
        let delivered = gradient.is_none() && !self.ends_model();
        let command = Command::Backward { at, delivered };
        let inputs = Vec::from_iter(gradient);
        let outputs = self.worker.send(command, inputs, promise.as_slice())?;
        Ok(first(outputs))
    }

    fn add_squares(
        &mut self,
        group: usize,
        above: Option<Tensor<2>>,
    ) -> Result<Tensor<2>, PipelineError> {
        let promise = Promise::squares(self.group(group)?.len());
        let delivered = above.is_none() && !self.ends_model();
        let command = Command::AddSquares { group, delivered };
        self.compute(command, above, promise, "squares")
    }

    fn update(
        &mut self,
        group: usize,
        updates: &[Option<SlotUpdate>],
        squares: Option<Tensor<2>>,
    ) -> Result<Tensor<1>, PipelineError> {
        let promise = Promise::vector(self.group(group)?.len(), DType::F32);
        let command = Command::Update {
            group,
            delivered: squares.is_none(),
            updates: updates.to_vec(),
        };
        self.compute(command, squares, promise, "norms")
    }
}

impl From<RemoteStage> for Box<dyn PipelineStage> {
    fn from(stage: RemoteStage) -> Self {
        Box::new(stage)
    }
}

impl PipelineStage for RemoteStage {
    fn layers(&self) -> &StageLayers {
        &self.layers
    }

    fn config(&self) -> &LlamaConfig {
        &self.config
    }

    fn name(&self) -> String {
        self.worker.address().to_owned()
    }

    fn reserve_groups(&mut self, count: usize) -> Result<(), PipelineError> {
        if self.groups.len() < count {
            self.ask(Command::ReserveGroups { count }, Vec::new())?;
            self.groups.resize_with(count, Vec::new);
        }
        Ok(())
    }

    fn swap_groups(&mut self, first: usize, second: usize) -> Result<(), PipelineError> {
        self.group(first)?;
        self.group(second)?;
        self.ask(Command::SwapGroups { first, second }, Vec::new())?;
        self.groups.swap(first, second);
        Ok(())
    }

    fn push(&mut self, group: usize, adapter: Vec<LayerAdapter>) -> Result<usize, PipelineError> {
        self.group(group)?;
        let (specs, tensors) = take_apart(adapter);
        let adapter = specs.clone();
        let answer = self.ask(Command::Push { group, adapter }, tensors)?;
        self.groups[group].push(specs);
        match answer {
            Answer::Slot(slot) => Ok(slot),
            answer => Err(self.strange(&answer)),
        }
    }

    fn remove(&mut self, group: usize, slot: usize) -> Result<Vec<LayerAdapter>, PipelineError> {
        let removed = self.fetch(group, slot, Command::Remove { group, slot })?;
        self.groups[group].remove(slot);
        Ok(removed)
    }

    fn extract(&self, group: usize, slot: usize) -> Result<Vec<LayerAdapter>, PipelineError> {
        self.fetch(group, slot, Command::Extract { group, slot })
    }

    fn infer(
        &self,
        group: usize,
        microbatch: &Microbatch,
        hidden: Option<Tensor<2>>,
        cache: Option<&mut StageCache>,
    ) -> Result<Tensor<2>, PipelineError> {
        self.group(group)?;
        let cache = match cache {
            Some(StageCache::Remote(cache)) => Some(cache.wire),
            _ => None,
        };
        let command = Command::Infer {
            group,
            microbatch: self.describe(microbatch),
            cache,
        };
        let promise = self.hidden(microbatch.segments.rows());
        self.compute(command, hidden, promise, "hidden states")
    }

    fn cache(&self, blocks: usize) -> StageCache {
        let worker = Arc::clone(&self.worker);
        let number = worker.next_cache();
        let wire = WireCache { number, blocks };
        StageCache::Remote(RemoteCache { worker, wire })
    }

    fn target_scores(
        &self,
        group: usize,
        microbatch: &Microbatch,
        hidden: Tensor<2>,
    ) -> Result<Tensor<2>, PipelineError> {
        self.group(group)?;
        let promise = Promise::matrix([2, microbatch.targets.rows.len()], DType::F32);
        let command = Command::TargetScores {
            group,
            microbatch: self.describe(microbatch),
        };
        self.compute(command, Some(hidden), promise, "scores")
    }

    fn logits(
        &self,
        group: usize,
        segments: &Segments,
        hidden: Tensor<2>,
    ) -> Result<Tensor<2>, PipelineError> {
        self.group(group)?;
        let shape = [hidden.dims()[0], self.config.vocab_size];
        let promise = Promise::matrix(shape, self.dtype);
        let segments = segments.iter().cloned().collect();
        let command = Command::Logits { group, segments };
        self.compute(command, Some(hidden), promise, "logits")
    }

    fn weight_bytes(&self) -> u64 {
        self.weight_bytes
    }

    fn products(&self) -> String {
        self.products.clone()
    }

    fn gauge(&self) -> MemoryGauge {
        MemoryGauge::of_worker(&self.worker)
    }

    fn failure(&self) -> Option<PipelineError> {
        self.worker.inquire()
    }
}

/// Keys and values that a worker keeps for a stage's layers.
#[derive(Debug)]
pub struct RemoteCache {
    worker: Arc<WorkerConnection>,
    wire: WireCache,
}

impl Drop for RemoteCache {
    fn drop(&mut self) {
        let cache = self.wire.number;
        // An error means that the worker is lost, which its next command reports.
        let _ = self
            .worker
            .send(Command::DropCache { cache }, Vec::new(), &[]);
    }
}

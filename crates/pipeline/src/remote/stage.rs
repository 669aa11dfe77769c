use std::{collections::HashMap, sync::Arc};

use batchlora::SlotUpdate;
use burn::{
    backend::{Remote, tensor::FloatTensor},
    tensor::{DType, Device, FloatDType, Tensor},
};
use loraloom_model::{LayerAdapter, LlamaConfig, Targets};

use super::{
    Reached, RemoteCache, StageOrder,
    adapters::{Specs, put_together, shapes, take_apart},
    error::WorkerError,
    line::Line,
    monitor::Monitor,
    session::Promise,
    wire::{Answer, Command},
    wire_microbatch::{WireMicrobatch, WireTargets},
};
use crate::{
    Forwarded, Measurement, Microbatch, MicrobatchId, PipelineError, RemoteInbox, StageLayers,
    StepTimes, TrainStage,
};

/// A stage that a worker holds. Calls that compute return at once, with tensors still to come.
#[derive(Debug)]
pub struct RemoteStage {
    line: Arc<Line>,
    config: LlamaConfig,
    layers: StageLayers,
    dtype: DType,
    /// The worker computes a pass in the call, and can tell how long it took.
    on_cpu: bool,
    weight_bytes: u64,
    products: String,
    /// By group and slot.
    groups: Vec<Vec<Specs>>,
    /// Rows of passes that are under way.
    under_way: HashMap<MicrobatchId, usize>,
    _monitor: Monitor,
}

fn matrix(outputs: Vec<FloatTensor<Remote>>) -> Option<Tensor<2>> {
    let output = outputs.into_iter().next();
    output.map(Tensor::from_primitive::<Remote>)
}

fn vector(outputs: Vec<FloatTensor<Remote>>) -> Option<Tensor<1>> {
    let output = outputs.into_iter().next();
    output.map(Tensor::from_primitive::<Remote>)
}

impl RemoteStage {
    pub(super) fn new(
        reached: Reached,
        order: &StageOrder<'_>,
        (weight_bytes, products): (u64, String),
        monitor: Monitor,
    ) -> Self {
        let (line, config, on_cpu) = reached.into_parts();
        Self {
            line,
            config,
            layers: order.layers.clone(),
            dtype: order.dtype.into(),
            on_cpu,
            weight_bytes,
            products,
            groups: Vec::new(),
            under_way: HashMap::new(),
            _monitor: monitor,
        }
    }

    /// Where the worker is.
    pub fn address(&self) -> &str {
        self.line.place().1
    }

    /// The decoder layers of this stage.
    pub(crate) fn layers_by_group(&self) -> &StageLayers {
        &self.layers
    }

    /// The configuration of the whole model.
    pub(crate) fn config(&self) -> &LlamaConfig {
        &self.config
    }

    /// The session that computes.
    pub(crate) fn device(&self) -> &Device {
        self.line.compute()
    }

    pub(crate) fn ends_model(&self) -> bool {
        self.layers.held().end == self.config.num_hidden_layers
    }

    fn begins_model(&self) -> bool {
        self.layers.held().start == 0
    }

    /// Why stages on workers cannot go on, if one of them cannot.
    pub(crate) fn failure(&self) -> Option<PipelineError> {
        self.line.inquire()
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

    fn ask(&self, command: Command, inputs: Vec<Tensor<2>>) -> Result<Answer, PipelineError> {
        let (answer, _) = self.line.ask(command, inputs, &[])?;
        Ok(answer)
    }

    /// See [`Stage::reserve_groups`](crate::Stage::reserve_groups).
    pub(crate) fn reserve_groups(&mut self, count: usize) -> Result<(), PipelineError> {
        if self.groups.len() < count {
            self.ask(Command::ReserveGroups { count }, Vec::new())?;
            self.groups.resize_with(count, Vec::new);
        }
        Ok(())
    }

    /// See [`Stage::swap_groups`](crate::Stage::swap_groups).
    pub(crate) fn swap_groups(&mut self, first: usize, second: usize) -> Result<(), PipelineError> {
        self.group(first)?;
        self.group(second)?;
        self.ask(Command::SwapGroups { first, second }, Vec::new())?;
        self.groups.swap(first, second);
        Ok(())
    }

    /// See [`Stage::push`](crate::Stage::push).
    pub(crate) fn push(
        &mut self,
        group: usize,
        adapter: Vec<LayerAdapter>,
    ) -> Result<usize, PipelineError> {
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

    /// See [`Stage::remove`](crate::Stage::remove).
    pub(crate) fn remove(
        &mut self,
        group: usize,
        slot: usize,
    ) -> Result<Vec<LayerAdapter>, PipelineError> {
        let removed = self.fetch(group, slot, Command::Remove { group, slot })?;
        self.groups[group].remove(slot);
        Ok(removed)
    }

    /// See [`Stage::extract`](crate::Stage::extract).
    pub(crate) fn extract(
        &self,
        group: usize,
        slot: usize,
    ) -> Result<Vec<LayerAdapter>, PipelineError> {
        self.fetch(group, slot, Command::Extract { group, slot })
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
        let (answer, outputs) = self.line.ask(command, Vec::new(), &promises)?;
        let tensors = outputs.into_iter().map(Tensor::from_primitive::<Remote>);
        put_together(specs, tensors.collect()).ok_or_else(|| self.strange(&answer))
    }

    fn strange(&self, answer: &Answer) -> PipelineError {
        let reason = format!("its answer {answer:?} does not fit the question");
        self.line.problem(WorkerError::Failed { reason })
    }

    fn missing(&self, what: &'static str) -> PipelineError {
        let reason = format!("it gives no {what}");
        self.line.problem(WorkerError::Failed { reason })
    }

    fn hidden(&self, rows: usize) -> Promise {
        Promise::matrix([rows, self.config.d_model], self.dtype)
    }

    fn describe(&self, microbatch: &Microbatch) -> WireMicrobatch {
        WireMicrobatch::new(microbatch, self.begins_model(), self.ends_model())
    }

    /// The layers over hidden states, which the first stage makes itself, without keeping anything
    /// but what goes into a cache.
    pub(crate) fn infer(
        &self,
        group: usize,
        microbatch: &Microbatch,
        hidden: Option<Tensor<2>>,
        cache: Option<&RemoteCache>,
    ) -> Result<Tensor<2>, PipelineError> {
        self.group(group)?;
        let command = Command::Infer {
            group,
            microbatch: self.describe(microbatch),
            cache: cache.map(RemoteCache::number),
        };
        let promise = self.hidden(microbatch.segments.rows());
        let outputs = self
            .line
            .send(command, Vec::from_iter(hidden), &[promise])?;
        matrix(outputs).ok_or_else(|| self.missing("hidden states"))
    }

    /// An empty cache.
    pub(crate) fn cache(&self) -> RemoteCache {
        RemoteCache::new(Arc::clone(&self.line))
    }

    /// See [`Stage::target_losses`](crate::Stage::target_losses).
    pub(crate) fn target_losses(
        &self,
        hidden: Tensor<2>,
        targets: &Targets,
    ) -> Result<Tensor<1>, PipelineError> {
        let promise = Promise::vector(targets.rows.len(), DType::F32);
        let targets = WireTargets::from(targets);
        let command = Command::TargetLosses { targets };
        let outputs = self.line.send(command, vec![hidden], &[promise])?;
        vector(outputs).ok_or_else(|| self.missing("losses"))
    }

    /// See [`Stage::logits`](crate::Stage::logits).
    pub(crate) fn logits(&self, hidden: Tensor<2>) -> Result<Tensor<2>, PipelineError> {
        let shape = [hidden.dims()[0], self.config.vocab_size];
        let promise = Promise::matrix(shape, self.dtype);
        let outputs = self.line.send(Command::Logits, vec![hidden], &[promise])?;
        matrix(outputs).ok_or_else(|| self.missing("logits"))
    }

    /// Bytes of the layers' weights in the worker's memory.
    pub(crate) fn weight_bytes(&self) -> u64 {
        self.weight_bytes
    }

    pub(crate) fn products(&self) -> &str {
        &self.products
    }

    /// What is known of the worker without asking it.
    pub(crate) fn line(&self) -> &Arc<Line> {
        &self.line
    }
}

impl TrainStage for RemoteStage {
    fn device(&self) -> Device {
        self.line.compute().clone()
    }

    fn computes_in_call(&self) -> bool {
        false
    }

    // A worker's GPU goes by the thread of the controller, as one of this machine would.
    fn may_have_thread(&self) -> bool {
        self.on_cpu
    }

    fn measurement(
        &mut self,
        group: usize,
        microbatches: usize,
    ) -> Result<Option<Measurement>, PipelineError> {
        if !self.on_cpu {
            return Ok(None);
        }
        let length = StepTimes::length(microbatches);
        let promise = Promise::vector(length, DType::from(FloatDType::F32));
        let command = Command::Times {
            group,
            microbatches,
        };
        let values = vector(self.line.send(command, Vec::new(), &[promise])?);
        let clock = Arc::clone(self.line.clock());
        Ok(values.map(|values| Measurement { values, clock }))
    }

    fn remote_inbox(&self) -> Option<Arc<dyn RemoteInbox>> {
        let line: Arc<dyn RemoteInbox> = self.line.clone();
        Some(line)
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
            .line
            .send(command, Vec::from_iter(hidden), &[promise])?;
        self.under_way.insert(at, rows);
        let (hidden, losses) = if ends_model {
            (None, vector(outputs))
        } else {
            (matrix(outputs), None)
        };
        Ok(Forwarded { hidden, losses })
    }

    fn backward(
        &mut self,
        at: MicrobatchId,
        gradient: Option<Tensor<2>>,
    ) -> Result<Option<Tensor<2>>, PipelineError> {
        let Some(rows) = self.under_way.remove(&at) else {
            let layers = self.layers.held();
            return Err(PipelineError::NothingUnderWay {
                first: layers.start,
                end: layers.end,
                pass: "backward pass",
                problem: "no forward pass before it",
            });
        };
        let promise = (!self.begins_model()).then(|| self.hidden(rows));
        let delivered = gradient.is_none() && !self.ends_model();
        let command = Command::Backward { at, delivered };
        let inputs = Vec::from_iter(gradient);
        Ok(matrix(self.line.send(
            command,
            inputs,
            promise.as_slice(),
        )?))
    }

    fn add_squares(
        &mut self,
        group: usize,
        above: Option<Tensor<2>>,
    ) -> Result<Tensor<2>, PipelineError> {
        let promise = Promise::squares(self.group(group)?.len());
        let delivered = above.is_none() && !self.ends_model();
        let command = Command::AddSquares { group, delivered };
        let outputs = self.line.send(command, Vec::from_iter(above), &[promise])?;
        matrix(outputs).ok_or_else(|| self.missing("squares"))
    }

    fn update(
        &mut self,
        group: usize,
        updates: &[Option<SlotUpdate>],
        squares: Option<Tensor<2>>,
    ) -> Result<Tensor<1>, PipelineError> {
        let promise = Promise::vector(self.group(group)?.len(), DType::F32);
        let updates = updates
            .iter()
            .map(|update| update.map(Into::into))
            .collect();
        let delivered = squares.is_none();
        let command = Command::Update {
            group,
            delivered,
            updates,
        };
        let inputs = Vec::from_iter(squares);
        let outputs = self.line.send(command, inputs, &[promise])?;
        vector(outputs).ok_or_else(|| self.missing("norms"))
    }
}

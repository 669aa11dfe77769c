use std::{collections::HashMap, ops::Range};

use batchlora::{AdamWStep, GradientNorms, SlotUpdate};
use burn::tensor::{Device, Tensor};
use loraloom_model::{LayerAdapter, LayerCache};

use crate::{
    Forwarded, HostMemory, Microbatch, MicrobatchId, PipelineError, Stage, StageGradients, Tape,
    TrainStage, microbatch::PlacedMicrobatch, tape::free_dropped_graphs,
};

/// A stage on a device of this process, with the passes that are under way.
#[derive(Debug)]
pub(crate) struct LocalStage {
    stage: Stage,
    under_way: HashMap<MicrobatchId, UnderWay>,
    /// By group, of steps that are still to be taken.
    gradients: HashMap<usize, StageGradients>,
    /// Bytes that this process may have allocated, if the stage computes in its memory.
    memory_limit: Option<u64>,
}

/// What a forward pass leaves for its backward pass.
#[derive(Debug)]
struct UnderWay {
    tape: Tape,
    microbatch: PlacedMicrobatch,
    /// Of the stage's output, on the last stage.
    gradient: Option<Tensor<2>>,
}

impl LocalStage {
    pub(crate) fn new(stage: Stage) -> Self {
        Self {
            stage,
            under_way: HashMap::new(),
            gradients: HashMap::new(),
            memory_limit: None,
        }
    }

    pub(crate) fn stage(&self) -> &Stage {
        &self.stage
    }

    pub(crate) fn reserve_groups(&mut self, count: usize) {
        self.stage.reserve_groups(count);
    }

    /// See [`Stage::push`]. Gradients of the group that wait for the rest of their step are dropped:
    /// they would not fit its adapters any more. Those steps have to be begun again.
    pub(crate) fn push(
        &mut self,
        group: usize,
        adapter: Vec<LayerAdapter>,
    ) -> Result<usize, PipelineError> {
        self.gradients.remove(&group);
        self.stage.push(group, adapter)
    }

    /// See [`Stage::remove`]. Gradients of the group are dropped as by [`push`](Self::push).
    pub(crate) fn remove(
        &mut self,
        group: usize,
        slot: usize,
    ) -> Result<Vec<LayerAdapter>, PipelineError> {
        self.gradients.remove(&group);
        self.stage.remove(group, slot)
    }

    /// See [`Stage::swap_groups`]. Gradients go with their groups.
    pub(crate) fn swap_groups(&mut self, first: usize, second: usize) -> Result<(), PipelineError> {
        self.stage.swap_groups(first, second)?;
        let (of_first, of_second) = (
            self.gradients.remove(&first),
            self.gradients.remove(&second),
        );
        self.gradients
            .extend(of_first.map(|gradients| (second, gradients)));
        self.gradients
            .extend(of_second.map(|gradients| (first, gradients)));
        Ok(())
    }

    /// Has passes fail that take more; of a GPU the driver knows better.
    pub(crate) fn limit_memory(&mut self, bytes: Option<u64>) {
        self.memory_limit = bytes.filter(|_| self.computes_in_call());
    }

    /// Whether what the pass that has just ended took is within the limit.
    fn keep_to_limit(&self) -> Result<(), PipelineError> {
        let Some((limit, memory)) = self.memory_limit.zip(HostMemory::counted()) else {
            return Ok(());
        };
        let used = (memory.peak)();
        if used <= limit {
            return Ok(());
        }
        let Range { start, end } = self.stage.layers();
        Err(PipelineError::OutOfMemory {
            first: start,
            end,
            used,
            limit,
        })
    }

    /// Drops every pass that is under way, and all gradients.
    pub(crate) fn abandon(&mut self) {
        self.under_way.clear();
        self.gradients.clear();
        let device = self.stage.device();
        free_dropped_graphs(device);
        // What the failed pass left on its way, and what it took, does not count against the next one.
        let _ = device.sync();
        let _ = batchlora::product_failure();
        if let Some(memory) = HostMemory::counted() {
            (memory.take_peak)();
        }
    }

    /// The layers over hidden states, which the first stage makes itself, without keeping anything
    /// but what goes into caches, one per layer that it holds.
    pub(crate) fn infer(
        &self,
        group: usize,
        microbatch: &Microbatch,
        hidden: Option<Tensor<2>>,
        caches: Option<&mut [LayerCache]>,
    ) -> Result<Tensor<2>, PipelineError> {
        let stage = &self.stage;
        let placed = microbatch.place(stage.rotary());
        let hidden = match hidden {
            Some(hidden) => hidden,
            None => stage.embed(&microbatch.ids)?,
        };
        match caches {
            Some(caches) => stage.infer_cached(group, hidden, &placed, caches),
            None => stage.infer(group, hidden, &placed),
        }
    }

    fn misses(&self, pass: &'static str, problem: &'static str) -> PipelineError {
        let layers = self.stage.layers();
        PipelineError::NothingUnderWay {
            first: layers.start,
            end: layers.end,
            pass,
            problem,
        }
    }
}

impl TrainStage for LocalStage {
    fn device(&self) -> Device {
        self.stage.device().clone()
    }

    fn computes_in_call(&self) -> bool {
        *self.stage.device() == Device::flex()
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
        let placed = microbatch.place(self.stage.rotary());
        let hidden = match hidden {
            Some(hidden) => hidden,
            None => self.stage.embed(&microbatch.ids)?,
        };
        let (hidden, tape) = self.stage.forward(at.group, hidden, &placed)?;
        let (forwarded, gradient) = if self.stage.ends_model() {
            let (losses, gradient) = self.stage.loss(hidden, &microbatch.targets)?;
            let losses = Some(losses);
            (
                Forwarded {
                    hidden: None,
                    losses,
                },
                Some(gradient),
            )
        } else {
            let hidden = Some(hidden);
            (
                Forwarded {
                    hidden,
                    losses: None,
                },
                None,
            )
        };
        let under_way = UnderWay {
            tape,
            microbatch: placed,
            gradient,
        };
        self.under_way.insert(at, under_way);
        self.keep_to_limit()?;
        Ok(forwarded)
    }

    fn backward(
        &mut self,
        at: MicrobatchId,
        gradient: Option<Tensor<2>>,
    ) -> Result<Option<Tensor<2>>, PipelineError> {
        let Some(under_way) = self.under_way.remove(&at) else {
            return Err(self.misses("backward pass", "no forward pass before it"));
        };
        let Some(gradient) = gradient.or(under_way.gradient) else {
            return Err(self.misses("backward pass", "no gradient from above"));
        };
        let microbatch = &under_way.microbatch;
        let (gradients, below) =
            self.stage
                .backward(at.group, under_way.tape, gradient, microbatch)?;
        match self.gradients.get_mut(&at.group) {
            Some(sum) => sum.accumulate(gradients),
            None => {
                self.gradients.insert(at.group, gradients);
            }
        }
        self.keep_to_limit()?;
        Ok(below)
    }

    fn add_squares(
        &mut self,
        group: usize,
        above: Option<Tensor<2>>,
    ) -> Result<Tensor<2>, PipelineError> {
        let above = above.map(GradientNorms::from_sums);
        let gradients = self.gradients.get(&group);
        let norms = self.stage.add_squares(group, above, gradients)?;
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
        if let Some(gradients) = self.gradients.remove(&group) {
            let waits = |slot: usize| updates.get(slot).is_some_and(Option::is_none);
            if updates.iter().all(Option::is_none) {
                self.gradients.insert(group, gradients);
                return Ok(norms);
            }
            if (0..updates.len()).any(waits) {
                let kept = self.stage.keep(group, &gradients, waits)?;
                self.gradients.insert(group, kept);
            }
            let step = AdamWStep::new(updates, norms.clone());
            self.stage.step(group, gradients, &step)?;
        }
        Ok(norms)
    }
}

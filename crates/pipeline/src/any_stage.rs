use std::{ops::Range, sync::Arc};

use batchlora::SlotUpdate;
use burn::tensor::{Device, Tensor};
use loraloom_model::{LayerAdapter, LayerCache, LlamaConfig, Targets};

#[cfg(feature = "remote")]
use crate::remote::{RemoteCache, RemoteStage};
use crate::{
    Forwarded, Measurement, MemoryGauge, Microbatch, MicrobatchId, PipelineError, RemoteInbox,
    Stage, StageLayers, TrainStage, device_name, local_stage::LocalStage, transfer::Transfer,
};

/// A stage, wherever its layers are.
#[derive(Debug)]
pub struct AnyStage(Kind);

#[derive(Debug)]
enum Kind {
    Local(Box<LocalStage>),
    #[cfg(feature = "remote")]
    Remote(Box<RemoteStage>),
}

impl From<Stage> for AnyStage {
    fn from(stage: Stage) -> Self {
        Self(Kind::Local(Box::new(LocalStage::new(stage))))
    }
}

#[cfg(feature = "remote")]
impl From<RemoteStage> for AnyStage {
    fn from(stage: RemoteStage) -> Self {
        Self(Kind::Remote(Box::new(stage)))
    }
}

/// Keys and values of a stage's layers.
#[derive(Debug, Clone)]
pub(crate) enum StageCache {
    Local(Vec<LayerCache>),
    #[cfg(feature = "remote")]
    Remote(RemoteCache),
}

/// What one kind of stage does, or the other.
macro_rules! either {
    ($self:expr, $stage:ident => $local:expr, $remote:expr) => {
        match $self {
            Kind::Local($stage) => $local,
            #[cfg(feature = "remote")]
            Kind::Remote($stage) => $remote,
        }
    };
}

impl AnyStage {
    /// All that it holds.
    pub(crate) fn layers(&self) -> Range<usize> {
        self.layers_by_group().held()
    }

    pub(crate) fn layers_by_group(&self) -> &StageLayers {
        either!(&self.0, stage => stage.stage().layers_by_group(), stage.layers_by_group())
    }

    pub(crate) fn ends_model(&self) -> bool {
        either!(&self.0, stage => stage.stage().ends_model(), stage.ends_model())
    }

    pub(crate) fn device(&self) -> &Device {
        either!(&self.0, stage => stage.stage().device(), stage.device())
    }

    /// Whether the stage is in this process.
    pub(crate) fn is_local(&self) -> bool {
        either!(&self.0, _stage => true, {
            let _ = _stage;
            false
        })
    }

    /// What the stage is on, for people.
    pub(crate) fn name(&self) -> String {
        either!(&self.0, stage => device_name(stage.stage().device()), stage.address().to_owned())
    }

    pub(crate) fn config(&self) -> &LlamaConfig {
        either!(&self.0, stage => stage.stage().config(), stage.config())
    }

    /// Why the stage cannot go on, if it is elsewhere and has a reason of its own.
    pub(crate) fn failure(&self) -> Option<PipelineError> {
        either!(&self.0, _stage => None, _stage.failure())
    }

    /// Bytes of its layers' weights in memory.
    pub(crate) fn weight_bytes(&self) -> u64 {
        either!(&self.0, stage => stage.stage().weight_bytes(), stage.weight_bytes())
    }

    /// What multiplies its matrices, for people.
    pub(crate) fn products(&self) -> String {
        either!(&self.0, stage => stage.stage().products(), stage.products().to_owned())
    }

    pub(crate) fn gauge(&self) -> MemoryGauge {
        either!(&self.0, stage => MemoryGauge::of(stage.stage().device()),
            MemoryGauge::of_worker(stage.line()))
    }

    /// Has passes fail that take more memory, where that is known.
    pub(crate) fn limit_memory(&mut self, bytes: Option<u64>) {
        either!(&mut self.0, stage => stage.limit_memory(bytes), {
            let _ = (stage, bytes);
        });
    }

    /// Drops all passes that are under way; whether the stage can.
    pub(crate) fn abandon(&mut self) -> bool {
        either!(&mut self.0, stage => {
            stage.abandon();
            true
        }, {
            let _ = stage;
            false
        })
    }

    #[cfg_attr(
        not(feature = "remote"),
        expect(clippy::unnecessary_wraps, reason = "a worker can fail")
    )]
    pub(crate) fn reserve_groups(&mut self, count: usize) -> Result<(), PipelineError> {
        either!(&mut self.0, stage => {
            stage.reserve_groups(count);
            Ok(())
        }, stage.reserve_groups(count))
    }

    pub(crate) fn swap_groups(&mut self, first: usize, second: usize) -> Result<(), PipelineError> {
        either!(&mut self.0, stage => stage.swap_groups(first, second),
            stage.swap_groups(first, second))
    }

    pub(crate) fn push(
        &mut self,
        group: usize,
        adapter: Vec<LayerAdapter>,
    ) -> Result<usize, PipelineError> {
        either!(&mut self.0, stage => stage.push(group, adapter),
            stage.push(group, adapter))
    }

    pub(crate) fn remove(
        &mut self,
        group: usize,
        slot: usize,
    ) -> Result<Vec<LayerAdapter>, PipelineError> {
        either!(&mut self.0, stage => stage.remove(group, slot),
            stage.remove(group, slot))
    }

    pub(crate) fn extract(
        &self,
        group: usize,
        slot: usize,
    ) -> Result<Vec<LayerAdapter>, PipelineError> {
        either!(&self.0, stage => stage.stage().extract(group, slot), stage.extract(group, slot))
    }

    pub(crate) fn cache(&self) -> StageCache {
        either!(&self.0, stage => {
            let layers = stage.stage().layers().len();
            StageCache::Local(vec![LayerCache::default(); layers])
        }, StageCache::Remote(stage.cache()))
    }

    /// The layers over hidden states, which the first stage makes itself, without keeping anything
    /// but what goes into a cache.
    pub(crate) fn infer(
        &self,
        group: usize,
        microbatch: &Microbatch,
        hidden: Option<Tensor<2>>,
        cache: Option<&mut StageCache>,
    ) -> Result<Tensor<2>, PipelineError> {
        let hidden = match hidden {
            Some(hidden) => Transfer::begin(hidden, self.device())?.end()?.0,
            None => None,
        };
        either!(&self.0, stage => {
            let layers = match cache {
                Some(StageCache::Local(layers)) => Some(layers.as_mut_slice()),
                _ => None,
            };
            stage.infer(group, microbatch, hidden, layers)
        }, {
            let cache = match &cache {
                Some(StageCache::Remote(cache)) => Some(cache),
                _ => None,
            };
            stage.infer(group, microbatch, hidden, cache)
        })
    }

    pub(crate) fn target_losses(
        &self,
        hidden: Tensor<2>,
        targets: &Targets,
    ) -> Result<Tensor<1>, PipelineError> {
        either!(&self.0, stage => stage.stage().target_losses(hidden, targets),
            stage.target_losses(hidden, targets))
    }

    pub(crate) fn logits(&self, hidden: Tensor<2>) -> Result<Tensor<2>, PipelineError> {
        either!(&self.0, stage => stage.stage().logits(hidden), stage.logits(hidden))
    }
}

impl TrainStage for AnyStage {
    fn device(&self) -> Device {
        self.device().clone()
    }

    fn may_have_thread(&self) -> bool {
        either!(&self.0, stage => stage.may_have_thread(), stage.may_have_thread())
    }

    fn computes_in_call(&self) -> bool {
        either!(&self.0, stage => stage.computes_in_call(), stage.computes_in_call())
    }

    fn measurement(
        &mut self,
        group: usize,
        microbatches: usize,
    ) -> Result<Option<Measurement>, PipelineError> {
        either!(&mut self.0, stage => stage.measurement(group, microbatches),
            stage.measurement(group, microbatches))
    }

    fn remote_inbox(&self) -> Option<Arc<dyn RemoteInbox>> {
        either!(&self.0, stage => stage.remote_inbox(), stage.remote_inbox())
    }

    fn forward(
        &mut self,
        at: MicrobatchId,
        microbatch: &Microbatch,
        hidden: Option<Tensor<2>>,
    ) -> Result<Forwarded, PipelineError> {
        either!(&mut self.0, stage => stage.forward(at, microbatch, hidden),
            stage.forward(at, microbatch, hidden))
    }

    fn backward(
        &mut self,
        at: MicrobatchId,
        gradient: Option<Tensor<2>>,
    ) -> Result<Option<Tensor<2>>, PipelineError> {
        either!(&mut self.0, stage => stage.backward(at, gradient), stage.backward(at, gradient))
    }

    fn add_squares(
        &mut self,
        group: usize,
        above: Option<Tensor<2>>,
    ) -> Result<Tensor<2>, PipelineError> {
        either!(&mut self.0, stage => stage.add_squares(group, above),
            stage.add_squares(group, above))
    }

    fn update(
        &mut self,
        group: usize,
        updates: &[Option<SlotUpdate>],
        squares: Option<Tensor<2>>,
    ) -> Result<Tensor<1>, PipelineError> {
        either!(&mut self.0, stage => stage.update(group, updates, squares),
            stage.update(group, updates, squares))
    }
}

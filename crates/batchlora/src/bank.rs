use std::{
    ops::Range,
    sync::{Arc, OnceLock},
};

use burn::{
    module::{
        Content, Devices, Module, ModuleDisplay, ModuleDisplayDefault, ModuleMapper, ModuleVisitor,
        Param,
    },
    tensor::{DType, Device, GradientCheckpointingStrategy, Gradients, Tensor},
};

use crate::{
    AdapterState, BatchLora, BatchLoraError, DropoutDraw, DropoutKey, LoraPair, LoraSpec,
    RoutedSegment, Routing, Segments,
    attached::{DoraNorms, trained_part},
    dora,
    packed::Packed,
    rank_tables::RankTables,
};

/// All adapters of one linear layer, packed: A as row blocks `[Σr, d_in]`, B as row blocks
/// `[Σr, d_out]`, a row `[d_out]` for each magnitude of DoRA, the moments alike.
///
/// Slots are numbered in order of arrival; a slot may be empty (an adapter that does not adapt this layer).
/// All banks of a model are pushed to and removed from together, so that a slot is the same adapter in each
/// of them. Repacking copies megabytes and happens between steps.
///
/// A bank is a [`Module`] with the parameters `a`, `b` and, with DoRA, `magnitude`. Its record has the weights; moments, ranks and
/// scales leave and enter it as [`AdapterState`]s. A new bank is outside of any graph; [`Module::train`]
/// makes A and B leaves.
#[derive(Debug, Clone)]
pub struct AdapterBank {
    d_in: usize,
    d_out: usize,
    module: u32,
    device: Device,
    slots: Vec<Option<LoraSpec>>,
    packed: Option<Packed>,
    /// Made at the first optimizer step after the slots changed.
    tables: OnceLock<RankTables>,
    /// Made at the first forward pass with DoRA after the weights changed.
    norms: Arc<DoraNorms>,
}

impl AdapterBank {
    /// An empty bank for a linear layer `[d_in, d_out]`. `module` is the layer's coordinate in the
    /// dropout counter, distinct for every adapted layer of a model.
    pub fn new(d_in: usize, d_out: usize, module: u32, device: &Device) -> Self {
        let device = device.clone().without_autodiff();
        Self {
            d_in,
            d_out,
            module,
            device,
            slots: Vec::new(),
            packed: None,
            tables: OnceLock::new(),
            norms: Arc::default(),
        }
    }

    /// Adds an adapter, or an empty slot, and returns its slot.
    ///
    /// # Errors
    /// [`BatchLoraError::Shape`] if the adapter is not for a layer of this shape,
    /// [`BatchLoraError::InvalidConfig`] for DoRA without a magnitude: see [`AdapterState::with_norms_of`].
    pub fn push(&mut self, adapter: Option<AdapterState>) -> Result<usize, BatchLoraError> {
        if let Some(state) = &adapter {
            dora::check(&state.spec, &state.weights)?;
            let (d_in, d_out) = (state.weights.a.dims()[1], state.weights.b.dims()[1]);
            if (d_in, d_out) != (self.d_in, self.d_out) {
                return Err(BatchLoraError::Shape(format!(
                    "an adapter for a layer [{d_in}, {d_out}] does not fit one of [{}, {}]",
                    self.d_in, self.d_out
                )));
            }
        }
        self.slots.push(adapter.as_ref().map(|state| state.spec));
        if let Some(state) = adapter {
            let added = [state.weights, state.first_moment, state.second_moment]
                .map(|pair| pair.map(|t| t.without_autodiff().to_device(&self.device)));
            let join = |top, bottom| Tensor::cat(vec![top, bottom], 0);
            self.packed = Some(match self.packed.take() {
                Some(packed) => packed.map(|[weights, first, second]| {
                    let [w, f, s] = added;
                    [(weights, w), (first, f), (second, s)]
                        .map(|(top, bottom)| top.zip_with(bottom, join))
                }),
                None => Packed::new(added),
            });
        }
        self.forget();
        Ok(self.slots.len() - 1)
    }

    /// Takes a slot out; later slots move down by one. Returns its adapter if it had one.
    ///
    /// # Errors
    /// [`BatchLoraError::NoSuchSlot`].
    pub fn remove(&mut self, slot: usize) -> Result<Option<AdapterState>, BatchLoraError> {
        let removed = self.extract(slot)?;
        if removed.is_some() {
            let (ranks, magnitudes) = (self.ranks(slot), self.magnitude_rows(slot));
            let (total, packed) = (self.rank_sum(), self.packed.take());
            let rest = |t: &Tensor<2>, taken: &Range<usize>| {
                let parts = [0..taken.start, taken.end..t.dims()[0]].into_iter();
                let parts = parts.filter(|part| !part.is_empty());
                let parts = parts.map(|part| t.clone().slice_dim(0, part));
                Tensor::cat(parts.collect(), 0)
            };
            let without = |pair: LoraPair| LoraPair {
                a: rest(&pair.a, &ranks),
                b: rest(&pair.b, &ranks),
                magnitude: pair
                    .magnitude
                    .filter(|all| magnitudes.len() < all.dims()[0])
                    .map(|all| rest(&all, &magnitudes)),
            };
            self.packed = packed
                .filter(|_| ranks.len() < total)
                .map(|packed| packed.map(|pairs| pairs.map(without)));
        }
        self.slots.remove(slot);
        self.forget();
        Ok(removed)
    }

    /// A copy of a slot's adapter and moments, outside of any graph; `None` if the slot is empty.
    ///
    /// # Errors
    /// [`BatchLoraError::NoSuchSlot`].
    pub fn extract(&self, slot: usize) -> Result<Option<AdapterState>, BatchLoraError> {
        let spec = self.spec(slot)?;
        let (ranks, magnitudes) = (self.ranks(slot), self.magnitude_rows(slot));
        Ok(self.packed.as_ref().zip(spec).map(|(packed, spec)| {
            let part = |t: &Tensor<2>, rows: &Range<usize>| {
                t.clone().without_autodiff().slice_dim(0, rows.clone())
            };
            let rows = |pair: &LoraPair| LoraPair {
                a: part(&pair.a, &ranks),
                b: part(&pair.b, &ranks),
                magnitude: pair
                    .magnitude
                    .as_ref()
                    .filter(|_| !magnitudes.is_empty())
                    .map(|all| part(all, &magnitudes)),
            };
            AdapterState {
                spec,
                weights: rows(&packed.weights()),
                first_moment: rows(&packed.first_moment),
                second_moment: rows(&packed.second_moment),
            }
        }))
    }

    /// The rows of the packed weights that each row of a batch is multiplied with. `draws` has one entry per
    /// slot and turns dropout on; `None` is evaluation.
    ///
    /// # Errors
    /// [`BatchLoraError`] if a segment names a slot that does not exist, or `draws` is not one per
    /// slot.
    pub fn route(
        &self,
        segments: &Segments,
        draws: Option<&[DropoutDraw]>,
    ) -> Result<Routing, BatchLoraError> {
        if let Some(draws) = draws
            && draws.len() != self.slots.len()
        {
            return Err(BatchLoraError::Shape(format!(
                "{} dropout draws for {} slots",
                draws.len(),
                self.slots.len()
            )));
        }
        let mut routed = Vec::new();
        for (segment, &loss_scale) in segments.iter().zip(segments.loss_scales()) {
            let slot = segment.slot;
            let spec = self.spec(slot)?;
            if let Some(spec) = spec.filter(|_| !segment.rows.is_empty()) {
                let draws = draws.filter(|_| spec.lora_dropout > 0.0);
                let dropout = draws.map(|draws| DropoutKey {
                    probability: spec.lora_dropout,
                    seed: draws[slot].seed,
                    step: draws[slot].step,
                    module: self.module,
                });
                routed.push(RoutedSegment {
                    rows: segment.rows.clone(),
                    ranks: self.ranks(slot),
                    scale: spec.scale() as f32,
                    loss_scale,
                    freeze_a: spec.freeze_a,
                    dropout,
                    magnitude: self.magnitude_rows(slot).next(),
                });
            }
        }
        let magnitudes = self.magnitude_rows(self.slots.len()).start;
        Ok(Routing::new(
            segments.clone(),
            routed,
            self.rank_sum(),
            magnitudes,
        ))
    }

    /// The bank's adapters for one forward pass over this batch; `None` if no row of it has an adapter here.
    /// Arguments and errors are those of [`Self::route`].
    ///
    /// # Errors
    /// See [`Self::route`].
    pub fn attach(
        &self,
        segments: &Segments,
        draws: Option<&[DropoutDraw]>,
    ) -> Result<Option<BatchLora>, BatchLoraError> {
        let routing = self.route(segments, draws)?;
        let weights = self.weights().filter(|_| routing.rank_max() > 0);
        let trained_rows = self.trained_rows().cloned();
        Ok(weights.map(|weights| {
            let specs = self.slots.iter().flatten().copied().collect();
            BatchLora::new(weights, routing, specs, self.norms.clone(), trained_rows)
        }))
    }

    /// 1 for packed rows that are trained, `[Σr, 1]`; `None` if all are.
    fn trained_rows(&self) -> Option<&Tensor<2>> {
        let mut specs = self.slots.iter().flatten();
        let tables = specs
            .any(|spec| spec.frozen_ranks > 0)
            .then(|| self.rank_tables());
        tables??.trained_rows.as_ref()
    }

    /// The packed weights, `[Σr, d_in]` and `[Σr, d_out]`, and magnitudes `[adapters with DoRA, d_out]`; `None` while no
    /// slot has an adapter.
    pub fn weights(&self) -> Option<LoraPair> {
        self.packed.as_ref().map(Packed::weights)
    }

    /// Takes the gradients of A and B, `[Σr, d_in]` and `[Σr, d_out]`, if they are leaves and backward
    /// reached them.
    pub fn take_gradient(&self, gradients: &mut Gradients) -> Option<LoraPair> {
        let gradient = self.weights()?.take_gradient(gradients)?;
        Some(trained_part(gradient, self.trained_rows()))
    }

    /// Width of the layer's input and output.
    pub fn shape(&self) -> [usize; 2] {
        [self.d_in, self.d_out]
    }

    /// Number of slots, empty ones included.
    pub fn num_slots(&self) -> usize {
        self.slots.len()
    }

    /// Sum of all ranks, the rows of the packed weights.
    pub fn rank_sum(&self) -> usize {
        self.slots.iter().flatten().map(|spec| spec.r).sum()
    }

    /// Rank of the adapter in a slot; 0 if there is none.
    pub fn rank(&self, slot: usize) -> usize {
        let spec = self.slots.get(slot).and_then(Option::as_ref);
        spec.map_or(0, |spec| spec.r)
    }

    /// Makes A and B leaves of graphs with this strategy, which is that of the tensors they meet.
    pub(crate) fn track(&mut self, strategy: GradientCheckpointingStrategy) {
        let track = |value: Tensor<2>| {
            let value = value.autodiff();
            value.with_gradient_checkpointing_strategy(strategy)
        };
        self.packed = self.packed.take().map(|packed| Packed {
            a: packed.a.map(track).train(),
            b: packed.b.map(track).train(),
            magnitude: packed.magnitude.map(|one| one.map(track).train()),
            ..packed
        });
    }

    /// True while A and B are trained.
    pub(crate) fn requires_grad(&self) -> bool {
        let packed = self.packed.as_ref();
        packed.is_some_and(|packed| packed.a.is_require_grad() || packed.b.is_require_grad())
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// The slots of the packed rows; `None` while no slot has an adapter.
    pub(crate) fn rank_tables(&self) -> Option<&RankTables> {
        self.packed.as_ref()?;
        let make = || RankTables::new(&self.slots, &self.device);
        Some(self.tables.get_or_init(make))
    }

    /// The gradient outside of any graph.
    ///
    /// # Panics
    /// If it is not `float32` of the packed weights' shape.
    pub(crate) fn checked_gradient(&self, gradient: LoraPair) -> LoraPair {
        let rank_sum = self.rank_sum();
        for (name, part, width) in [
            ("A", &gradient.a, self.d_in),
            ("B", &gradient.b, self.d_out),
        ] {
            assert_eq!(
                (part.dims(), part.dtype()),
                ([rank_sum, width], DType::F32),
                "the gradient of a bank's {name}"
            );
        }
        let magnitude = self.packed.as_ref().and_then(|packed| {
            let magnitude = packed.magnitude.as_ref()?.val().without_autodiff();
            // Backward reaches none if no row has one of the adapters with DoRA.
            Some(match gradient.magnitude.clone() {
                Some(gradient) => gradient,
                None => magnitude.zeros_like(),
            })
        });
        LoraPair {
            magnitude,
            ..gradient
        }
        .map(Tensor::without_autodiff)
    }

    /// Forgets what was made from slots and weights.
    fn forget(&mut self) {
        self.tables = OnceLock::new();
        self.norms = Arc::new(self.norms.of_other_adapters());
    }

    /// Updates weights, first and second moments; the bank holds none of them meanwhile.
    pub(crate) fn update(&mut self, update: impl FnOnce([LoraPair; 3]) -> [LoraPair; 3]) {
        self.packed = self.packed.take().map(|packed| packed.map(update));
        self.norms = Arc::new(self.norms.of_other_adapters());
    }

    /// A gradient of the packed weights with zeros in the rows of all slots but the `kept` ones: the rest of
    /// it once the other slots have taken their optimizer step.
    ///
    /// The rows are copied, never multiplied: values that are not finite stay in their slot.
    pub fn keep_slots(&self, gradient: LoraPair, kept: impl Fn(usize) -> bool) -> LoraPair {
        let of_kept = |rows: &Tensor<2>, of_slot: &dyn Fn(usize) -> Range<usize>| {
            let parts = (0..self.slots.len()).map(|slot| (of_slot(slot), kept(slot)));
            let parts = parts.filter(|(rows, _)| !rows.is_empty());
            let parts = parts.map(|(part, kept)| {
                let part = rows.clone().slice_dim(0, part);
                if kept { part } else { part.zeros_like() }
            });
            Tensor::cat(parts.collect(), 0)
        };
        LoraPair {
            a: of_kept(&gradient.a, &|slot| self.ranks(slot)),
            b: of_kept(&gradient.b, &|slot| self.ranks(slot)),
            magnitude: (gradient.magnitude.as_ref())
                .map(|rows| of_kept(rows, &|slot| self.magnitude_rows(slot))),
        }
    }

    /// The row of the slot's magnitude among the bank's; empty without one.
    fn magnitude_rows(&self, slot: usize) -> Range<usize> {
        let has = |spec: &Option<LoraSpec>| spec.is_some_and(|spec| spec.use_dora);
        let start = self.slots[..slot].iter().filter(|spec| has(spec)).count();
        start..start + usize::from(self.slots.get(slot).is_some_and(has))
    }

    fn ranks(&self, slot: usize) -> Range<usize> {
        let start = self.slots[..slot].iter().flatten().map(|spec| spec.r).sum();
        start..start + self.slots[slot].map_or(0, |spec| spec.r)
    }

    fn spec(&self, slot: usize) -> Result<Option<LoraSpec>, BatchLoraError> {
        let (found, slots) = (self.slots.get(slot).copied(), self.slots.len());
        found.ok_or(BatchLoraError::NoSuchSlot { slot, slots })
    }

    /// The bank with its parameters mapped.
    fn map_params(self, mut f: impl FnMut(&str, Param<Tensor<2>>) -> Param<Tensor<2>>) -> Self {
        let packed = self.packed.map(|packed| Packed {
            a: f("a", packed.a),
            b: f("b", packed.b),
            magnitude: packed.magnitude.map(|one| f("magnitude", one)),
            ..packed
        });
        Self {
            packed,
            // A record replaces the layer's weight, too.
            norms: Arc::default(),
            ..self
        }
    }

    fn on(self, device: &Device, params: impl Fn(Param<Tensor<2>>) -> Param<Tensor<2>>) -> Self {
        let moved = device.clone().without_autodiff();
        let moments = |pair: &LoraPair| pair.map(|t| t.to_device(&moved));
        let packed = self.packed.map(|packed| Packed {
            a: params(packed.a),
            b: params(packed.b),
            magnitude: packed.magnitude.map(&params),
            first_moment: moments(&packed.first_moment),
            second_moment: moments(&packed.second_moment),
        });
        Self {
            packed,
            tables: OnceLock::new(),
            norms: Arc::default(),
            device: moved,
            ..self
        }
    }
}

/// By hand: moments move with the weights but are no parameters.
impl Module for AdapterBank {
    fn collect_devices(&self, mut devices: Devices) -> Devices {
        if !devices.contains(&self.device) {
            devices.push(self.device.clone());
        }
        devices
    }

    fn fork(self, device: &Device) -> Self {
        self.on(device, |param| param.fork(device))
    }

    fn to_device(self, device: &Device) -> Self {
        self.on(device, |param| param.to_device(device))
    }

    fn train(self) -> Self {
        self.map_params(|_, param| param.train())
    }

    fn valid(&self) -> Self {
        self.clone().map_params(|_, param| param.valid())
    }

    fn materialize(self) -> Self {
        self
    }

    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        let params = self.packed.iter().flat_map(|packed| {
            let magnitude = packed.magnitude.iter().map(|one| ("magnitude", one));
            [("a", &packed.a), ("b", &packed.b)]
                .into_iter()
                .chain(magnitude)
        });
        for (name, param) in params {
            visitor.enter_module(name, "AdapterBank");
            param.visit(visitor);
            visitor.exit_module(name, "AdapterBank");
        }
    }

    fn map<M: ModuleMapper>(self, mapper: &mut M) -> Self {
        self.map_params(|name, param| {
            mapper.enter_module(name, "AdapterBank");
            let param = Module::map(param, mapper);
            mapper.exit_module(name, "AdapterBank");
            param
        })
    }
}

impl ModuleDisplayDefault for AdapterBank {
    fn content(&self, content: Content) -> Option<Content> {
        let ranks = self.slots.iter().map(|slot| slot.map_or(0, |spec| spec.r));
        let ranks: Vec<_> = ranks.collect();
        content.add_debug_attribute("ranks", &ranks).optional()
    }

    fn num_params(&self) -> usize {
        Module::num_params(self)
    }
}

impl ModuleDisplay for AdapterBank {}

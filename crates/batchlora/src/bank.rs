use std::sync::OnceLock;

use burn::tensor::{DType, Device, Tensor};

use crate::{
    AdapterState, BatchLora, BatchLoraError, DropoutKey, LoraPair, LoraSpec, RoutedSegment,
    Routing, Segments, rank_tables::RankTables,
};

/// Where a task stands, for the dropout counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DropoutDraw {
    /// Seed of the task.
    pub seed: u64,
    /// Optimizer step of the task.
    pub step: u32,
}

/// All adapters of one linear layer, packed: A as row blocks `[Σr, d_in]`, B as row blocks
/// `[Σr, d_out]`, the moments alike.
///
/// Slots are numbered in order of arrival; a slot may be empty (a task that does not adapt this
/// layer). All banks of a model are pushed to and removed from together, so that a slot is the same
/// task in each of them. Repacking copies megabytes and happens between steps.
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
}

#[derive(Debug, Clone)]
pub(crate) struct Packed {
    pub(crate) weights: LoraPair,
    pub(crate) first_moment: LoraPair,
    pub(crate) second_moment: LoraPair,
}

impl Packed {
    fn map(&self, f: impl Fn(Tensor<2>) -> Tensor<2>) -> Self {
        Self {
            weights: self.weights.map(&f),
            first_moment: self.first_moment.map(&f),
            second_moment: self.second_moment.map(&f),
        }
    }

    fn append(self, other: Self) -> Self {
        let join = |top, bottom| Tensor::cat(vec![top, bottom], 0);
        Self {
            weights: self.weights.zip_with(other.weights, join),
            first_moment: self.first_moment.zip_with(other.first_moment, join),
            second_moment: self.second_moment.zip_with(other.second_moment, join),
        }
    }
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
        }
    }

    /// Adds an adapter, or an empty slot, and returns its slot.
    ///
    /// # Errors
    /// [`BatchLoraError::Shape`] if the adapter is not for a layer of this shape.
    pub fn push(&mut self, adapter: Option<AdapterState>) -> Result<usize, BatchLoraError> {
        if let Some(state) = adapter {
            let (d_in, d_out) = (state.weights.a.dims()[1], state.weights.b.dims()[1]);
            if (d_in, d_out) != (self.d_in, self.d_out) {
                return Err(BatchLoraError::Shape(format!(
                    "an adapter for a layer [{d_in}, {d_out}] does not fit one of [{}, {}]",
                    self.d_in, self.d_out
                )));
            }
            self.slots.push(Some(state.spec));
            let packed = Packed {
                weights: state.weights,
                first_moment: state.first_moment,
                second_moment: state.second_moment,
            }
            .map(|t| t.without_autodiff().to_device(&self.device));
            self.packed = Some(match self.packed.take() {
                Some(before) => before.append(packed),
                None => packed,
            });
        } else {
            self.slots.push(None);
        }
        self.tables = OnceLock::new();
        Ok(self.slots.len() - 1)
    }

    /// Takes a slot out; later slots move down by one. Returns its adapter if it had one.
    ///
    /// # Errors
    /// [`BatchLoraError::NoSuchSlot`].
    pub fn remove(&mut self, slot: usize) -> Result<Option<AdapterState>, BatchLoraError> {
        let removed = self.extract(slot)?;
        if removed.is_some() {
            let ranks = self.ranks(slot);
            let (total, packed) = (self.rank_sum(), self.packed.take());
            self.packed = packed.filter(|_| ranks.len() < total).map(|packed| {
                packed.map(|t| {
                    let width = t.dims()[1];
                    let parts = [0..ranks.start, ranks.end..total].into_iter();
                    let parts = parts.filter(|part| !part.is_empty());
                    Tensor::cat(
                        parts
                            .map(|part| t.clone().slice([part, 0..width]))
                            .collect(),
                        0,
                    )
                })
            });
        }
        self.slots.remove(slot);
        self.tables = OnceLock::new();
        Ok(removed)
    }

    /// A copy of a slot's adapter and moments; `None` if the slot is empty.
    ///
    /// # Errors
    /// [`BatchLoraError::NoSuchSlot`].
    pub fn extract(&self, slot: usize) -> Result<Option<AdapterState>, BatchLoraError> {
        let Some(spec) = self.slots.get(slot) else {
            return Err(BatchLoraError::NoSuchSlot {
                slot,
                slots: self.slots.len(),
            });
        };
        let ranks = self.ranks(slot);
        Ok(self.packed.as_ref().zip(*spec).map(|(packed, spec)| {
            let part = packed.map(|t| {
                let width = t.dims()[1];
                t.slice([ranks.clone(), 0..width])
            });
            AdapterState {
                spec,
                weights: part.weights,
                first_moment: part.first_moment,
                second_moment: part.second_moment,
            }
        }))
    }

    /// How a batch goes through this bank. `draws` has one entry per slot and turns dropout on;
    /// `None` is evaluation.
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
            let Some(spec) = self.slots.get(slot) else {
                return Err(BatchLoraError::NoSuchSlot {
                    slot,
                    slots: self.slots.len(),
                });
            };
            if let Some(spec) = spec.filter(|_| !segment.rows.is_empty()) {
                let dropout = draws
                    .filter(|_| spec.lora_dropout > 0.0)
                    .map(|draws| DropoutKey {
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
                    dropout,
                });
            }
        }
        Ok(Routing::new(segments.clone(), routed, self.rank_sum()))
    }

    /// The bank's adapters as they take part in one forward pass over this batch; `None` if no row
    /// of it has an adapter here. Arguments and errors are those of [`Self::route`].
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
        Ok(weights.map(|weights| BatchLora::new(weights.clone(), routing)))
    }

    /// The packed weights, `[Σr, d_in]` and `[Σr, d_out]`; `None` while no slot has an adapter.
    pub fn weights(&self) -> Option<&LoraPair> {
        self.packed.as_ref().map(|packed| &packed.weights)
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

    /// Bytes of weights and moments.
    pub fn bytes(&self) -> usize {
        self.rank_sum() * (self.d_in + self.d_out) * 3 * size_of::<f32>()
    }

    /// Which packed rows are whose; `None` while no slot has an adapter.
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
        gradient.map(Tensor::without_autodiff)
    }

    /// Hands weights and moments over to be updated: nothing of the bank holds them meanwhile.
    pub(crate) fn replace_packed(&mut self, update: impl FnOnce(Packed) -> Packed) {
        self.packed = self.packed.take().map(update);
    }

    /// A gradient of the packed weights with the rows of the slots that are `kept` and zero
    /// elsewhere: what is left of it once the other slots have taken their optimizer step.
    ///
    /// The rows are copied, never multiplied: what is not finite in one slot stays there.
    pub fn keep_slots(&self, gradient: LoraPair, kept: impl Fn(usize) -> bool) -> LoraPair {
        gradient.map(|rows| {
            let width = rows.dims()[1];
            let parts = (0..self.slots.len()).map(|slot| (self.ranks(slot), kept(slot)));
            let parts = parts.filter(|(ranks, _)| !ranks.is_empty());
            let parts = parts.map(|(ranks, kept)| {
                let part = rows.clone().slice([ranks, 0..width]);
                if kept { part } else { part.zeros_like() }
            });
            Tensor::cat(parts.collect(), 0)
        })
    }

    fn ranks(&self, slot: usize) -> std::ops::Range<usize> {
        let start = self.slots[..slot].iter().flatten().map(|spec| spec.r).sum();
        start..start + self.slots[slot].map_or(0, |spec| spec.r)
    }
}

use burn::{config::Config, module::Module, nn::Linear, tensor::Tensor};

use crate::{
    AdapterBank, AdapterState, BatchLoraError, DropoutDraw, LoraSpec, Segments, frozen_linear,
};

/// Configuration of a [`BatchLoraLinear`].
///
/// A module's record has tensors only: load it into a module made from the same configuration.
#[derive(Config, Debug)]
pub struct BatchLoraLinearConfig {
    /// The adapters, slot by slot.
    pub adapters: Vec<LoraSpec>,
    /// The adapter of slot `i` draws its initial A and its dropout masks with the seed `seed + i`.
    #[config(default = 0)]
    pub seed: u64,
}

impl BatchLoraLinearConfig {
    /// Freezes a layer and puts fresh adapters over it. `module` is the layer's number, distinct for every
    /// adapted layer of a model: layers with different numbers draw different weights and masks.
    ///
    /// # Errors
    /// [`BatchLoraError::InvalidConfig`] for an impossible rank, alpha or dropout.
    pub fn init(&self, linear: Linear, module: u32) -> Result<BatchLoraLinear, BatchLoraError> {
        let mut layer = BatchLoraLinear::new(linear, module);
        let [d_in, d_out] = layer.bank.shape();
        for (spec, slot) in self.adapters.iter().zip(0..) {
            let seed = self.seed.wrapping_add(slot);
            let device = layer.bank.device();
            let state = AdapterState::init(*spec, [d_in, d_out], seed, module, device)?;
            layer.push(Some(state), DropoutDraw { seed, step: 1 })?;
        }
        Ok(layer)
    }
}

/// A frozen [`Linear`] with many LoRA adapters: each row of a batch takes that of its segment.
///
/// As Burn's modules do, it trains where its layer was made on a device with autodiff, or after
/// [`train`](Module::train); [`valid`](Module::valid) gives a snapshot without graph and dropout. Dropout is
/// on while A and B require gradients. [`BatchAdamW`](crate::BatchAdamW) updates the adapters of several
/// layers at once.
///
/// Its record has the layer's parameters and all adapters' A and B, for modules of the same configuration. One
/// adapter, with its moments and its place in training, leaves and enters by [`remove`](Self::remove) and
/// [`push`](Self::push); [`bank`](Self::bank) gives copies.
#[derive(Module, Debug)]
pub struct BatchLoraLinear {
    /// The frozen layer.
    pub linear: Linear,
    bank: AdapterBank,
    /// Seed and next step of every slot.
    #[module(skip)]
    draws: Vec<DropoutDraw>,
}

impl BatchLoraLinear {
    /// A frozen layer without adapters; see [`BatchLoraLinearConfig::init`] for `module`.
    pub fn new(linear: Linear, module: u32) -> Self {
        let linear = linear.no_grad();
        let [d_in, d_out] = linear.weight.dims();
        Self {
            bank: AdapterBank::new(d_in, d_out, module, &linear.weight.device()),
            linear,
            draws: Vec::new(),
        }
    }

    /// `x W + b`, and for rows of an adapter `+ s · D(x) A B`; with DoRA each column of this but b is scaled to its
    /// magnitude.
    ///
    /// # Shapes
    /// - input: `[..., d_in]`, of the weight's type; its leading dimensions are the rows of `segments`, row-major
    /// - output: `[..., d_out]`
    ///
    /// # Errors
    /// [`BatchLoraError::Shape`] if the input does not fit the layer or the segments,
    /// [`BatchLoraError::NoSuchSlot`] for a segment of a slot that does not exist,
    /// [`BatchLoraError::InvalidConfig`] if input and weight differ in type.
    pub fn forward<const D: usize>(
        &self,
        input: Tensor<D>,
        segments: &Segments,
    ) -> Result<Tensor<D>, BatchLoraError> {
        let [d_in, d_out] = self.bank.shape();
        let mut shape = input.dims();
        let rows: usize = shape[..D - 1].iter().product();
        if shape[D - 1] != d_in || rows != segments.rows() {
            return Err(BatchLoraError::Shape(format!(
                "an input {shape:?} for a layer [{d_in}, {d_out}] and segments of {} rows",
                segments.rows()
            )));
        }
        let x = input.reshape([rows, d_in]);
        let weight = self.linear.weight.val();
        let draws = self.bank.requires_grad().then_some(&self.draws[..]);
        let mut h = match self.bank.attach(segments, draws)? {
            Some(lora) => lora.forward(x, weight)?,
            None => frozen_linear(x, weight),
        };
        if let Some(bias) = &self.linear.bias {
            h = h + bias.val().unsqueeze();
        }
        shape[D - 1] = d_out;
        Ok(h.reshape(shape))
    }

    /// Adds an adapter, or an empty slot for one that does not adapt this layer, and returns its slot.
    /// `draw.step` is the number of its next optimizer step, 1 for a fresh adapter.
    ///
    /// # Errors
    /// [`BatchLoraError::Shape`] if the adapter is not for a layer of this shape.
    pub fn push(
        &mut self,
        adapter: Option<AdapterState>,
        draw: DropoutDraw,
    ) -> Result<usize, BatchLoraError> {
        let weight = self.linear.weight.val().without_autodiff();
        let slot = self
            .bank
            .push(adapter.map(|state| state.with_norms_of(&weight)))?;
        if let Some(strategy) = self.linear.weight.gradient_checkpointing_strategy() {
            self.bank.track(strategy);
        }
        self.draws.push(draw);
        Ok(slot)
    }

    /// Takes a slot out; later slots move down by one. Returns the arguments of [`push`](Self::push) that restore it.
    ///
    /// # Errors
    /// [`BatchLoraError::NoSuchSlot`].
    pub fn remove(
        &mut self,
        slot: usize,
    ) -> Result<(Option<AdapterState>, DropoutDraw), BatchLoraError> {
        Ok((self.bank.remove(slot)?, self.draws.remove(slot)))
    }

    /// The adapters, without the layer.
    pub fn bank(&self) -> &AdapterBank {
        &self.bank
    }

    /// Seed and next optimizer step of every slot.
    pub fn draws(&self) -> &[DropoutDraw] {
        &self.draws
    }

    pub(crate) fn bank_mut(&mut self) -> &mut AdapterBank {
        &mut self.bank
    }

    /// Counts an optimizer step of a slot.
    pub(crate) fn count_step(&mut self, slot: usize) {
        self.draws[slot].step += 1;
    }
}

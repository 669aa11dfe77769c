use batchlora::{
    AdapterBank, AdapterState, BatchLora, BatchLoraError, DropoutDraw, LoraPair, LoraSpec, Segments,
};
use burn::tensor::{Device, Gradients, Tensor, TensorData};

use crate::{LlamaConfig, LoraWeights, ModelError, Projection};

/// One adapter at one decoder layer: its state at each of the projections that it adapts; see [`Projection`] for
/// those outside of decoder layers.
pub type LayerAdapter = [Option<AdapterState>; Projection::COUNT];

/// The adapters of one decoder layer: a bank for each projection. A bank of a projection that the layer does not
/// have takes no adapter: it is zero wide.
#[derive(Debug, Clone)]
pub struct LayerBanks {
    banks: [AdapterBank; Projection::COUNT],
}

impl LayerBanks {
    /// Empty banks for decoder layer `layer`.
    pub fn new(config: &LlamaConfig, layer: usize, device: &Device) -> Self {
        let modules = config.modules(layer);
        let banks = Projection::ALL.map(|projection| {
            let mut modules = modules.iter();
            let shape = modules.find(|module| module.projection == projection);
            let [d_in, d_out] = shape.map_or([0, 0], |shape| [shape.d_in, shape.d_out]);
            AdapterBank::new(d_in, d_out, projection.number(layer), device)
        });
        Self { banks }
    }

    /// Adds an adapter to all banks and returns its slot. With DoRA it has magnitudes.
    ///
    /// # Errors
    /// If a part of the adapter is not of its projection's shape.
    pub fn push(&mut self, adapter: LayerAdapter) -> Result<usize, BatchLoraError> {
        let mut slot = 0;
        for (bank, state) in self.banks.iter_mut().zip(adapter) {
            slot = bank.push(state)?;
        }
        Ok(slot)
    }

    /// Takes a slot out of all banks; later slots move down by one.
    ///
    /// # Errors
    /// If there is no such slot.
    pub fn remove(&mut self, slot: usize) -> Result<LayerAdapter, BatchLoraError> {
        let mut adapter = LayerAdapter::default();
        for (state, bank) in adapter.iter_mut().zip(&mut self.banks) {
            *state = bank.remove(slot)?;
        }
        Ok(adapter)
    }

    /// A copy of a slot's adapter.
    ///
    /// # Errors
    /// If there is no such slot.
    pub fn extract(&self, slot: usize) -> Result<LayerAdapter, BatchLoraError> {
        let mut adapter = LayerAdapter::default();
        for (state, bank) in adapter.iter_mut().zip(&self.banks) {
            *state = bank.extract(slot)?;
        }
        Ok(adapter)
    }

    /// The layer's adapters for one forward pass; dropout is on with `draws`, one per slot.
    ///
    /// # Errors
    /// If a segment names a slot that does not exist.
    pub fn attach(
        &self,
        segments: &Segments,
        draws: Option<&[DropoutDraw]>,
    ) -> Result<LayerLora, BatchLoraError> {
        let mut lora = LayerLora::default();
        for (part, bank) in lora.0.iter_mut().zip(&self.banks) {
            *part = bank.attach(segments, draws)?;
        }
        Ok(lora)
    }

    /// The bank of one projection.
    pub fn bank(&self, projection: Projection) -> &AdapterBank {
        &self.banks[projection as usize]
    }

    /// The bank of one projection, for the optimizer.
    pub fn bank_mut(&mut self, projection: Projection) -> &mut AdapterBank {
        &mut self.banks[projection as usize]
    }
}

/// The adapters of one decoder layer in one forward pass; the default has none.
#[derive(Debug, Clone, Default)]
pub struct LayerLora([Option<BatchLora>; Projection::COUNT]);

impl LayerLora {
    /// Makes all adapter weights leaves of a new graph.
    pub fn require_grad(self) -> Self {
        Self(self.0.map(|part| part.map(BatchLora::require_grad)))
    }

    /// The same adapters outside of any graph.
    pub fn without_autodiff(self) -> Self {
        Self(self.0.map(|part| part.map(BatchLora::without_autodiff)))
    }

    /// True if no row of the batch has an adapter at this layer, or at the embedding below it. The output projection
    /// has no part in the layer's pass.
    pub fn is_base_only(&self) -> bool {
        let parts = self.0.iter().zip(Projection::ALL);
        let mut inside = parts.filter(|(_, projection)| *projection != Projection::LmHead);
        inside.all(|(part, _)| part.is_none())
    }

    /// Takes the gradients of the adapter weights, by projection.
    pub fn take_gradients(&self, gradients: &mut Gradients) -> LayerGradients {
        let parts = self.0.each_ref();
        LayerGradients(parts.map(|part| part.as_ref()?.take_gradient(gradients)))
    }

    /// The adapters of one projection.
    pub fn part(&self, projection: Projection) -> Option<&BatchLora> {
        self.0[projection as usize].as_ref()
    }
}

/// Gradients of one decoder layer's packed adapter weights.
#[derive(Debug, Clone, Default)]
pub struct LayerGradients(pub [Option<LoraPair>; Projection::COUNT]);

impl LayerGradients {
    /// Adds the gradients of another micro-batch of the same step.
    pub fn accumulate(&mut self, other: Self) {
        for (sum, part) in self.0.iter_mut().zip(other.0) {
            *sum = match (sum.take(), part) {
                (Some(sum), Some(part)) => Some(sum.zip_with(part, |sum, part| sum + part)),
                (sum, part) => sum.or(part),
            };
        }
    }
}

impl LoraWeights {
    /// The adapter on a device, with moments of zero.
    ///
    /// # Errors
    /// If rank or dropout is out of range.
    pub fn to_state(
        &self,
        use_rslora: bool,
        lora_dropout: f64,
        device: &Device,
    ) -> Result<AdapterState, BatchLoraError> {
        let device = device.clone().without_autodiff();
        let spec = LoraSpec::new(self.r, self.lora_alpha)
            .with_use_rslora(use_rslora)
            .with_use_dora(self.magnitude.is_some())
            .with_lora_dropout(lora_dropout);
        let tensor = |data: Vec<f32>, rows, width| {
            Tensor::from_data(TensorData::new(data, [rows, width]), &device)
        };
        let a = tensor(self.a.clone(), self.r, self.d_in);
        // PEFT stores B as [d_out, r]; a bank's rows are ranks.
        let b = tensor(transposed(&self.b, self.d_out, self.r), self.r, self.d_out);
        let magnitude = self.magnitude.clone();
        let magnitude = magnitude.map(|norms| tensor(norms, 1, self.d_out));
        AdapterState::new(spec, LoraPair { a, b, magnitude })
    }

    /// The adapter on the host, as PEFT stores it.
    ///
    /// # Errors
    /// [`ModelError::Device`] if a tensor cannot be read.
    pub fn from_state(state: &AdapterState) -> Result<Self, ModelError> {
        let (r, d_in) = (state.spec.r, state.weights.a.dims()[1]);
        let d_out = state.weights.b.dims()[1];
        let b = to_host(state.weights.b.clone())?;
        Ok(Self {
            r,
            lora_alpha: state.spec.lora_alpha,
            scale: state.spec.scale(),
            a: to_host(state.weights.a.clone())?,
            b: transposed(&b, r, d_out),
            magnitude: state.weights.magnitude.clone().map(to_host).transpose()?,
            d_in,
            d_out,
        })
    }
}

fn transposed(data: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    let mut transposed = vec![0.0; data.len()];
    for (row, values) in data.chunks_exact(columns.max(1)).enumerate() {
        for (place, value) in transposed[row..].iter_mut().step_by(rows).zip(values) {
            *place = *value;
        }
    }
    transposed
}

/// Reads a tensor back as `float32`.
///
/// # Errors
/// [`ModelError::Device`] if an operation that the tensor depends on failed.
pub fn to_host<const D: usize>(tensor: Tensor<D>) -> Result<Vec<f32>, ModelError> {
    let data = tensor.try_into_data();
    let data = data.map_err(|error| ModelError::device(&error))?;
    if let Some(reason) = batchlora_kernels::product_failure() {
        return Err(ModelError::Device { reason });
    }
    let values = data.convert::<f32>().try_into_vec();
    values.map_err(|error| ModelError::device(&error))
}

use burn::tensor::{DType, Device, Gradients, Tensor, TensorData};

use crate::{BatchLoraError, LoraSpec, dropout::philox};

/// One value for each of the two adapter matrices, `[rank, d_in]` and `[rank, d_out]`.
#[derive(Debug, Clone)]
pub struct LoraPair {
    /// A, as PEFT stores `lora_A.weight`: `[rank, d_in]`.
    pub a: Tensor<2>,
    /// B, the transpose of PEFT's `lora_B.weight`: `[rank, d_out]`.
    pub b: Tensor<2>,
}

impl LoraPair {
    pub(crate) fn zeros(rank: usize, d_in: usize, d_out: usize, device: &Device) -> Self {
        Self {
            a: Tensor::zeros([rank, d_in], (device, DType::F32)),
            b: Tensor::zeros([rank, d_out], (device, DType::F32)),
        }
    }

    /// Joins the two of A, and the two of B.
    pub fn zip_with(self, other: Self, join: impl Fn(Tensor<2>, Tensor<2>) -> Tensor<2>) -> Self {
        Self {
            a: join(self.a, other.a),
            b: join(self.b, other.b),
        }
    }

    /// Takes the gradients of A and B, if both are leaves that backward reached.
    pub(crate) fn take_gradient(&self, gradients: &mut Gradients) -> Option<Self> {
        let a = self.a.grad_remove(gradients);
        let b = self.b.grad_remove(gradients);
        a.zip(b).map(|(a, b)| Self { a, b })
    }

    /// Applies a function to both.
    pub fn map(&self, f: impl Fn(Tensor<2>) -> Tensor<2>) -> Self {
        Self {
            a: f(self.a.clone()),
            b: f(self.b.clone()),
        }
    }
}

/// One adapter at one module: its weights and the moments of its optimizer.
#[derive(Debug, Clone)]
pub struct AdapterState {
    /// Shape of the adapter.
    pub spec: LoraSpec,
    /// A and B.
    pub weights: LoraPair,
    /// `AdamW`'s running mean of the gradient.
    pub first_moment: LoraPair,
    /// `AdamW`'s running mean of the squared gradient.
    pub second_moment: LoraPair,
}

impl AdapterState {
    /// An adapter that has taken no optimizer step yet.
    ///
    /// # Errors
    /// [`BatchLoraError`] for an impossible spec, or weights that are not `float32` of its rank.
    pub fn new(spec: LoraSpec, weights: LoraPair) -> Result<Self, BatchLoraError> {
        spec.validate()?;
        let ([a_rank, d_in], [b_rank, d_out]) = (weights.a.dims(), weights.b.dims());
        if (a_rank, b_rank) != (spec.r, spec.r) {
            return Err(BatchLoraError::Shape(format!(
                "A [{a_rank}, {d_in}] and B [{b_rank}, {d_out}] are not of rank {}",
                spec.r
            )));
        }
        let dtypes = (weights.a.dtype(), weights.b.dtype());
        if dtypes != (DType::F32, DType::F32) {
            return Err(BatchLoraError::InvalidConfig(format!(
                "A is {:?} and B {:?}: adapters are kept in F32",
                dtypes.0, dtypes.1
            )));
        }
        // Not one shared by both: the optimizer updates moments in place.
        let zeros = || LoraPair::zeros(spec.r, d_in, d_out, &weights.a.device());
        Ok(Self {
            first_moment: zeros(),
            second_moment: zeros(),
            spec,
            weights,
        })
    }

    /// A fresh adapter as PEFT makes it: A uniform in `±1 / sqrt(d_in)`, B zero. A is a function of
    /// `seed` and `module` alone.
    ///
    /// # Errors
    /// [`BatchLoraError::InvalidConfig`] for an impossible spec.
    pub fn init(
        spec: LoraSpec,
        [d_in, d_out]: [usize; 2],
        seed: u64,
        module: u32,
        device: &Device,
    ) -> Result<Self, BatchLoraError> {
        spec.validate()?;
        let device = device.clone().without_autodiff();
        let a = TensorData::new(uniform_a(spec.r, d_in, seed, module), [spec.r, d_in]);
        let a = Tensor::from_data(a, (&device, DType::F32));
        let b = Tensor::zeros([spec.r, d_out], (&device, DType::F32));
        Self::new(spec, LoraPair { a, b })
    }

    /// A fresh adapter of an embedding as PEFT makes it: A zero, B standard normal, a function of `seed` and
    /// `module` alone.
    ///
    /// # Errors
    /// [`BatchLoraError::InvalidConfig`] for an impossible spec.
    pub fn init_embedding(
        spec: LoraSpec,
        [num_embeddings, embedding_dim]: [usize; 2],
        seed: u64,
        module: u32,
        device: &Device,
    ) -> Result<Self, BatchLoraError> {
        spec.validate()?;
        let device = device.clone().without_autodiff();
        let shape = [spec.r, embedding_dim];
        let b = TensorData::new(normal_b(shape, seed, module), shape);
        let b = Tensor::from_data(b, (&device, DType::F32));
        let a = Tensor::zeros([spec.r, num_embeddings], (&device, DType::F32));
        Self::new(spec, LoraPair { a, b })
    }
}

/// The middle of each of 2^32 equal steps from 0 to 1.
fn middle(word: u32) -> f64 {
    (f64::from(word) + 0.5) / 2f64.powi(32)
}

/// Draws from the dropout generator, at a step that no training reaches.
fn words(row: u32, seed: u64, module: u32) -> impl Iterator<Item = u32> {
    let key = [seed as u32, (seed >> 32) as u32];
    (0..).flat_map(move |block| philox([block, row, u32::MAX, module], key))
}

fn uniform_a(r: usize, d_in: usize, seed: u64, module: u32) -> Vec<f32> {
    let bound = 1.0 / (d_in as f64).sqrt();
    let row = |row| {
        let values = words(row, seed, module).map(|word| (2.0 * middle(word) - 1.0) * bound);
        values.map(|value| value as f32).take(d_in)
    };
    (0..r as u32).flat_map(row).collect()
}

/// By the Box-Muller transform.
fn normal_b([r, embedding_dim]: [usize; 2], seed: u64, module: u32) -> Vec<f32> {
    let row = |row| {
        let mut words = words(row, seed, module).map(middle);
        let value = move || {
            let (radius, angle) = (words.next()?, words.next()?);
            let value = (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos();
            Some(value as f32)
        };
        std::iter::from_fn(value).take(embedding_dim)
    };
    (0..r as u32).flat_map(row).collect()
}

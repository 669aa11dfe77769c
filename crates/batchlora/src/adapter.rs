use std::ops::Range;

use burn::tensor::{DType, Device, Gradients, Tensor, TensorData};

use crate::{
    BatchLoraError, LoraSpec,
    dora::{adapted_norms, squared_norms},
    dropout::philox,
};

/// One value for each of the two adapter matrices, `[rank, d_in]` and `[rank, d_out]`, and for a magnitude.
#[derive(Debug, Clone)]
pub struct LoraPair {
    /// A, as PEFT stores `lora_A.weight`: `[rank, d_in]`.
    pub a: Tensor<2>,
    /// B, the transpose of PEFT's `lora_B.weight`: `[rank, d_out]`.
    pub b: Tensor<2>,
    /// The norms that DoRA gives the columns of the adapted weight, `[1, d_out]`; `None` without DoRA.
    pub magnitude: Option<Tensor<2>>,
}

impl LoraPair {
    /// A and B without a magnitude.
    pub fn new(a: Tensor<2>, b: Tensor<2>) -> Self {
        Self {
            a,
            b,
            magnitude: None,
        }
    }

    /// Joins the two of A, the two of B, and the magnitudes if both have one.
    pub fn zip_with(self, other: Self, join: impl Fn(Tensor<2>, Tensor<2>) -> Tensor<2>) -> Self {
        Self {
            a: join(self.a, other.a),
            b: join(self.b, other.b),
            magnitude: match (self.magnitude, other.magnitude) {
                (Some(one), Some(other)) => Some(join(one, other)),
                (one, other) => one.or(other),
            },
        }
    }

    /// Takes the gradients of A and B, if both are leaves that backward reached, and of the magnitude.
    pub(crate) fn take_gradient(&self, gradients: &mut Gradients) -> Option<Self> {
        let a = self.a.grad_remove(gradients);
        let b = self.b.grad_remove(gradients);
        let magnitude = self.magnitude.as_ref();
        let magnitude = magnitude.and_then(|magnitude| magnitude.grad_remove(gradients));
        a.zip(b).map(|(a, b)| Self { a, b, magnitude })
    }

    /// Applies a function to A, B and the magnitude.
    pub fn map(&self, f: impl Fn(Tensor<2>) -> Tensor<2>) -> Self {
        Self {
            a: f(self.a.clone()),
            b: f(self.b.clone()),
            magnitude: self.magnitude.clone().map(f),
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
        if let Some(magnitude) = &weights.magnitude
            && (!spec.use_dora || magnitude.dims() != [1, d_out] || magnitude.dtype() != DType::F32)
        {
            return Err(BatchLoraError::Shape(format!(
                "a magnitude {:?} of {:?}, with use_dora {}, for B [{b_rank}, {d_out}]",
                magnitude.dims(),
                magnitude.dtype(),
                spec.use_dora,
            )));
        }
        // Not one shared by both: the optimizer updates moments in place.
        let zeros = || weights.map(|t| t.zeros_like());
        Ok(Self {
            first_moment: zeros(),
            second_moment: zeros(),
            spec,
            weights,
        })
    }

    /// With DoRA, gives an adapter without a magnitude the norms of a layer's adapted weight, as PEFT does: the layer
    /// computes what it computes without the magnitude. `weight` is `[d_in, d_out]`.
    pub fn with_norms_of(mut self, weight: &Tensor<2>) -> Self {
        if self.spec.use_dora && self.weights.magnitude.is_none() {
            let norms = adapted_norms(weight, &squared_norms(weight), &self.weights, &[self.spec]);
            self.first_moment.magnitude = Some(norms.zeros_like());
            self.second_moment.magnitude = Some(norms.zeros_like());
            self.weights.magnitude = Some(norms);
        }
        self
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
        let a = uniform_a(spec.r, d_in, seed, module);
        Self::of_values(spec, [d_in, d_out], [Some(a), None], device)
    }

    /// A fresh adapter as PEFT's `gaussian` makes it: A normal with a standard deviation of `1 / r`, B zero. A is a
    /// function of `seed` and `module` alone.
    ///
    /// # Errors
    /// [`BatchLoraError::InvalidConfig`] for an impossible spec.
    pub fn init_gaussian(
        spec: LoraSpec,
        [d_in, d_out]: [usize; 2],
        seed: u64,
        module: u32,
        device: &Device,
    ) -> Result<Self, BatchLoraError> {
        let deviation = 1.0 / spec.r as f64;
        let a = normal(0..spec.r as u32, d_in, seed, module);
        let a = a.map(|value| (value * deviation) as f32).collect();
        Self::of_values(spec, [d_in, d_out], [Some(a), None], device)
    }

    /// A fresh adapter as PEFT's `orthogonal` makes it: A and B are standard normal `[r / 2, width]` matrices times
    /// every other row of one orthogonal matrix, over 10, so that the adapter's output is zero. They are functions of
    /// `seed` and `module` alone.
    ///
    /// # Errors
    /// [`BatchLoraError::InvalidConfig`] for an impossible spec, or an odd rank.
    pub fn init_orthogonal(
        spec: LoraSpec,
        [d_in, d_out]: [usize; 2],
        seed: u64,
        module: u32,
        device: &Device,
    ) -> Result<Self, BatchLoraError> {
        let r = spec.r;
        if r % 2 == 1 {
            return Err(BatchLoraError::InvalidConfig(format!(
                "orthogonal start values need an even r, got {r}"
            )));
        }
        let (half, all) = (r as u32 / 2, r as u32);
        let rows = orthonormal_rows(normal(all..2 * all, r, seed, module).collect(), r);
        let factor = |first: usize, of: Range<u32>, width: usize| {
            let random: Vec<f64> = normal(of, width, seed, module).collect();
            let rows: Vec<&[f64]> = rows.chunks(r).skip(first).step_by(2).collect();
            let rank = |rank: usize| {
                let mut sums = vec![0.0; width];
                for (row, values) in rows.iter().zip(random.chunks(width)) {
                    let sums = sums.iter_mut().zip(values);
                    sums.for_each(|(sum, value)| *sum += row[rank] * value);
                }
                sums.into_iter().map(|sum| (sum / 10.0) as f32)
            };
            (0..r).flat_map(rank).collect()
        };
        let (a, b) = (factor(0, 0..half, d_in), factor(1, half..all, d_out));
        Self::of_values(spec, [d_in, d_out], [Some(a), Some(b)], device)
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
        let b = normal(0..spec.r as u32, embedding_dim, seed, module);
        let b = b.map(|value| value as f32).collect();
        let shape = [num_embeddings, embedding_dim];
        Self::of_values(spec, shape, [None, Some(b)], device)
    }

    /// An adapter with these values of A and B, row after row; `None` is zero.
    fn of_values(
        spec: LoraSpec,
        [d_in, d_out]: [usize; 2],
        [a, b]: [Option<Vec<f32>>; 2],
        device: &Device,
    ) -> Result<Self, BatchLoraError> {
        spec.validate()?;
        let device = device.clone().without_autodiff();
        let tensor = |values: Option<Vec<f32>>, shape: [usize; 2]| match values {
            Some(values) => {
                Tensor::from_data(TensorData::new(values, shape), (&device, DType::F32))
            }
            None => Tensor::zeros(shape, (&device, DType::F32)),
        };
        let (a, b) = (tensor(a, [spec.r, d_in]), tensor(b, [spec.r, d_out]));
        Self::new(spec, LoraPair::new(a, b))
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

/// Standard normal values, row after row, by the Box-Muller transform.
fn normal(rows: Range<u32>, width: usize, seed: u64, module: u32) -> impl Iterator<Item = f64> {
    let row = move |row| {
        let mut words = words(row, seed, module).map(middle);
        let value = move || {
            let (radius, angle) = (words.next()?, words.next()?);
            Some((-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos())
        };
        std::iter::from_fn(value).take(width)
    };
    rows.flat_map(row)
}

/// The rows of a square matrix made orthonormal one after another, by the Gram-Schmidt process; twice each, which
/// removes what rounding leaves.
fn orthonormal_rows(mut matrix: Vec<f64>, r: usize) -> Vec<f64> {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    for at in 0..r {
        let (before, rest) = matrix.split_at_mut(at * r);
        let row = &mut rest[..r];
        for _ in 0..2 {
            for earlier in before.chunks(r) {
                let along = dot(row, earlier);
                let pairs = row.iter_mut().zip(earlier);
                pairs.for_each(|(value, other)| *value -= along * other);
            }
        }
        let norm = dot(row, row).sqrt();
        for value in row {
            *value /= norm;
        }
    }
    matrix
}

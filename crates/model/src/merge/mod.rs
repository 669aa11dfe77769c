//! Folds adapters into the weights of their base: `W + Σ weight·scale·B·A`, as PEFT's `merge_and_unload`. The weight of
//! DoRA is `m / ‖W + scale·B·A‖ ∘ (W + scale·B·A)`, of one adapter.
//!
//! The base stays memory-mapped, and one tensor at a time is computed and written: a merge needs the memory of the
//! largest tensor, for any size of model. Products and sums are in float32, and a sum is rounded once, to its stored
//! type.

mod directory;
mod record;

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

pub use directory::{Merged, merge};
use half::{bf16, f16};
use rayon::prelude::*;
pub use record::{MergeRecord, MergedPart};

use crate::{
    checkpoint::{Checkpoint, HostTensor, TensorDtype, parameter_shapes},
    config::LlamaConfig,
    error::ModelError,
    peft::{LoraWeights, PeftAdapter, PeftLoraConfig},
    projection::Projection,
};

/// An adapter to merge.
#[derive(Debug, Clone)]
pub struct MergePart {
    /// Its directory.
    pub directory: PathBuf,
    /// The adapter.
    pub adapter: PeftAdapter,
    /// Factor of all its products, beside their own scales; 1 is the adapter as it was trained.
    pub weight: f64,
}

/// A base with adapters to be folded into it. Computes the tensors of the merged model.
#[derive(Debug)]
pub struct Merger<'a> {
    checkpoint: &'a Checkpoint,
    parts: &'a [MergePart],
    /// Names of the model's parameters; the base may have other tensors, which the model does not use.
    parameters: BTreeSet<String>,
}

/// One adapter's part of one weight.
#[derive(Debug, Clone, Copy)]
struct Product<'a> {
    weights: &'a LoraWeights,
    factor: f32,
    /// The weight is `[d_in, d_out]`.
    is_embedding: bool,
}

impl<'a> Merger<'a> {
    /// Adapters over a base.
    ///
    /// # Errors
    /// If the base is incomplete, or an adapter does not fit it.
    pub fn new(
        checkpoint: &'a Checkpoint,
        config: &LlamaConfig,
        parts: &'a [MergePart],
    ) -> Result<Self, ModelError> {
        checkpoint.verify(config)?;
        if config.stored.is_some() {
            return Err(ModelError::QuantizedBase(checkpoint.directory().to_owned()));
        }
        for part in parts {
            let fits = part.adapter.verify(config);
            fits.map_err(|error| error.in_file(&part.directory))?;
            let untied = part.adapter.refuse_tied(config);
            untied.map_err(|error| error.in_file(&part.directory))?;
            refuse_part_of_dora(part, parts).map_err(|error| error.in_file(&part.directory))?;
        }
        let parameters = parameter_shapes(config).into_iter();
        Ok(Self {
            checkpoint,
            parts,
            parameters: parameters.map(|(name, _)| name).collect(),
        })
    }

    /// The merged tensor `name`, stored as `dtype`.
    ///
    /// # Errors
    /// [`ModelError::NotFiniteSum`], or if the base has no such tensor.
    pub fn tensor(&self, name: &str, dtype: TensorDtype) -> Result<Cow<'a, [u8]>, ModelError> {
        self.sum(name, &self.checkpoint.tensor(name)?, dtype)
    }

    /// True if an adapter has the module of the weight `name`.
    pub fn adapts(&self, name: &str) -> bool {
        !self.products(name).is_empty()
    }

    /// All adapters as one, whose product is the sum of theirs.
    pub fn as_one(&self) -> PeftAdapter {
        let mut modules: BTreeMap<String, LoraWeights> = BTreeMap::new();
        for part in self.parts {
            for (module, weights) in &part.adapter.modules {
                let factor = part.factor(weights);
                match modules.get_mut(module) {
                    None => {
                        let mut weights = weights.clone();
                        weights.b.iter_mut().for_each(|value| *value *= factor);
                        modules.insert(module.clone(), weights);
                    }
                    Some(sum) => sum.append(weights, factor),
                }
            }
        }
        for weights in modules.values_mut() {
            weights.lora_alpha = weights.r as f64;
            weights.scale = 1.0;
        }
        let mut config = PeftLoraConfig::new(1, 1.0, modules.keys().cloned().collect());
        config.use_dora = modules.values().any(|weights| weights.magnitude.is_some());
        PeftAdapter {
            config,
            modules,
            base: None,
        }
    }

    fn products(&self, name: &str) -> Vec<Product<'a>> {
        let Some(module) = name.strip_suffix(".weight") else {
            return Vec::new();
        };
        let is_embedding = module == Projection::EmbedTokens.path();
        let product = |part: &'a MergePart| {
            let weights = part.adapter.modules.get(module)?;
            let factor = part.factor(weights);
            Some(Product {
                weights,
                factor,
                is_embedding,
            })
        };
        self.parts.iter().filter_map(product).collect()
    }

    fn sum<'b>(
        &self,
        name: &str,
        base: &HostTensor<'b>,
        dtype: TensorDtype,
    ) -> Result<Cow<'b, [u8]>, ModelError> {
        let products = self.products(name);
        if products.is_empty() && base.dtype == dtype {
            return Ok(Cow::Borrowed(base.bytes));
        }
        let columns = base.shape.last().map_or(1, |&columns| columns.max(1));
        let (from, to) = (columns * base.dtype.size(), columns * dtype.size());
        let mut bytes = vec![0; base.bytes.len() / base.dtype.size() * dtype.size()];
        let rows = bytes.par_chunks_mut(to).zip(base.bytes.par_chunks(from));
        rows.enumerate().try_for_each(|(row, (place, bytes))| {
            let mut sum = HostTensor { bytes, ..*base }.to_f32();
            let mut product = vec![0.0; columns];
            for part in &products {
                part.add_row(row, &mut product, &mut sum);
                part.give_magnitude(row, &mut sum);
            }
            store(&sum, dtype, place).map_err(|column| ModelError::NotFiniteSum {
                tensor: name.to_owned(),
                element: row * columns + column,
                value: sum[column],
                dtype,
            })
        })?;
        Ok(Cow::Owned(bytes))
    }
}

/// Refuses an adapter with DoRA beside others over a module of its, or with a weight of its own: the columns would not
/// have its magnitudes.
fn refuse_part_of_dora(part: &MergePart, parts: &[MergePart]) -> Result<(), ModelError> {
    let others = |module: &String| {
        let others = parts.iter().filter(|other| !std::ptr::eq(*other, part));
        others
            .into_iter()
            .any(|other| other.adapter.modules.contains_key(module))
    };
    let mut modules = part.adapter.modules.iter();
    let refused = modules.find(|(module, weights)| {
        let whole = (part.weight - 1.0).abs() <= 0.0;
        weights.magnitude.is_some() && (!whole || others(module))
    });
    match refused {
        None => Ok(()),
        Some((module, _)) => Err(ModelError::Dora {
            module: module.clone(),
            problem: "is merged alone and with a weight of 1",
        }),
    }
}

impl MergePart {
    /// PEFT multiplies a module's product by its scale in float32.
    fn factor(&self, weights: &LoraWeights) -> f32 {
        (self.weight * weights.scale) as f32
    }
}

impl Product<'_> {
    /// Adds a row of `factor · B·A`; `product` is a buffer.
    fn add_row(self, row: usize, product: &mut [f32], sum: &mut [f32]) {
        let LoraWeights { r, d_in, a, b, .. } = self.weights;
        product.fill(0.0);
        if self.is_embedding {
            for (product, b) in product.iter_mut().zip(b.chunks_exact(*r)) {
                let a = a[row..].iter().step_by(*d_in);
                *product = a.zip(b).map(|(a, b)| a * b).sum();
            }
        } else {
            self.add_linear_row(row, product);
        }
        for (sum, product) in sum.iter_mut().zip(product) {
            *sum += self.factor * *product;
        }
    }

    /// Scales a row of the adapted weight to the magnitude of DoRA.
    fn give_magnitude(self, row: usize, sum: &mut [f32]) {
        if let Some(magnitude) = &self.weights.magnitude {
            let squares = sum.iter().map(|value| f64::from(*value).powi(2));
            // As in training, where a column of zeros has no scale of 0 / 0.
            let squares = squares.sum::<f64>().max(f32::MIN_POSITIVE.into());
            let norm = squares.sqrt() as f32;
            let scale = magnitude[row] / norm;
            for value in sum {
                *value *= scale;
            }
        }
    }

    fn add_linear_row(self, row: usize, product: &mut [f32]) {
        let LoraWeights { r, d_in, a, b, .. } = self.weights;
        for (b, a) in b[row * r..][..*r].iter().zip(a.chunks_exact(*d_in)) {
            for (product, a) in product.iter_mut().zip(a) {
                *product += b * a;
            }
        }
    }
}

/// Rounds values to a type. The error is the index of the first value that is not finite in it.
fn store(values: &[f32], dtype: TensorDtype, bytes: &mut [u8]) -> Result<(), usize> {
    match dtype {
        TensorDtype::Float32 => rounded(values, bytes, |value| {
            (value.to_le_bytes(), value.is_finite())
        }),
        TensorDtype::Float16 => rounded(values, bytes, |value| {
            let value = f16::from_f32(value);
            (value.to_le_bytes(), value.is_finite())
        }),
        TensorDtype::Bfloat16 => rounded(values, bytes, |value| {
            let value = bf16::from_f32(value);
            (value.to_le_bytes(), value.is_finite())
        }),
    }
}

fn rounded<const SIZE: usize>(
    values: &[f32],
    bytes: &mut [u8],
    round: impl Fn(f32) -> ([u8; SIZE], bool),
) -> Result<(), usize> {
    let places = bytes.as_chunks_mut().0.iter_mut();
    let mut not_finite = None;
    for (index, (place, value)) in places.zip(values).enumerate() {
        let (bytes, is_finite) = round(*value);
        *place = bytes;
        if !is_finite {
            not_finite.get_or_insert(index);
        }
    }
    not_finite.map_or(Ok(()), Err)
}

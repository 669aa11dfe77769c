use crate::error::ModelError;

/// The two matrices of one adapted linear layer: `y = W·x + scale · B·A·x`.
#[derive(Debug, Clone, PartialEq)]
pub struct LoraWeights {
    /// Rank.
    pub r: usize,
    /// Numerator of the scale.
    pub lora_alpha: f64,
    /// Factor of the product: `lora_alpha / r`, or `lora_alpha / sqrt(r)` with rsLoRA.
    pub scale: f64,
    /// `lora_A`, row-major `[r, d_in]`.
    pub a: Vec<f32>,
    /// `lora_B`, row-major `[d_out, r]`.
    pub b: Vec<f32>,
    /// `lora_magnitude_vector`, `[d_out]`, of an adapter with DoRA: `y = m / ‖W + scale · B·A‖ ∘ (W + scale · B·A)·x`,
    /// with the norm of each row.
    pub magnitude: Option<Vec<f32>>,
    /// Input features of the layer.
    pub d_in: usize,
    /// Output features of the layer.
    pub d_out: usize,
}

impl LoraWeights {
    /// Adds `factor · B·A` of another adapter of the same layer to the product, as further ranks. The scale is
    /// unchanged.
    pub(crate) fn append(&mut self, other: &Self, factor: f32) {
        self.a.extend(&other.a);
        let rows = self.b.chunks_exact(self.r);
        let rows = rows.zip(other.b.chunks_exact(other.r));
        let row = |(row, other): (&[f32], &[f32])| {
            let further = other.iter().map(|value| factor * value);
            row.iter().copied().chain(further).collect::<Vec<_>>()
        };
        self.b = rows.flat_map(row).collect();
        self.r += other.r;
    }

    /// An error if the sizes do not fit the data or a value is not finite.
    pub(super) fn check(&self, module: &str) -> Result<(), ModelError> {
        let sizes = [(self.r, self.d_in, &self.a), (self.d_out, self.r, &self.b)];
        let magnitude = self.magnitude.as_deref();
        if sizes
            .iter()
            .any(|(rows, columns, data)| rows.checked_mul(*columns) != Some(data.len()))
            || magnitude.is_some_and(|norms| norms.len() != self.d_out)
        {
            return Err(ModelError::AdapterFactors {
                module: module.to_owned(),
                a: vec![self.a.len()],
                b: vec![self.b.len()],
            });
        }
        let norms = magnitude.map(|norms| ("lora_magnitude_vector", norms));
        for (factor, data) in [("lora_A", &self.a[..]), ("lora_B", &self.b[..])]
            .into_iter()
            .chain(norms)
        {
            if let Some(element) = data.iter().position(|value| !value.is_finite()) {
                let (module, value) = (module.to_owned(), data[element]);
                return Err(ModelError::NotFinite {
                    module,
                    factor,
                    element,
                    value,
                });
            }
        }
        Ok(())
    }
}

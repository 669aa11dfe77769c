use crate::BatchLoraError;

/// Shape of one adapter at one linear layer, in PEFT's words.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LoraSpec {
    /// Rank.
    pub r: usize,
    /// Numerator of the scale.
    pub lora_alpha: f64,
    /// Scale by `lora_alpha / sqrt(r)` (rsLoRA) instead of `lora_alpha / r`.
    pub use_rslora: bool,
    /// Probability in `[0, 1)` of dropping an element of the adapter's input.
    pub lora_dropout: f64,
}

impl LoraSpec {
    /// An adapter of rank `r` and the given `lora_alpha`, without dropout, scaled by `alpha / r`.
    pub fn new(r: usize, lora_alpha: f64) -> Self {
        Self {
            r,
            lora_alpha,
            use_rslora: false,
            lora_dropout: 0.0,
        }
    }

    /// Sets the dropout probability.
    pub fn with_lora_dropout(mut self, lora_dropout: f64) -> Self {
        self.lora_dropout = lora_dropout;
        self
    }

    /// Chooses between `alpha / sqrt(r)` and `alpha / r`.
    pub fn with_use_rslora(mut self, use_rslora: bool) -> Self {
        self.use_rslora = use_rslora;
        self
    }

    /// The factor s of `s · x A B`.
    pub fn scale(&self) -> f64 {
        let r = self.r as f64;
        self.lora_alpha / if self.use_rslora { r.sqrt() } else { r }
    }

    /// Checks rank, alpha and dropout.
    ///
    /// # Errors
    /// [`BatchLoraError::InvalidConfig`] for a rank of 0, an alpha that is not finite, or a dropout
    /// outside `[0, 1)`.
    pub fn validate(&self) -> Result<(), BatchLoraError> {
        if self.r == 0 {
            return Err(BatchLoraError::InvalidConfig(
                "r must be at least 1, got 0".into(),
            ));
        }
        if !self.lora_alpha.is_finite() {
            return Err(BatchLoraError::InvalidConfig(format!(
                "lora_alpha must be finite, got {}",
                self.lora_alpha
            )));
        }
        if !(0.0..1.0).contains(&self.lora_dropout) {
            return Err(BatchLoraError::InvalidConfig(format!(
                "lora_dropout must be in [0, 1), got {}",
                self.lora_dropout
            )));
        }
        Ok(())
    }
}

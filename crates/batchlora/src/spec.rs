#![expect(
    clippy::expl_impl_clone_on_copy,
    reason = "Burn's `Config` implements `Clone` itself"
)]

use burn::config::Config;

use crate::BatchLoraError;

/// Shape of one adapter at one linear layer, in PEFT's words; the default is that of PEFT's `LoraConfig`.
#[derive(Config, Debug, Copy, PartialEq)]
pub struct LoraSpec {
    /// Rank.
    pub r: usize,
    /// Numerator of the scale.
    pub lora_alpha: f64,
    /// Scale by `lora_alpha / sqrt(r)` (rsLoRA) instead of `lora_alpha / r`.
    #[config(default = false)]
    pub use_rslora: bool,
    /// Probability in `[0, 1)` of dropping an element of the adapter's input.
    #[config(default = 0.0)]
    pub lora_dropout: f64,
    /// Scale each output of the adapted layer to a trained magnitude (DoRA).
    #[config(default = false)]
    pub use_dora: bool,
    /// Train B alone (LoRA-FA): A has a gradient of zero, and the optimizer keeps its bits.
    #[config(default = false)]
    pub freeze_a: bool,
    /// Number of ranks at the end that are not trained: their rows of A and B have gradients of zero, and the optimizer
    /// keeps their bits.
    #[config(default = 0)]
    pub frozen_ranks: usize,
}

impl Default for LoraSpec {
    fn default() -> Self {
        Self::new(8, 8.0)
    }
}

impl LoraSpec {
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
        if self.frozen_ranks >= self.r {
            return Err(BatchLoraError::InvalidConfig(format!(
                "frozen_ranks must be below r {}, got {}",
                self.r, self.frozen_ranks
            )));
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

use serde_json::Value;

use super::{raw::RawPeftConfig, written};
use crate::error::{ModelError, invalid};

/// PEFT's `LoraConfig`: the keys that determine the computation, and the base model.
#[derive(Debug, Clone, PartialEq)]
pub struct PeftLoraConfig {
    /// Path or name of the base model; not resolved.
    pub base_model_name_or_path: Option<String>,
    /// Rank of every module that `rank_pattern` does not match.
    pub r: usize,
    /// Numerator of the scale of every module that `alpha_pattern` does not match.
    pub lora_alpha: f64,
    /// Probability of dropping an element of the adapter's input in training.
    pub lora_dropout: f64,
    /// Scale by `lora_alpha / sqrt(r)` instead of `lora_alpha / r`.
    pub use_rslora: bool,
    /// Every module has a magnitude (DoRA).
    pub use_dora: bool,
    /// Name of the start values that PEFT gives A and B before it loads the weights; `None` is its `true`.
    pub init_lora_weights: Option<String>,
    /// The linear layers to adapt.
    pub target_modules: TargetModules,
    /// Exceptions among them.
    pub exclude_modules: Option<TargetModules>,
    /// With [`TargetModules::Names`], adapt these layers only; empty is all.
    pub layers_to_transform: Vec<usize>,
    /// Names of the list of layers that `layers_to_transform` counts in; empty is any.
    pub layers_pattern: Vec<String>,
    /// Ranks by pattern of the module path; the first match counts.
    pub rank_pattern: Vec<(String, usize)>,
    /// `lora_alpha` by pattern of the module path; the first match counts.
    pub alpha_pattern: Vec<(String, f64)>,
}

/// The modules that an adapter adapts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TargetModules {
    /// Modules whose path is one of these or ends in `.` and one of these.
    Names(Vec<String>),
    /// Modules whose whole path matches this regular expression.
    Pattern(String),
    /// Every linear layer except the output projection.
    AllLinear,
}

impl PeftLoraConfig {
    /// A configuration with one rank and one `lora_alpha` for all of `target_modules`, PEFT's
    /// defaults elsewhere.
    pub fn new(r: usize, lora_alpha: f64, target_modules: Vec<String>) -> Self {
        Self {
            base_model_name_or_path: None,
            r,
            lora_alpha,
            lora_dropout: 0.0,
            use_rslora: false,
            use_dora: false,
            init_lora_weights: None,
            target_modules: TargetModules::Names(target_modules),
            exclude_modules: None,
            layers_to_transform: Vec::new(),
            layers_pattern: Vec::new(),
            rank_pattern: Vec::new(),
            alpha_pattern: Vec::new(),
        }
    }

    /// Resolves the text of an `adapter_config.json`.
    ///
    /// # Errors
    /// If it does not describe a `LoRA` or `DoRA` adapter of a causal language model, or a value is missing or
    /// out of range.
    pub fn from_json(text: &str) -> Result<Self, ModelError> {
        let raw = RawPeftConfig::parse(text)?;
        let config = Self {
            target_modules: raw
                .target_modules
                .ok_or(ModelError::MissingKey("target_modules"))?,
            base_model_name_or_path: raw.base_model_name_or_path,
            r: raw.r.ok_or(ModelError::MissingKey("r"))?,
            lora_alpha: raw.lora_alpha.ok_or(ModelError::MissingKey("lora_alpha"))?,
            lora_dropout: raw.lora_dropout.unwrap_or(0.0),
            use_rslora: raw.use_rslora.unwrap_or(false),
            use_dora: raw.use_dora.unwrap_or(false),
            init_lora_weights: raw.init_lora_weights.and_then(|value| match value {
                // PEFT makes `eva`'s from data; the weights are those of the file in any case.
                Value::String(name) if name != "eva" => Some(name),
                _ => None,
            }),
            exclude_modules: raw.exclude_modules,
            layers_to_transform: raw.layers_to_transform.map(|l| l.0).unwrap_or_default(),
            layers_pattern: raw.layers_pattern.map(|l| l.0).unwrap_or_default(),
            rank_pattern: raw.rank_pattern.map(|p| p.0).unwrap_or_default(),
            alpha_pattern: raw.alpha_pattern.map(|p| p.0).unwrap_or_default(),
        };
        config.check()?;
        Ok(config)
    }

    /// The text of an `adapter_config.json`, as PEFT writes it.
    ///
    /// # Errors
    /// [`ModelError::Json`] if a number is not finite.
    pub fn to_json(&self) -> Result<String, ModelError> {
        let text = written::config_json(self)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// The scale of a rank and `lora_alpha`: `lora_alpha / r`, or `lora_alpha / sqrt(r)` with rsLoRA.
    pub fn scale(&self, r: usize, lora_alpha: f64) -> f64 {
        let r = r as f64;
        lora_alpha / if self.use_rslora { r.sqrt() } else { r }
    }

    /// Checks the ranges of all numbers.
    pub(super) fn check(&self) -> Result<(), ModelError> {
        let ranks = self.rank_pattern.iter().map(|(key, r)| (key.as_str(), *r));
        if let Some((key, _)) = ranks.chain([("r", self.r)]).find(|(_, r)| *r == 0) {
            return Err(invalid(key, "is 0, expected a rank of at least 1"));
        }
        let alphas = self.alpha_pattern.iter();
        let alphas = alphas.map(|(key, alpha)| (key.as_str(), *alpha));
        let mut alphas = alphas.chain([("lora_alpha", self.lora_alpha)]);
        if let Some((key, alpha)) = alphas.find(|(_, alpha)| !alpha.is_finite()) {
            return Err(invalid(key, format!("is {alpha}")));
        }
        if !(0.0..1.0).contains(&self.lora_dropout) {
            let problem = format!("is {}, expected a probability below 1", self.lora_dropout);
            return Err(invalid("lora_dropout", problem));
        }
        if !self.layers_to_transform.is_empty()
            && !matches!(self.target_modules, TargetModules::Names(_))
        {
            return Err(invalid(
                "layers_to_transform",
                "needs `target_modules` to be a list of names",
            ));
        }
        Ok(())
    }
}

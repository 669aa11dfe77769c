//! Writes `adapter_config.json`.

use serde::{Serialize, Serializer, ser::SerializeMap};

use super::config::{PeftLoraConfig, TargetModules};
use crate::error::ModelError;

/// The text of the file: keys in alphabetical order and indented, as PEFT writes them.
pub(super) fn config_json(config: &PeftLoraConfig) -> Result<Vec<u8>, ModelError> {
    let mut text = serde_json::to_vec_pretty(config).map_err(ModelError::Json)?;
    text.push(b'\n');
    Ok(text)
}

impl Serialize for PeftLoraConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let alphas = self.alpha_pattern.iter();
        let alphas = alphas.map(|(pattern, alpha)| (pattern.as_str(), Number(*alpha)));
        let ranks = self.rank_pattern.iter();
        let ranks = ranks.map(|(pattern, rank)| (pattern.as_str(), *rank));
        let layers_to_transform = some_unless_empty(&self.layers_to_transform);
        let mut file = serializer.serialize_map(None)?;
        file.serialize_entry("alpha_pattern", &Entries(alphas.collect()))?;
        file.serialize_entry("base_model_name_or_path", &self.base_model_name_or_path)?;
        file.serialize_entry("bias", "none")?;
        file.serialize_entry("exclude_modules", &self.exclude_modules)?;
        file.serialize_entry("fan_in_fan_out", &false)?;
        file.serialize_entry("inference_mode", &true)?;
        match &self.init_lora_weights {
            Some(name) => file.serialize_entry("init_lora_weights", name)?,
            None => file.serialize_entry("init_lora_weights", &true)?,
        }
        file.serialize_entry("layers_pattern", &some_unless_empty(&self.layers_pattern))?;
        file.serialize_entry("layers_to_transform", &layers_to_transform)?;
        file.serialize_entry("lora_alpha", &Number(self.lora_alpha))?;
        file.serialize_entry("lora_dropout", &self.lora_dropout)?;
        file.serialize_entry("modules_to_save", &())?;
        file.serialize_entry("peft_type", "LORA")?;
        file.serialize_entry("r", &self.r)?;
        file.serialize_entry("rank_pattern", &Entries(ranks.collect()))?;
        file.serialize_entry("revision", &())?;
        file.serialize_entry("target_modules", &self.target_modules)?;
        file.serialize_entry("task_type", "CAUSAL_LM")?;
        file.serialize_entry("use_dora", &self.use_dora)?;
        file.serialize_entry("use_rslora", &self.use_rslora)?;
        file.end()
    }
}

fn some_unless_empty<T>(items: &[T]) -> Option<&[T]> {
    (!items.is_empty()).then_some(items)
}

/// Writes a whole number without a fraction: PEFT declares `lora_alpha` an integer, and strict readers
/// require one.
struct Number(f64);

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let integer = self.0 as i64;
        // Below 2^53 every integer is a float.
        if (integer as f64 - self.0).abs() <= 0.0 && integer.abs() < 1 << 53 {
            serializer.serialize_i64(integer)
        } else {
            serializer.serialize_f64(self.0)
        }
    }
}

/// A map in the order of its entries.
struct Entries<'a, T>(Vec<(&'a str, T)>);

impl<T: Serialize> Serialize for Entries<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}

impl Serialize for TargetModules {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Names(names) => names.serialize(serializer),
            Self::Pattern(pattern) => serializer.serialize_str(pattern),
            Self::AllLinear => serializer.serialize_str("all-linear"),
        }
    }
}

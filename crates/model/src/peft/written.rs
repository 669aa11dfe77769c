//! `adapter_config.json` as loraloom writes it.

use serde::{Serialize, Serializer};

use super::config::{PeftLoraConfig, TargetModules};
use crate::error::ModelError;

/// The text of the file: keys in alphabetical order and indented, as PEFT writes them.
pub(super) fn config_json(config: &PeftLoraConfig) -> Result<Vec<u8>, ModelError> {
    let file = ConfigFile {
        alpha_pattern: &config.alpha_pattern,
        base_model_name_or_path: config.base_model_name_or_path.as_deref(),
        bias: "none",
        exclude_modules: config.exclude_modules.as_ref(),
        fan_in_fan_out: false,
        inference_mode: true,
        init_lora_weights: true,
        layers_pattern: some_unless_empty(&config.layers_pattern),
        layers_to_transform: some_unless_empty(&config.layers_to_transform),
        lora_alpha: Number(config.lora_alpha),
        lora_dropout: config.lora_dropout,
        modules_to_save: None,
        peft_type: "LORA",
        r: config.r,
        rank_pattern: &config.rank_pattern,
        revision: None,
        target_modules: &config.target_modules,
        task_type: "CAUSAL_LM",
        use_dora: false,
        use_rslora: config.use_rslora,
    };
    let mut text = serde_json::to_vec_pretty(&file).map_err(ModelError::Json)?;
    text.push(b'\n');
    Ok(text)
}

#[derive(Serialize)]
struct ConfigFile<'a> {
    #[serde(serialize_with = "alphas")]
    alpha_pattern: &'a [(String, f64)],
    base_model_name_or_path: Option<&'a str>,
    bias: &'static str,
    exclude_modules: Option<&'a TargetModules>,
    fan_in_fan_out: bool,
    inference_mode: bool,
    init_lora_weights: bool,
    layers_pattern: Option<&'a [String]>,
    layers_to_transform: Option<&'a [usize]>,
    lora_alpha: Number,
    lora_dropout: f64,
    modules_to_save: Option<()>,
    peft_type: &'static str,
    r: usize,
    #[serde(serialize_with = "ranks")]
    rank_pattern: &'a [(String, usize)],
    revision: Option<()>,
    target_modules: &'a TargetModules,
    task_type: &'static str,
    use_dora: bool,
    use_rslora: bool,
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
fn ranks<S: Serializer>(entries: &[(String, usize)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(entries.iter().map(|(key, rank)| (key, rank)))
}

fn alphas<S: Serializer>(entries: &[(String, f64)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(entries.iter().map(|(key, alpha)| (key, Number(*alpha))))
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

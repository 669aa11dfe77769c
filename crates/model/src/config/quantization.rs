use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{ModelError, unsupported};

/// Storage of the linear layers of decoder layers in NF4, in blocks of 64. Embedding and output projection stay in
/// floating point.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quantization {
    /// The scales of blocks have 8 bits.
    pub double_quant: bool,
    /// Layers that stay in floating point: names such as `down_proj`, or paths, or the beginnings of paths.
    pub skip: Vec<String>,
}

impl Quantization {
    /// True if a linear layer is stored so, given its path, such as `model.layers.3.mlp.down_proj`.
    pub fn covers(&self, module: &str) -> bool {
        let names = |skipped: &String| {
            let ends = module.strip_suffix(skipped.as_str());
            let begins = module.strip_prefix(skipped.as_str());
            ends.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
                || begins.is_some_and(|rest| rest.starts_with('.'))
        };
        module.contains(".layers.") && !self.skip.iter().any(names)
    }

    /// From `quantization_config` of a `config.json`.
    pub(super) fn from_json(json: &Value) -> Result<Self, ModelError> {
        let refused = |key: &str| {
            let value = json.get(key).unwrap_or(&Value::Null);
            Err(unsupported(
                &format!("quantization_config.{key}"),
                value.to_string(),
            ))
        };
        let is = |key: &str, value: &str| json.get(key).and_then(Value::as_str) == Some(value);
        let flag = |key: &str| json.get(key).and_then(Value::as_bool).unwrap_or(false);
        if !is("quant_method", "bitsandbytes") {
            return refused("quant_method");
        }
        if !flag("load_in_4bit") {
            return refused("load_in_4bit");
        }
        if !is("bnb_4bit_quant_type", "nf4") {
            return refused("bnb_4bit_quant_type");
        }
        let skip = match json.get("llm_int8_skip_modules") {
            None | Some(Value::Null) => Some(Vec::new()),
            Some(modules) => serde_json::from_value(modules.clone()).ok(),
        };
        let Some(skip) = skip else {
            return refused("llm_int8_skip_modules");
        };
        Ok(Self {
            double_quant: flag("bnb_4bit_use_double_quant"),
            skip,
        })
    }
}

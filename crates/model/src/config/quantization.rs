use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::LlamaConfig;
use crate::{
    Projection,
    error::{ModelError, unsupported},
};

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
        module.contains(".layers.") && !self.skip.iter().any(|skipped| names(skipped, module))
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

/// True if this is the path of a module, or the path's end or beginning.
fn names(name: &str, module: &str) -> bool {
    let ends = module.strip_suffix(name);
    let begins = module.strip_prefix(name);
    ends.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        || begins.is_some_and(|rest| rest.starts_with('.'))
}

impl LlamaConfig {
    /// The model with linear layers that are quantised when they are read.
    ///
    /// # Errors
    /// [`ModelError::AlreadyQuantized`] if the checkpoint is quantised, and [`ModelError::Skip`] if a layer to skip does
    /// not exist, or no other is left.
    pub fn with_quantization(self, quantization: Quantization) -> Result<Self, ModelError> {
        if self.quantization.is_some() {
            return Err(ModelError::AlreadyQuantized);
        }
        let layers = 0..self.num_hidden_layers;
        let of = |layer| {
            let linears = self.linears().into_iter();
            linears.map(move |linear| linear.projection.module(layer))
        };
        let mut modules: Vec<String> = layers.flat_map(of).collect();
        let ends = Projection::ENDS.map(|end| end.module(0));
        for name in &quantization.skip {
            if !modules
                .iter()
                .chain(&ends)
                .any(|module| names(name, module))
            {
                let problem = format!("`{name}` is no layer of this model");
                return Err(ModelError::Skip(problem));
            }
        }
        modules.retain(|module| quantization.covers(module));
        if modules.is_empty() {
            let problem = "no layer is left to quantise".to_owned();
            return Err(ModelError::Skip(problem));
        }
        Ok(Self {
            quantization: Some(quantization),
            ..self
        })
    }
}

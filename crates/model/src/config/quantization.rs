use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::LlamaConfig;
use crate::{
    Projection,
    error::{ModelError, unsupported},
};

/// Rows and columns that share a scale in FP8, unless a file says otherwise.
const BLOCK: usize = 128;

/// Formats of compressed-tensors that are read.
const COMPRESSED: [&str; 4] = [
    "pack-quantized",
    "float-quantized",
    "int-quantized",
    "naive-quantized",
];

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
}

/// The quantised layers of a checkpoint. Those that are not in NF4 are made dense as they are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredFormat {
    /// Tool or format, as `quantization_config.quant_method` names it.
    pub method: String,
    /// Rows and columns of a weight that share a scale, where there is one for each block.
    pub block: [usize; 2],
}

impl StoredFormat {
    /// The name for messages.
    pub fn name(&self) -> &str {
        match self.method.as_str() {
            "fp8" => "FP8",
            "gptq" => "GPTQ",
            "awq" => "AWQ",
            "bitsandbytes" => "LLM.int8",
            method => method,
        }
    }
}

/// By `quantization_config` of a `config.json`: how a checkpoint is stored, and the layers that are in NF4.
pub(super) fn stored(json: &Value) -> Result<(StoredFormat, Option<Quantization>), ModelError> {
    let refused = |key: &str| {
        let value = json.get(key).unwrap_or(&Value::Null);
        unsupported(&format!("quantization_config.{key}"), value.to_string())
    };
    let is_known = |key: &str, values: &[Value]| match json.get(key) {
        Some(value) if !value.is_null() && !values.contains(value) => Err(refused(key)),
        _ => Ok(()),
    };
    let method = json.get("quant_method").and_then(Value::as_str);
    let quantization = match method {
        Some("bitsandbytes") if json.get("load_in_8bit") == Some(&json!(true)) => None,
        Some("bitsandbytes") => Some(nf4(json, &refused)?),
        Some("fp8") => None,
        Some("compressed-tensors") => {
            is_known("format", &COMPRESSED.map(Value::from))?;
            None
        }
        Some("gptq") => {
            is_known("bits", &[json!(4), json!(8)])?;
            is_known("checkpoint_format", &[json!("gptq")])?;
            None
        }
        Some("awq") => {
            is_known("bits", &[json!(4)])?;
            is_known("version", &[json!("gemm"), json!("GEMM")])?;
            None
        }
        _ => return Err(refused("quant_method")),
    };
    let key = "weight_block_size";
    let block = match json.get(key) {
        None | Some(Value::Null) => [BLOCK; 2],
        Some(block) => serde_json::from_value(block.clone()).map_err(|_| refused(key))?,
    };
    if block.contains(&0) {
        return Err(refused(key));
    }
    let method = method.unwrap_or_default().to_owned();
    Ok((StoredFormat { method, block }, quantization))
}

/// bitsandbytes' settings of NF4.
fn nf4(json: &Value, refused: &dyn Fn(&str) -> ModelError) -> Result<Quantization, ModelError> {
    for (key, value) in [
        ("load_in_4bit", json!(true)),
        ("bnb_4bit_quant_type", json!("nf4")),
    ] {
        if json.get(key) != Some(&value) {
            return Err(refused(key));
        }
    }
    let key = "llm_int8_skip_modules";
    let skip = match json.get(key) {
        None | Some(Value::Null) => Vec::new(),
        Some(modules) => serde_json::from_value(modules.clone()).map_err(|_| refused(key))?,
    };
    let double_quant = json.get("bnb_4bit_use_double_quant");
    Ok(Quantization {
        double_quant: double_quant == Some(&json!(true)),
        skip,
    })
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

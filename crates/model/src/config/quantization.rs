use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::LlamaConfig;
use crate::{
    Projection,
    error::{ModelError, unsupported},
};

/// Rows and columns that share a scale in FP8, unless a file says otherwise.
const BLOCK: usize = 128;

/// The output projection.
const HEAD: &str = "lm_head";

/// Formats of compressed-tensors that are read.
const COMPRESSED: [&str; 3] = ["pack-quantized", "float-quantized", "int-quantized"];

/// Storage of linear layers in NF4, in blocks of 64. The embedding stays in floating point.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quantization {
    /// The scales of blocks have 8 bits.
    pub double_quant: bool,
    /// Layers that stay in floating point: parts of their paths, such as `down_proj`, `mlp` or `model.layers.0`.
    pub skip: Vec<String>,
}

impl Quantization {
    /// True if a linear layer is stored so, given its path, such as `model.layers.3.mlp.down_proj` or `lm_head`.
    pub fn covers(&self, module: &str) -> bool {
        let is_linear = module.contains(".layers.") || module == HEAD;
        is_linear && !self.skip.iter().any(|name| is_named(module, name))
    }
}

/// How a checkpoint is quantised. Layers that are not in NF4 are made dense as they are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredFormat {
    /// The name for messages.
    pub name: &'static str,
    /// True for bitsandbytes' NF4.
    pub is_nf4: bool,
    /// Rows and columns of a weight that share a scale, if there is one for each block.
    pub block: Option<[usize; 2]>,
    /// Columns that share a scale, in the groups of layers that the file names.
    pub group_sizes: Vec<usize>,
    /// True if the file says that groups list their columns.
    pub has_listed_groups: bool,
    /// True if the file says that weights have zero points.
    pub has_zero_points: bool,
}

/// By `quantization_config` of a `config.json`: how a checkpoint is stored, and the layers that are in NF4.
pub(super) fn stored(json: &Value) -> Result<(StoredFormat, Option<Quantization>), ModelError> {
    let refused = |key: &str| {
        let value = json.get(key).unwrap_or(&Value::Null);
        unsupported(&format!("quantization_config.{key}"), value.to_string())
    };
    let refuse_unknown = |key: &str, values: &[Value]| match json.get(key) {
        Some(value) if !value.is_null() && !values.contains(value) => Err(refused(key)),
        _ => Ok(()),
    };
    let mut found = StoredFormat {
        name: "",
        is_nf4: false,
        block: None,
        group_sizes: positive(json.get("group_size")).into_iter().collect(),
        has_listed_groups: json.get("desc_act") == Some(&json!(true)),
        has_zero_points: false,
    };
    let mut quantization = None;
    found.name = match json.get("quant_method").and_then(Value::as_str) {
        Some("bitsandbytes") if json.get("load_in_8bit") == Some(&json!(true)) => "LLM.int8",
        Some("bitsandbytes") => {
            quantization = Some(nf4(json, &refused)?);
            found.is_nf4 = true;
            "NF4"
        }
        Some("fp8") => {
            let key = "weight_block_size";
            let block = json.get(key).filter(|block| !block.is_null());
            found.block = Some(match block {
                Some(block) => block_of(block).ok_or_else(|| refused(key))?,
                None => [BLOCK; 2],
            });
            "FP8"
        }
        Some("compressed-tensors") => {
            refuse_unknown("format", &COMPRESSED.map(Value::from))?;
            refuse_unknown("transform_config", &[json!({})])?;
            let sparse = json.pointer("/sparsity_config/format");
            if sparse.is_some_and(|format| *format != "dense") {
                return Err(refused("sparsity_config"));
            }
            let groups = json.get("config_groups").and_then(Value::as_object);
            let groups = groups.into_iter().flat_map(|groups| groups.values());
            let weights: Vec<_> = groups.filter_map(|group| group.get("weights")).collect();
            for weights in &weights {
                let size = positive(weights.get("group_size"));
                found.group_sizes.extend(size);
                let block = weights.get("block_structure").and_then(block_of);
                found.block = found.block.or(block);
            }
            found.block = found.block.or(Some([BLOCK; 2]));
            found.has_listed_groups =
                all(&weights, "actorder", &[json!("group"), json!("dynamic")]);
            found.has_zero_points = all(&weights, "symmetric", &[json!(false)]);
            "compressed-tensors"
        }
        Some("gptq") => {
            refuse_unknown("bits", &[json!(4), json!(8)])?;
            refuse_unknown("checkpoint_format", &[json!("gptq")])?;
            refuse_unknown("rotation", &[])?;
            "GPTQ"
        }
        Some("awq") => {
            refuse_unknown("bits", &[json!(4)])?;
            for key in ["version", "format"] {
                refuse_unknown(key, &[json!("gemm"), json!("GEMM")])?;
            }
            "AWQ"
        }
        _ => return Err(refused("quant_method")),
    };
    Ok((found, quantization))
}

/// True if all these settings, of which there are some, have one of these values.
fn all(settings: &[&Value], key: &str, values: &[Value]) -> bool {
    let has = |one: &&Value| one.get(key).is_some_and(|value| values.contains(value));
    !settings.is_empty() && settings.iter().all(has)
}

fn positive(value: Option<&Value>) -> Option<usize> {
    let number = value?
        .as_u64()
        .and_then(|number| usize::try_from(number).ok());
    number.filter(|number| *number > 0)
}

fn block_of(value: &Value) -> Option<[usize; 2]> {
    match value.as_array()?.as_slice() {
        [rows, columns] => Some([positive(Some(rows))?, positive(Some(columns))?]),
        _ => None,
    }
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
        // As transformers takes it.
        None | Some(Value::Null) => vec![HEAD.to_owned()],
        Some(modules) => serde_json::from_value(modules.clone()).map_err(|_| refused(key))?,
    };
    let double_quant = json.get("bnb_4bit_use_double_quant");
    Ok(Quantization {
        double_quant: double_quant == Some(&json!(true)),
        skip,
    })
}

/// True if the name is one of the parts of a module's path, or several that follow each other.
fn is_named(module: &str, name: &str) -> bool {
    format!(".{module}.").contains(&format!(".{name}."))
}

impl LlamaConfig {
    /// Paths of the linear layers, also of the output projection unless that is the embedding.
    fn linear_modules(&self) -> Vec<String> {
        let of = |layer| {
            let linears = self.linears().into_iter();
            linears.map(move |linear| linear.projection.module(layer))
        };
        let head = (!self.tie_word_embeddings).then(|| HEAD.to_owned());
        let layers = 0..self.num_hidden_layers;
        layers.flat_map(of).chain(head).collect()
    }

    /// Numbers of linear layers in NF4 and of all.
    pub fn quantized_linears(&self) -> (usize, usize) {
        let modules = self.linear_modules();
        let quantization = self.quantization.iter();
        let covered = |one: &Quantization| modules.iter().filter(|name| one.covers(name)).count();
        (quantization.map(covered).sum(), modules.len())
    }

    /// The model with linear layers that are quantised when they are read.
    ///
    /// # Errors
    /// [`ModelError::AlreadyQuantized`] if the checkpoint is quantised, and [`ModelError::Skip`] if a layer to skip does
    /// not exist, or no other is left.
    pub fn with_quantization(self, quantization: Quantization) -> Result<Self, ModelError> {
        if self.quantization.is_some() {
            return Err(ModelError::AlreadyQuantized);
        }
        let mut modules = self.linear_modules();
        let ends = Projection::ENDS.map(|end| end.module(0));
        for name in &quantization.skip {
            if !modules
                .iter()
                .chain(&ends)
                .any(|module| is_named(module, name))
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

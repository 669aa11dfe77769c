use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Storage of the base model's linear layers in fewer bits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a mapping with `type`")]
pub struct QuantizationConfig {
    /// Type that the weights are stored in.
    pub r#type: QuantizationType,
    /// Store the scales of the blocks in 8 bits, as bitsandbytes' bnb_4bit_use_double_quant does: 4.13 bits a weight
    /// instead of 4.5.
    #[serde(default = "yes")]
    pub double_quant: bool,
    /// Layers that stay in dtype: parts of their paths, such as down_proj, mlp or model.layers.0. By default the output
    /// projection; a list without lm_head quantises it, too, unless it is tied to the embedding, which always stays in
    /// dtype.
    #[serde(default = "output_projection")]
    pub skip: Vec<String>,
}

impl QuantizationConfig {
    /// This type with all defaults.
    pub fn new(r#type: QuantizationType) -> Self {
        Self {
            r#type,
            double_quant: yes(),
            skip: output_projection(),
        }
    }
}

/// Type of stored weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum QuantizationType {
    /// 4 bits, QLoRA's normal float, in blocks of 64 weights.
    Nf4,
}

fn output_projection() -> Vec<String> {
    vec!["lm_head".to_owned()]
}

fn yes() -> bool {
    true
}

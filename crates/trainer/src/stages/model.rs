use std::path::Path;

use loraloom_config::{QuantizationConfig, QuantizationType};
use loraloom_model::{LlamaConfig, Quantization};

use crate::error::Result;

/// The configuration of the model in a directory, quantised when it is read if a run says so.
///
/// # Errors
/// If the model cannot be read, or cannot be quantised so.
pub fn model_config(
    directory: &Path,
    quantization: Option<&QuantizationConfig>,
) -> Result<LlamaConfig> {
    let model = LlamaConfig::from_directory(directory)?;
    match quantization {
        Some(quantization) => quantized(model, quantization),
        None => Ok(model),
    }
}

/// A model that is quantised when it is read.
///
/// # Errors
/// If it is already quantised, or has no such layers.
pub fn quantized(model: LlamaConfig, quantization: &QuantizationConfig) -> Result<LlamaConfig> {
    let QuantizationType::Nf4 = quantization.r#type;
    Ok(model.with_quantization(Quantization {
        double_quant: quantization.double_quant,
        skip: quantization.skip.clone(),
    })?)
}

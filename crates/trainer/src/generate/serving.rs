use std::{path::Path, sync::Arc};

use burn::tensor::Device;
use loraloom_config::DtypeChoice;
use loraloom_inference::ReadAdapter;
use loraloom_model::{Checkpoint, LlamaConfig, PeftAdapter};
use loraloom_pipeline::{Pipeline, Stage};

use crate::{
    adapter::{from_peft, kept_on_host},
    error::Result,
    saved_adapter::load_adapter,
    stages::resolve_dtype,
};

/// A model directory on a device, as one stage without adapters. `config` is the model's; see
/// [`model_config`](crate::model_config).
///
/// # Errors
/// If a file is missing or damaged, or the device cannot compute in the type.
pub fn inference_pipeline(
    model: &Path,
    config: &LlamaConfig,
    dtype: DtypeChoice,
    device: &Device,
) -> Result<Pipeline> {
    let checkpoint = Checkpoint::open(model)?;
    checkpoint.verify(config)?;
    let dtype = resolve_dtype(dtype, device, checkpoint.dtype())?;
    let layers = 0..config.num_hidden_layers;
    let stage = Stage::load(&checkpoint, config, layers, dtype, device)?;
    Ok(Pipeline::new(vec![stage])?)
}

/// Reads PEFT directories for a store of adapters, with the checks of [`load_adapter`].
pub fn adapter_reader(model: &Path, config: &LlamaConfig) -> ReadAdapter {
    let (model, config) = (model.to_owned(), config.clone());
    Arc::new(move |directory: &Path| {
        let read = || {
            PeftAdapter::check_copies(directory, &model)?;
            let peft = load_adapter(directory, Some(&config))?;
            let adapter = from_peft(&peft, None, &config, &Device::flex())?;
            Ok::<_, crate::TrainerError>(kept_on_host(adapter)?)
        };
        read().map_err(|error| error.to_string())
    })
}

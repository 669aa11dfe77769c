//! Writes what a run's adapters compute, for `fixtures/check_peft_loads.py` to compare PEFT with.
//!
//!     adapter_logits RUN_DIR OUT.safetensors
//!
//! `ids`, int64 `[n]`, and for each adapter `logits.<name>`, float32 `[n, vocabulary]`.

use std::{
    error::Error,
    fs,
    path::{Path, PathBuf},
};

use burn::tensor::Device;
use loraloom_config::{DtypeChoice, RunConfig};
use loraloom_data::Tokenizer;
use loraloom_model::LlamaConfig;
use loraloom_trainer::Generator;
use safetensors::{Dtype, serialize_to_file, tensor::TensorView};

const TEXT: &str = "The quick brown fox asks: how many apples are there? There are 12 of them.";

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1).map(PathBuf::from);
    let (Some(run), Some(out)) = (arguments.next(), arguments.next()) else {
        return Err("usage: adapter_logits RUN_DIR OUT.safetensors".into());
    };
    let model = RunConfig::load(&run.join("config.resolved.yaml"), &[])?
        .config
        .model;
    let ids = Tokenizer::load(&model)?.encode_prompt(TEXT)?;
    let names = adapter_names(&run)?;
    let paths: Vec<_> = names
        .iter()
        .map(|name| run.join("adapters").join(name).join("last"))
        .collect();
    let config = LlamaConfig::from_directory(&model)?;
    let generator = Generator::load(
        &model,
        &config,
        DtypeChoice::Float32,
        &paths,
        &Device::flex(),
    )?;

    let long: Vec<u8> = ids
        .iter()
        .flat_map(|&id| i64::from(id).to_le_bytes())
        .collect();
    let mut tensors = vec![("ids".to_owned(), Dtype::I64, vec![ids.len()], long)];
    for (index, name) in names.iter().enumerate() {
        let logits = generator.logits(&ids, Some(index))?;
        let shape = vec![ids.len(), logits.len() / ids.len()];
        let bytes = logits
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        tensors.push((format!("logits.{name}"), Dtype::F32, shape, bytes));
    }
    let views = tensors
        .iter()
        .map(|(name, dtype, shape, bytes)| {
            Ok((name, TensorView::new(*dtype, shape.clone(), bytes)?))
        })
        .collect::<Result<Vec<_>, safetensors::SafeTensorError>>()?;
    Ok(serialize_to_file(views, None, &out)?)
}

/// The adapters a run has saved, by name.
fn adapter_names(run: &Path) -> Result<Vec<String>, Box<dyn Error>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(run.join("adapters"))? {
        let entry = entry?;
        if entry.path().join("last").is_dir() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

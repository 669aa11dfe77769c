use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
};

use safetensors::SafeTensors;
use serde_json::{Value, json};
use tempfile::TempDir;

/// The bundled model with more layers, which are its own again and again.
#[derive(Debug)]
pub struct Deeper {
    directory: TempDir,
}

impl Deeper {
    /// The model with so many layers.
    pub fn new(layers: usize) -> Self {
        let bundled = Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/tiny-llama");
        let directory = tempfile::tempdir().expect("a temporary directory");
        for file in [
            "tokenizer.json",
            "tokenizer_config.json",
            "chat_template.jinja",
        ] {
            let copied = fs::copy(bundled.join(file), directory.path().join(file));
            copied.expect("a file of the bundled model");
        }
        let config = fs::read(bundled.join("config.json")).expect("the bundled model");
        let mut config: Value = serde_json::from_slice(&config).expect("its configuration");
        let own = config["num_hidden_layers"].as_u64().expect("a number") as usize;
        config["num_hidden_layers"] = json!(layers);
        let path = directory.path().join("config.json");
        fs::write(path, config.to_string()).expect("the configuration is written");

        let weights = fs::read(bundled.join("model.safetensors")).expect("the bundled model");
        let weights = SafeTensors::deserialize(&weights).expect("its weights");
        let mut all = Vec::new();
        for (name, tensor) in weights.tensors() {
            let Some((layer, rest)) = name
                .strip_prefix("model.layers.")
                .and_then(|rest| rest.split_once('.'))
            else {
                all.push((name, tensor));
                continue;
            };
            let layer: usize = layer.parse().expect("a layer's number");
            for again in (layer..layers).step_by(own) {
                all.push((format!("model.layers.{again}.{rest}"), tensor.clone()));
            }
        }
        let all = safetensors::serialize(all, None::<HashMap<_, _>>).expect("serializable");
        let path = directory.path().join("model.safetensors");
        fs::write(path, all).expect("the weights are written");
        Self { directory }
    }

    /// The model's directory.
    pub fn path(&self) -> PathBuf {
        self.directory.path().to_owned()
    }
}

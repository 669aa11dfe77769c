//! Parts of an mLoRA configuration in other files: the prompt template, the number of rows.

use std::{fs::File, io::BufReader, path::Path};

use serde::de::IgnoredAny;

use super::whitespace;
use crate::{
    ConfigError,
    paths::{expand, mlora_path},
    place::Source,
    tree::{Node, read_file},
};

/// The `template` of a prompt file, by Jinja's own rules of white space.
///
/// # Errors
/// The file cannot be read, is not well formed, or has another shape.
pub(super) fn template(prompt: &str, config: &Path) -> Result<String, ConfigError> {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields, expecting = "a mapping with `template`")]
    struct Prompt {
        template: String,
    }
    let written = expand(prompt).unwrap_or_else(|_| prompt.to_owned());
    let path = mlora_path(written.as_ref(), config);
    let source = Source {
        path: &path,
        overrides: &[],
    };
    let tree: Node = read_file(&source)?;
    let prompt: Prompt = tree.deserialize(&source, "")?;
    Ok(whitespace::trimmed(&prompt.template))
}

/// True if a directory has an adapter as PEFT writes it.
pub(super) fn is_adapter(directory: &str, config: &Path) -> bool {
    let Ok(directory) = expand(directory) else {
        return false;
    };
    let weights = Path::new(&directory).join("adapter_model.safetensors");
    mlora_path(&weights, config).exists()
}

/// Number of rows of a JSON list; `None` if it cannot be read, which is reported when the data is read.
pub(super) fn count(data: &str, config: &Path) -> Option<usize> {
    let file = File::open(mlora_path(expand(data).ok()?.as_ref(), config)).ok()?;
    let rows: Vec<IgnoredAny> = serde_json::from_reader(BufReader::new(file)).ok()?;
    Some(rows.len())
}

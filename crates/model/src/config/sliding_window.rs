use super::{architecture::Architecture, raw::RawConfig};
use crate::error::{ModelError, invalid, unsupported};

/// transformers' default if the key is absent.
const DEFAULT_WINDOW: usize = 4096;
const DEFAULT_MAX_WINDOW_LAYERS: usize = 28;

/// The window of each layer, `None` for full attention.
pub(super) fn resolve(
    raw: &RawConfig,
    architecture: Architecture,
    num_hidden_layers: usize,
) -> Result<Vec<Option<usize>>, ModelError> {
    let used = match architecture {
        // Llama's attention has no window, even if the file sets one.
        Architecture::Llama => false,
        Architecture::Mistral => true,
        Architecture::Qwen2 | Architecture::Qwen3 => raw.use_sliding_window.unwrap_or(false),
    };
    let window = raw.sliding_window.unwrap_or(Some(DEFAULT_WINDOW));
    let window = window.filter(|_| used);
    if window == Some(0) {
        return Err(invalid("sliding_window", "is 0"));
    }
    match architecture {
        Architecture::Llama => Ok(vec![None; num_hidden_layers]),
        Architecture::Mistral => {
            // transformers ignores the list here, so a model that alternates would be computed wrongly without an
            // error.
            let kind = if window.is_some() {
                "sliding_attention"
            } else {
                "full_attention"
            };
            let mut types = raw.layer_types.iter().flatten();
            if let Some(other) = types.find(|other| *other != kind) {
                return Err(unsupported_layer_type(other));
            }
            Ok(vec![window; num_hidden_layers])
        }
        Architecture::Qwen2 | Architecture::Qwen3 => {
            if let Some(types) = &raw.layer_types {
                return listed(types, window, num_hidden_layers);
            }
            let first = raw.max_window_layers.unwrap_or(DEFAULT_MAX_WINDOW_LAYERS);
            Ok((0..num_hidden_layers)
                .map(|i| window.filter(|_| i >= first))
                .collect())
        }
    }
}

fn listed(
    types: &[String],
    window: Option<usize>,
    num_hidden_layers: usize,
) -> Result<Vec<Option<usize>>, ModelError> {
    if types.len() != num_hidden_layers {
        return Err(invalid(
            "layer_types",
            format!("has {} entries for {num_hidden_layers} layers", types.len()),
        ));
    }
    let one = |(layer, kind): (usize, &String)| match (kind.as_str(), window) {
        ("full_attention", _) => Ok(None),
        ("sliding_attention", Some(window)) => Ok(Some(window)),
        ("sliding_attention", None) => Err(invalid(
            "layer_types",
            format!("makes layer {layer} `sliding_attention`, but no `sliding_window` is in use"),
        )),
        (other, _) => Err(unsupported_layer_type(other)),
    };
    types.iter().enumerate().map(one).collect()
}

fn unsupported_layer_type(name: &str) -> ModelError {
    unsupported("layer_types", format!("`{name}`"))
}

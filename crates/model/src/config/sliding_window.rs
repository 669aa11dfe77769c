use super::{family::Windows, llama::LayerRotation, raw::RawConfig};
use crate::error::{ModelError, invalid, unsupported};

/// transformers' default if the key is absent.
const DEFAULT_WINDOW: usize = 4096;
const DEFAULT_MAX_WINDOW_LAYERS: usize = 28;

/// The window of each layer, `None` for full attention. `rotations` has an entry for every layer.
pub(super) fn resolve(
    raw: &RawConfig,
    windows: &Windows,
    rotations: &[LayerRotation],
) -> Result<Vec<Option<usize>>, ModelError> {
    let num_hidden_layers = rotations.len();
    let default = match windows {
        Windows::Unrotated => None,
        Windows::Every(default) => *default,
        _ => Some(DEFAULT_WINDOW),
    };
    let used = match windows {
        Windows::Never => false,
        Windows::Every(_) | Windows::Alternating | Windows::Pattern => true,
        Windows::Upper | Windows::Unrotated => raw.use_sliding_window.unwrap_or(false),
    };
    let window = raw.sliding_window.unwrap_or(default);
    let window = window.filter(|_| used);
    if window == Some(0) {
        return Err(invalid("sliding_window", "is 0"));
    }
    match windows {
        Windows::Never => Ok(vec![None; num_hidden_layers]),
        Windows::Every(_) => {
            // transformers ignores the list here; a model that alternates would silently be wrong.
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
        Windows::Upper | Windows::Unrotated | Windows::Alternating | Windows::Pattern => {
            if let Some(types) = &raw.layer_types {
                return listed(types, window, num_hidden_layers);
            }
            let first = raw.max_window_layers.unwrap_or(DEFAULT_MAX_WINDOW_LAYERS);
            let period = raw.sliding_window_pattern.unwrap_or(6);
            if period == 0 {
                return Err(invalid("sliding_window_pattern", "is 0"));
            }
            let has_window = |layer: usize| match windows {
                Windows::Unrotated => rotations[layer] == LayerRotation::None,
                Windows::Alternating => layer.is_multiple_of(2),
                Windows::Pattern => !(layer + 1).is_multiple_of(period),
                _ => layer >= first,
            };
            let layers = 0..num_hidden_layers;
            Ok(layers
                .map(|layer| window.filter(|_| has_window(layer)))
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

//! `adapter_config.json` as written.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, MapAccess, SeqAccess, Visitor, value},
};
use serde_json::{Map, Value};

use super::config::TargetModules;
use crate::{error::ModelError, json};

/// Options with which an adapter is neither LoRA nor DoRA on linear layers of a plain base. Other keys are tolerated,
/// since every PEFT version adds some.
const REFUSED: [&str; 13] = [
    "modules_to_save",
    "fan_in_fan_out",
    "lora_bias",
    "layer_replication",
    "target_parameters",
    "trainable_token_indices",
    "alora_invocation_tokens",
    "use_qalora",
    "use_bdlora",
    "velora_config",
    "monteclora_config",
    "arrow_config",
    "kasa_config",
];

/// Initialisations that leave the base unchanged; the others (`PiSSA`, `OLoRA`, `CorDA`, `LoftQ`, …) change its
/// weights too.
const INITIALISATIONS: [&str; 3] = ["gaussian", "eva", "orthogonal"];

/// The keys that are used, with PEFT's types.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RawPeftConfig {
    pub(super) base_model_name_or_path: Option<String>,
    pub(super) r: Option<usize>,
    pub(super) lora_alpha: Option<f64>,
    pub(super) lora_dropout: Option<f64>,
    pub(super) use_rslora: Option<bool>,
    pub(super) use_dora: Option<bool>,
    pub(super) init_lora_weights: Option<Value>,
    pub(super) target_modules: Option<TargetModules>,
    pub(super) exclude_modules: Option<TargetModules>,
    pub(super) layers_to_transform: Option<OneOrMany<usize>>,
    pub(super) layers_pattern: Option<OneOrMany<String>>,
    pub(super) rank_pattern: Option<Ordered<usize>>,
    pub(super) alpha_pattern: Option<Ordered<f64>>,
}

impl RawPeftConfig {
    /// Parses the file and refuses options that would be computed wrongly.
    pub(super) fn parse(text: &str) -> Result<Self, ModelError> {
        let keys: Map<String, Value> = serde_json::from_str(text).map_err(ModelError::Json)?;
        refuse_unsupported(&keys)?;
        json::read(text)
    }
}

fn refuse_unsupported(keys: &Map<String, Value>) -> Result<(), ModelError> {
    let refuse = |option: &str, value: &Value| {
        Err(ModelError::UnsupportedAdapter {
            option: option.to_owned(),
            value: value.to_string(),
        })
    };
    match keys.get("peft_type") {
        None => return Err(ModelError::MissingKey("peft_type")),
        Some(Value::String(name)) if name == "LORA" => {}
        Some(other) => return refuse("peft_type", other),
    }
    for (key, only) in [("task_type", "CAUSAL_LM"), ("bias", "none")] {
        match keys.get(key) {
            None | Some(Value::Null) => {}
            Some(Value::String(name)) if name == only => {}
            Some(other) => return refuse(key, other),
        }
    }
    match keys.get("init_lora_weights") {
        None | Some(Value::Null | Value::Bool(_)) => {}
        Some(Value::String(name)) if INITIALISATIONS.contains(&name.as_str()) => {}
        Some(other) => return refuse("init_lora_weights", other),
    }
    for key in REFUSED {
        if let Some(value) = keys.get(key).filter(|value| is_set(value)) {
            return refuse(key, value);
        }
    }
    Ok(())
}

/// True if the value is truthy in Python.
fn is_set(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(set) => *set,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(entries) => !entries.is_empty(),
    }
}

impl<'de> Deserialize<'de> for TargetModules {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ModulesVisitor;

        impl<'de> Visitor<'de> for ModulesVisitor {
            type Value = TargetModules;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of module names or a regular expression")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<TargetModules, E> {
                Ok(if text.eq_ignore_ascii_case("all-linear") {
                    TargetModules::AllLinear
                } else {
                    TargetModules::Pattern(text.to_owned())
                })
            }

            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<TargetModules, A::Error> {
                Vec::deserialize(value::SeqAccessDeserializer::new(seq)).map(TargetModules::Names)
            }
        }

        deserializer.deserialize_any(ModulesVisitor)
    }
}

/// One value or a list of them.
#[derive(Debug)]
pub(super) struct OneOrMany<T>(pub(super) Vec<T>);

impl<'de, T: DeserializeOwned> Deserialize<'de> for OneOrMany<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let items = match Value::deserialize(deserializer)? {
            Value::Array(items) => items,
            one => vec![one],
        };
        let items: Result<_, _> = items.into_iter().map(serde_json::from_value).collect();
        items.map(Self).map_err(serde::de::Error::custom)
    }
}

/// A map in the order of the file: PEFT takes the first pattern that matches.
#[derive(Debug)]
pub(super) struct Ordered<T>(pub(super) Vec<(String, T)>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Ordered<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OrderedVisitor<T>(std::marker::PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for OrderedVisitor<T> {
            type Value = Ordered<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map from module patterns to numbers")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Ordered<T>, A::Error> {
                let mut entries: Vec<(String, T)> = Vec::new();
                while let Some((key, value)) = map.next_entry()? {
                    // As in Python, a repeated key keeps its first place and its last value.
                    match entries.iter_mut().find(|(known, _)| *known == key) {
                        Some((_, known)) => *known = value,
                        None => entries.push((key, value)),
                    }
                }
                Ok(Ordered(entries))
            }
        }

        deserializer.deserialize_map(OrderedVisitor(std::marker::PhantomData))
    }
}

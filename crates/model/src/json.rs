//! JSON objects whose errors name the key.

use serde::de::DeserializeOwned;
use serde_json::{Error, Map, Value};

use crate::error::{ModelError, invalid};

/// Most characters of a value in a message.
const LONGEST: usize = 60;
/// Rust's types as serde names them, in words.
const TYPES: [(&str, &str); 9] = [
    ("usize", "a whole number from 0"),
    ("u32", "a whole number below 4294967296"),
    ("u8", "0 or 1"),
    ("f64", "a number"),
    ("a boolean", "true or false"),
    ("a string", "a text"),
    ("a sequence", "a list"),
    ("a map", "a mapping"),
    ("struct RawRope", "a mapping"),
];

/// Reads an object all of whose keys may be absent.
///
/// # Errors
/// Names the key whose value has the wrong type.
pub(crate) fn read<T: DeserializeOwned>(text: &str) -> Result<T, ModelError> {
    serde_json::from_str(text).map_err(|error| {
        let whole = serde_json::from_str(text).unwrap_or_default();
        let wrong = wrong_key("", &whole, &|value| {
            serde_json::from_value::<T>(value).err()
        });
        wrong.unwrap_or(ModelError::Json(error))
    })
}

/// The error of the first key inside `whole` that fails alone; `test` reads a value in the place of `whole`.
fn wrong_key(
    parent: &str,
    whole: &Value,
    test: &dyn Fn(Value) -> Option<Error>,
) -> Option<ModelError> {
    whole.as_object()?.iter().find_map(|(key, value)| {
        let alone = |value: Value| test(Value::Object(Map::from_iter([(key.clone(), value)])));
        let error = alone(value.clone())?.to_string();
        let path = format!("{parent}{key}");
        let inner = wrong_key(&format!("{path}."), value, &alone);
        Some(inner.unwrap_or_else(|| {
            let found = shortened(value);
            let problem = match error.rsplit_once("expected ") {
                None => format!("is {found}: {error}"),
                Some((_, expected)) => {
                    let known = TYPES.iter().find(|(name, _)| *name == expected);
                    let expected = known.map_or(expected, |(_, words)| words);
                    format!("is {found}, expected {expected}")
                }
            };
            invalid(&path, problem)
        }))
    })
}

fn shortened(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

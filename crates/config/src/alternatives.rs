//! Values that may be written in two forms: a list or its single item, a number or a text.

use std::{fmt, path::Path};

use schemars::JsonSchema;
use serde::de::{
    Deserialize, Deserializer, Error, SeqAccess, Visitor, value::SeqAccessDeserializer,
};

use crate::{ParseError, Validation};

/// One string or a list of them.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema)]
#[schemars(untagged)]
pub(crate) enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl OneOrMany {
    /// The items, in order.
    pub(crate) fn items(&self) -> &[String] {
        match self {
            Self::One(item) => std::slice::from_ref(item),
            Self::Many(items) => items,
        }
    }
}

impl<'de> Deserialize<'de> for OneOrMany {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OneOrManyVisitor)
    }
}

struct OneOrManyVisitor;

impl<'de> Visitor<'de> for OneOrManyVisitor {
    type Value = OneOrMany;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string or a list of strings")
    }

    fn visit_str<E: Error>(self, item: &str) -> Result<OneOrMany, E> {
        Ok(OneOrMany::One(item.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, access: A) -> Result<OneOrMany, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(access)).map(OneOrMany::Many)
    }
}

/// Reads a number or a text.
pub(crate) struct NumberOrText<T> {
    /// Names of both, for messages.
    pub(crate) expecting: &'static str,
    pub(crate) number: fn(f64) -> T,
    pub(crate) text: fn(&str) -> Result<T, ParseError>,
}

impl<T> Visitor<'_> for NumberOrText<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expecting)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<T, E> {
        Ok((self.number)(value as f64))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<T, E> {
        Ok((self.number)(value as f64))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<T, E> {
        Ok((self.number)(value))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        (self.text)(text).map_err(E::custom)
    }
}

impl<'de> Deserialize<'de> for Validation {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NumberOrText {
            expecting: "a fraction of the rows such as 0.02, or the path of a file",
            number: Self::Fraction,
            text: |path| {
                let path = Path::new(path);
                match path.file_name().and_then(|name| name.to_str()) {
                    Some(name) if is_number(name) => Err(ParseError(format!(
                        "`{name}` is not a file; write a fraction as a number without quotes, 0.1 for \
                         10 %"
                    ))),
                    _ => Ok(Self::File(path.to_owned())),
                }
            },
        })
    }
}

/// True for a number or a percentage, which no data file has as its name: a file needs an extension.
fn is_number(text: &str) -> bool {
    let text = text.trim_end_matches([' ', '%']).replace(',', ".");
    text.trim().parse::<f64>().is_ok()
}

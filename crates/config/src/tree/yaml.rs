//! Builds the tree from YAML, which includes JSON.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Spanned, Tagged};

use super::{Key, Node, Value};
use crate::place::Location;

/// Tags that do not change a value's type, or mark it as text (`!`).
const TAGS: [&str; 7] = [
    "!",
    "tag:yaml.org,2002:str",
    "tag:yaml.org,2002:bool",
    "tag:yaml.org,2002:int",
    "tag:yaml.org,2002:float",
    "tag:yaml.org,2002:seq",
    "tag:yaml.org,2002:map",
];

/// A value without its tag.
fn untagged<T, E: Error>(Tagged(value, tag): Tagged<T>) -> Result<T, E> {
    match tag {
        Some(tag) if !TAGS.contains(&tag.as_str()) => {
            let written = tag.replace("tag:yaml.org,2002:", "!!");
            Err(E::custom(format_args!(
                "the tag `{written}` is not supported; text that begins with `!` needs quotes"
            )))
        }
        _ => Ok(value),
    }
}

fn location<T>(spanned: &Spanned<T>) -> Location {
    Location::At(spanned.defined.line(), spanned.defined.column())
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Tagged<Value>>::deserialize(deserializer)?;
        Ok(Self {
            location: location(&spanned),
            value: untagged(spanned.value)?,
        })
    }
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Tagged<String>>::deserialize(deserializer)?;
        Ok(Self {
            location: location(&spanned),
            name: untagged(spanned.value)?,
        })
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Integer(value.into()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Integer(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Float(value))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(Value::Sequence(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = access.next_entry()? {
            entries.push(entry);
        }
        Ok(Value::Mapping(entries))
    }
}

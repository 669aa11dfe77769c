//! JSON values in which no key is there twice: of two values a row would lose one.

use std::fmt;

use minijinja::Value;
use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
};

/// A value whose objects have each key once.
pub(super) struct Json(pub(super) Value);

struct JsonVisitor;

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonVisitor).map(Self)
    }
}

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::from(()))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(Json(value)) = list.next_element()? {
            values.push(value);
        }
        Ok(Value::from(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Value, A::Error> {
        let mut fields: Vec<(String, Value)> = Vec::new();
        while let Some((key, Json(value))) = object.next_entry()? {
            fields.push((key, value));
        }
        let value = Value::from_pairs(fields.iter().map(|(key, value)| (&**key, value.clone())));
        if value.len() != Some(fields.len()) {
            let mut keys: Vec<_> = fields.iter().map(|(key, _)| key).collect();
            keys.sort_unstable();
            let twice = keys.windows(2).find(|pair| pair[0] == pair[1]);
            let key = twice.map(|pair| pair[0].as_str()).unwrap_or_default();
            return Err(A::Error::custom(format!(
                "the object that ends here has the key `{key}` twice"
            )));
        }
        Ok(value)
    }
}

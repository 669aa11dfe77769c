use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, SeqAccess, Visitor},
};

/// A field that has no effect here: any value, of which it is kept whether the value asks for something. `false`, 0
/// and what is empty do not.
#[derive(Debug)]
pub(crate) struct Unsupported {
    pub(crate) is_set: bool,
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = bool;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("any value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<bool, E> {
        Ok(value)
    }

    fn visit_i64<E>(self, value: i64) -> Result<bool, E> {
        Ok(value != 0)
    }

    fn visit_u64<E>(self, value: u64) -> Result<bool, E> {
        Ok(value != 0)
    }

    fn visit_f64<E>(self, value: f64) -> Result<bool, E> {
        Ok(value != 0.0)
    }

    fn visit_str<E>(self, value: &str) -> Result<bool, E> {
        Ok(!value.is_empty())
    }

    fn visit_unit<E>(self) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<bool, A::Error> {
        let mut is_set = false;
        while list.next_element::<IgnoredAny>()?.is_some() {
            is_set = true;
        }
        Ok(is_set)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<bool, A::Error> {
        let mut is_set = false;
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
            is_set = true;
        }
        Ok(is_set)
    }
}

impl<'de> Deserialize<'de> for Unsupported {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let is_set = deserializer.deserialize_any(AnyValue)?;
        Ok(Self { is_set })
    }
}

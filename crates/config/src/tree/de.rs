//! Serde's view of a tree. One deserializer for all formats and for overrides, so that every
//! mistake is reported in the same words, with the key's path and place.

use serde::{
    Deserializer,
    de::{DeserializeSeed, Error, IntoDeserializer, MapAccess, SeqAccess, Unexpected, Visitor},
    forward_to_deserialize_any,
};

use super::{
    Key, Node, Value,
    de_error::{DeError, Step},
};

impl<'de> Deserializer<'de> for &'de Node {
    type Error = DeError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeError> {
        match &self.value {
            Value::Null | Value::Unset => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::Integer(value) => match (u64::try_from(*value), i64::try_from(*value)) {
                (Ok(value), _) => visitor.visit_u64(value),
                (_, Ok(value)) => visitor.visit_i64(value),
                _ => Err(DeError::custom(format_args!(
                    "`{value}` needs more than 64 bits"
                ))),
            },
            Value::Float(value) => visitor.visit_f64(*value),
            Value::String(text) => visitor.visit_borrowed_str(text),
            Value::Sequence(items) => visitor.visit_seq(Items {
                items: items.iter().enumerate(),
            }),
            Value::Mapping(entries) => visitor.visit_map(Entries {
                entries: entries.iter(),
                value: None,
            }),
        }
        .map_err(|error| error.at(self.location))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeError> {
        if matches!(self.value, Value::Null) {
            visitor.visit_none()
        } else {
            visitor.visit_some(self)
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DeError> {
        match self.text() {
            Some(text) => visitor.visit_enum(IntoDeserializer::<DeError>::into_deserializer(text)),
            None => Err(DeError::custom(format_args!(
                "expected a word, found {}",
                self.describe()
            ))),
        }
        .map_err(|error| error.at(self.location))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        keys: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DeError> {
        if let Value::Mapping(entries) = &self.value {
            let unset = |(_, node): &&(Key, Node)| matches!(node.value, Value::Unset);
            let is_unknown = |(key, _): &&(Key, Node)| !keys.contains(&key.name.as_str());
            if let Some((key, _)) = entries.iter().filter(unset).find(is_unknown) {
                return Err(DeError::unknown_field(&key.name, keys).at(key.location));
            }
        }
        // Otherwise serde would fill the fields by position.
        if matches!(self.value, Value::Sequence(_)) {
            let error = DeError::invalid_type(Unexpected::Seq, &visitor);
            return Err(error.at(self.location));
        }
        self.deserialize_any(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, DeError> {
        visitor.visit_newtype_struct(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf
        unit unit_struct seq tuple tuple_struct map identifier ignored_any
    }
}

struct Items<'de> {
    items: std::iter::Enumerate<std::slice::Iter<'de, Node>>,
}

impl<'de> SeqAccess<'de> for Items<'de> {
    type Error = DeError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, DeError> {
        let Some((index, item)) = self.items.next() else {
            return Ok(None);
        };
        seed.deserialize(item)
            .map(Some)
            .map_err(|error| error.at(item.location).below(Step::Index(index)))
    }
}

struct Entries<'de> {
    entries: std::slice::Iter<'de, (Key, Node)>,
    value: Option<&'de (Key, Node)>,
}

impl<'de> MapAccess<'de> for Entries<'de> {
    type Error = DeError;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, DeError> {
        let entries = self.entries.by_ref();
        self.value = entries.find(|(_, node)| !matches!(node.value, Value::Unset));
        let Some((key, _)) = self.value else {
            return Ok(None);
        };
        seed.deserialize(IntoDeserializer::<DeError>::into_deserializer(
            key.name.as_str(),
        ))
        .map(Some)
        .map_err(|error| error.at(key.location))
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, DeError> {
        let Some((key, node)) = self.value.take() else {
            return Err(DeError::custom("a value was read before its key"));
        };
        seed.deserialize(node)
            .map_err(|error| error.at(node.location).below(Step::Key(key.name.clone())))
    }
}

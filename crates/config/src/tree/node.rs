//! A value of any format, with its place.

use super::words::quoted;
use crate::{ConfigError, place::Location, place::Source};

/// A value and its place.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) value: Value,
    pub(crate) location: Location,
}

/// A key of a mapping and its place.
#[derive(Debug, Clone)]
pub(crate) struct Key {
    pub(crate) name: String,
    pub(crate) location: Location,
}

/// A value of YAML, TOML or JSON.
#[derive(Debug, Clone)]
pub(crate) enum Value {
    Null,
    /// The value of a key that is as if it were not there, but must be a known one.
    Unset,
    Bool(bool),
    Integer(i128),
    Float(f64),
    String(String),
    Sequence(Vec<Node>),
    Mapping(Vec<(Key, Node)>),
}

impl Node {
    /// A node without a place.
    pub(crate) fn new(value: Value) -> Self {
        Self {
            value,
            location: Location::Unknown,
        }
    }

    /// A string without a place.
    pub(crate) fn string(text: impl Into<String>) -> Self {
        Self::new(Value::String(text.into()))
    }

    /// A mapping of these values and their places, without a place of its own.
    pub(crate) fn mapping(entries: impl IntoIterator<Item = (&'static str, Self)>) -> Self {
        let mut mapping = Self::new(Value::Mapping(Vec::new()));
        for (name, node) in entries {
            mapping.set(name, node);
        }
        mapping
    }

    /// The same value at another place.
    pub(crate) fn at(mut self, location: Location) -> Self {
        self.location = location;
        self
    }

    /// Gives this node and all below it one location.
    pub(crate) fn relocate(&mut self, location: Location) {
        self.location = location;
        match &mut self.value {
            Value::Sequence(items) => items.iter_mut().for_each(|item| item.relocate(location)),
            Value::Mapping(entries) => {
                for (key, node) in entries {
                    key.location = location;
                    node.relocate(location);
                }
            }
            _ => {}
        }
    }

    /// The value under a key, if this is a mapping that has it.
    pub(crate) fn get(&self, name: &str) -> Option<&Self> {
        let Value::Mapping(entries) = &self.value else {
            return None;
        };
        entries
            .iter()
            .find(|(key, _)| key.name == name)
            .map(|(_, node)| node)
    }

    /// Mutable [`Node::get`].
    pub(crate) fn get_mut(&mut self, name: &str) -> Option<&mut Self> {
        let Value::Mapping(entries) = &mut self.value else {
            return None;
        };
        entries
            .iter_mut()
            .find(|(key, _)| key.name == name)
            .map(|(_, node)| node)
    }

    /// The value at a path of keys; `lora.r` is `r` in `lora`.
    pub(crate) fn find(&self, path: &str) -> Option<&Self> {
        path.split('.').try_fold(self, Self::get)
    }

    /// The place of the value at a path of keys, or of this node if there is none.
    pub(crate) fn locate(&self, path: &str) -> Location {
        self.find(path).unwrap_or(self).location
    }

    /// The items of the list under a key; nothing if there is none.
    pub(crate) fn list(&self, name: &str) -> &[Self] {
        self.get(name).map(Self::items).unwrap_or_default()
    }

    /// Sets a key of a mapping, replacing its value. A `null` becomes a mapping first; any other
    /// value is left alone and `false` returned.
    pub(crate) fn set(&mut self, name: &str, node: Self) -> bool {
        if matches!(self.value, Value::Null) {
            self.value = Value::Mapping(Vec::new());
        }
        let Value::Mapping(entries) = &mut self.value else {
            return false;
        };
        let key = Key {
            name: name.to_owned(),
            location: node.location,
        };
        match entries.iter_mut().find(|(key, _)| key.name == name) {
            Some(entry) => *entry = (key, node),
            None => entries.push((key, node)),
        }
        true
    }

    /// The items of a sequence; nothing for any other value.
    pub(crate) fn items(&self) -> &[Self] {
        if let Value::Sequence(items) = &self.value {
            items
        } else {
            &[]
        }
    }

    /// Mutable [`Node::items`].
    pub(crate) fn items_mut(&mut self) -> &mut [Self] {
        if let Value::Sequence(items) = &mut self.value {
            items
        } else {
            &mut []
        }
    }

    /// The text of a string; nothing for any other value.
    pub(crate) fn text(&self) -> Option<&str> {
        if let Value::String(text) = &self.value {
            Some(text)
        } else {
            None
        }
    }

    /// The value in words, for messages.
    pub(crate) fn describe(&self) -> String {
        match &self.value {
            Value::Null | Value::Unset => "nothing".to_owned(),
            Value::Bool(value) => format!("`{value}`"),
            Value::Integer(value) => format!("`{value}`"),
            Value::Float(value) => format!("`{value:?}`"),
            Value::String(text) => quoted(text),
            Value::Sequence(items) if items.is_empty() => "an empty list".to_owned(),
            Value::Sequence(_) => "a list".to_owned(),
            Value::Mapping(_) => "a mapping".to_owned(),
        }
    }

    /// Deserializes the tree.
    ///
    /// # Errors
    /// The first mistake, with the path of its key and its place.
    pub(crate) fn deserialize<T: serde::de::DeserializeOwned>(
        &self,
        source: &Source<'_>,
        parent: &str,
    ) -> Result<T, ConfigError> {
        T::deserialize(self).map_err(|error| error.at(self.location).into_config(source, parent))
    }
}

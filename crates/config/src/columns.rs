//! Reads a column map: the columns of exactly one format.

use std::{collections::BTreeMap, fmt};

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

use crate::ColumnMap;

/// Roles of a column in a format.
const ROLES: &[&str] = &[
    "messages",
    "conversations",
    "prompt",
    "completion",
    "instruction",
    "input",
    "output",
    "text",
];

const FORMATS: &str = "{messages}, {conversations}, {prompt, completion}, \
                       {instruction, input, output} (input may be absent) or {text}";

impl<'de> Deserialize<'de> for ColumnMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ColumnsVisitor)
    }
}

struct ColumnsVisitor;

impl<'de> Visitor<'de> for ColumnsVisitor {
    type Value = ColumnMap;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a mapping with the columns of one format: {FORMATS}")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<ColumnMap, A::Error> {
        let mut columns = BTreeMap::new();
        while let Some(Role(role)) = access.next_key()? {
            if let Some(column) = access.next_value::<Option<String>>()? {
                columns.insert(role, column);
            }
        }
        let roles: Vec<&str> = columns.keys().copied().collect();
        let mut column = |role| columns.remove(role).unwrap_or_default();
        match roles.as_slice() {
            ["messages"] => Ok(ColumnMap::Messages {
                messages: column("messages"),
            }),
            ["conversations"] => Ok(ColumnMap::Conversations {
                conversations: column("conversations"),
            }),
            ["completion", "prompt"] => Ok(ColumnMap::PromptCompletion {
                prompt: column("prompt"),
                completion: column("completion"),
            }),
            ["instruction", "output"] => Ok(ColumnMap::Instruction {
                instruction: column("instruction"),
                input: None,
                output: column("output"),
            }),
            ["input", "instruction", "output"] => Ok(ColumnMap::Instruction {
                instruction: column("instruction"),
                input: Some(column("input")),
                output: column("output"),
            }),
            ["text"] => Ok(ColumnMap::Text {
                text: column("text"),
            }),
            other => Err(A::Error::custom(format_args!(
                "expected the columns of one format: {FORMATS}; found {{{}}}",
                other.join(", ")
            ))),
        }
    }
}

/// One of [`ROLES`].
struct Role(&'static str);

impl<'de> Deserialize<'de> for Role {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        ROLES
            .iter()
            .find(|role| **role == name)
            .map(|role| Self(role))
            .ok_or_else(|| D::Error::unknown_field(&name, ROLES))
    }
}

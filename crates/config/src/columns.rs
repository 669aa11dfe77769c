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
    "chosen",
    "rejected",
    "label",
];

const FORMATS: &str = "{messages}, {conversations}, {prompt, completion}, {instruction, input, output} (input may be \
                       absent), {text}, {prompt, chosen, rejected} (prompt may be absent), {instruction, input, \
                       chosen, rejected}, {prompt, completion, label}, {instruction, input, output, label} or \
                       {messages, label}";

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
        let found = roles.join(", ");
        // Of formats with an instruction.
        let input = columns.remove("input");
        let roles: Vec<&str> = columns.keys().copied().collect();
        let mut column = |role| columns.remove(role).unwrap_or_default();
        match (roles.as_slice(), input) {
            (["instruction", "output"], input) => Ok(ColumnMap::Instruction {
                instruction: column("instruction"),
                input,
                output: column("output"),
            }),
            (["chosen", "instruction", "rejected"], input) => Ok(ColumnMap::InstructionPairs {
                instruction: column("instruction"),
                input,
                chosen: column("chosen"),
                rejected: column("rejected"),
            }),
            (["instruction", "label", "output"], input) => Ok(ColumnMap::RatedInstruction {
                instruction: column("instruction"),
                input,
                output: column("output"),
                label: column("label"),
            }),
            (["messages"], None) => Ok(ColumnMap::Messages {
                messages: column("messages"),
            }),
            (["conversations"], None) => Ok(ColumnMap::Conversations {
                conversations: column("conversations"),
            }),
            (["completion", "prompt"], None) => Ok(ColumnMap::PromptCompletion {
                prompt: column("prompt"),
                completion: column("completion"),
            }),
            (["text"], None) => Ok(ColumnMap::Text {
                text: column("text"),
            }),
            (["chosen", "prompt", "rejected"] | ["chosen", "rejected"], None) => {
                Ok(ColumnMap::Pairs {
                    prompt: columns.remove("prompt"),
                    chosen: columns.remove("chosen").unwrap_or_default(),
                    rejected: columns.remove("rejected").unwrap_or_default(),
                })
            }
            (["completion", "label", "prompt"], None) => Ok(ColumnMap::Rated {
                prompt: column("prompt"),
                completion: column("completion"),
                label: column("label"),
            }),
            (["label", "messages"], None) => Ok(ColumnMap::RatedMessages {
                messages: column("messages"),
                label: column("label"),
            }),
            _ => Err(A::Error::custom(format_args!(
                "expected the columns of one format: {FORMATS}; found {{{found}}}"
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

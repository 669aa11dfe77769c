use std::{borrow::Cow, fmt};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Serialize, Serializer,
    de::{Deserialize, Deserializer, Error, SeqAccess, Visitor},
};

/// The words for balancing by cost.
const AUTO: &str = "auto";
const STAGGERED: &str = "staggered";

/// How many decoder layers each stage holds: `auto`, `staggered`, or a list in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BalanceChoice {
    /// So that the slowest stage is as fast as it can be.
    Auto,
    /// So that the stages are as even as they can be over a round of groups of adapters: groups have
    /// their layers on different stages, and stages hold some layers twice.
    Staggered,
    /// So many on each stage.
    Layers(Vec<usize>),
}

impl Serialize for BalanceChoice {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str(AUTO),
            Self::Staggered => serializer.serialize_str(STAGGERED),
            Self::Layers(layers) => layers.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for BalanceChoice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(BalanceVisitor)
    }
}

struct BalanceVisitor;

impl<'de> Visitor<'de> for BalanceVisitor {
    type Value = BalanceChoice;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`auto`, `staggered` or a list of layers, one number a stage, such as [11, 11]")
    }

    fn visit_str<E: Error>(self, word: &str) -> Result<BalanceChoice, E> {
        match word {
            AUTO => Ok(BalanceChoice::Auto),
            STAGGERED => Ok(BalanceChoice::Staggered),
            _ => Err(E::unknown_variant(word, &[AUTO, STAGGERED])),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<BalanceChoice, A::Error> {
        let mut layers = Vec::new();
        while let Some(count) = access.next_element()? {
            layers.push(count);
        }
        Ok(BalanceChoice::Layers(layers))
    }
}

impl JsonSchema for BalanceChoice {
    fn schema_name() -> Cow<'static, str> {
        "BalanceChoice".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [
                {"enum": [AUTO, STAGGERED]},
                {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 1},
            ]
        })
    }
}

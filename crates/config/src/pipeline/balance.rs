use std::{borrow::Cow, fmt};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Serialize, Serializer,
    de::{
        Deserialize, Deserializer, Error, IntoDeserializer, SeqAccess, Visitor,
        value::SeqAccessDeserializer,
    },
};

const AUTO: &str = "auto";
const STAGGERED: &str = "staggered";

/// Decoder layers of each stage; in a file `auto`, `staggered`, a list or a list of lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BalanceChoice {
    /// The slowest stage is as fast as possible.
    Auto,
    /// The stages are as even as possible over a round of adapter groups: groups have their layers on
    /// different stages, and two stages hold some layers.
    Staggered,
    /// The number of layers on each stage.
    Layers(Vec<usize>),
    /// The number of layers on each stage, by partition: groups take the partitions in turn. Fixes the
    /// choice of [`Staggered`](Self::Staggered) for later runs.
    Partitions(Vec<Vec<usize>>),
}

impl Serialize for BalanceChoice {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str(AUTO),
            Self::Staggered => serializer.serialize_str(STAGGERED),
            Self::Layers(layers) => layers.serialize(serializer),
            Self::Partitions(partitions) => partitions.serialize(serializer),
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
        f.write_str(
            "`auto`, `staggered`, a list of layers, one number per stage, such as [11, 11], or a list \
             of such lists, which groups take in turn",
        )
    }

    fn visit_str<E: Error>(self, word: &str) -> Result<BalanceChoice, E> {
        match word {
            AUTO => Ok(BalanceChoice::Auto),
            STAGGERED => Ok(BalanceChoice::Staggered),
            _ => Err(E::unknown_variant(word, &[AUTO, STAGGERED])),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<BalanceChoice, A::Error> {
        let (mut layers, mut partitions) = (Vec::new(), Vec::new());
        while let Some(entry) = access.next_element()? {
            match entry {
                Entry::Layers(count) => layers.push(count),
                Entry::Partition(counts) => partitions.push(counts),
            }
        }
        match (layers.is_empty(), partitions.is_empty()) {
            (_, true) => Ok(BalanceChoice::Layers(layers)),
            (true, false) => Ok(BalanceChoice::Partitions(partitions)),
            (false, false) => Err(A::Error::custom(
                "numbers and lists are mixed: expected one number per stage, or a list of such lists",
            )),
        }
    }
}

/// An entry of the list.
enum Entry {
    /// Layers of a stage.
    Layers(usize),
    /// Layers of every stage, for some groups.
    Partition(Vec<usize>),
}

impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(EntryVisitor)
    }
}

struct EntryVisitor;

impl<'de> Visitor<'de> for EntryVisitor {
    type Value = Entry;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number of layers, or a list with one per stage")
    }

    fn visit_u64<E: Error>(self, count: u64) -> Result<Entry, E> {
        usize::deserialize(count.into_deserializer()).map(Entry::Layers)
    }

    fn visit_i64<E: Error>(self, count: i64) -> Result<Entry, E> {
        usize::deserialize(count.into_deserializer()).map(Entry::Layers)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, access: A) -> Result<Entry, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(access)).map(Entry::Partition)
    }
}

impl JsonSchema for BalanceChoice {
    fn schema_name() -> Cow<'static, str> {
        "BalanceChoice".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let layers = json_schema!({"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 1});
        json_schema!({
            "anyOf": [
                {"enum": [AUTO, STAGGERED]},
                layers,
                {"type": "array", "items": layers, "minItems": 1},
            ]
        })
    }
}

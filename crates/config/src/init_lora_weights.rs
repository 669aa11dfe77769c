use std::{borrow::Cow, fmt};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error, Visitor},
};

/// Start values of a fresh adapter, as PEFT's `init_lora_weights` names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum InitLoraWeights {
    /// `true`: A uniform, B zero.
    #[default]
    Uniform,
    /// A normal, B zero.
    Gaussian,
    /// A and B from the rows of one orthogonal matrix.
    Orthogonal,
}

const NAMES: [&str; 2] = ["gaussian", "orthogonal"];

impl InitLoraWeights {
    /// PEFT's name; `None` is its `true`.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Self::Uniform => None,
            Self::Gaussian => Some(NAMES[0]),
            Self::Orthogonal => Some(NAMES[1]),
        }
    }
}

impl Serialize for InitLoraWeights {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.name() {
            Some(name) => serializer.serialize_str(name),
            None => serializer.serialize_bool(true),
        }
    }
}

impl<'de> Deserialize<'de> for InitLoraWeights {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(InitVisitor)
    }
}

struct InitVisitor;

impl Visitor<'_> for InitVisitor {
    type Value = InitLoraWeights;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("true, gaussian or orthogonal")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<InitLoraWeights, E> {
        if value {
            return Ok(InitLoraWeights::Uniform);
        }
        Err(E::custom(
            "must be true, gaussian or orthogonal: with false the adapter changes the model before it is trained",
        ))
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<InitLoraWeights, E> {
        let all = [InitLoraWeights::Gaussian, InitLoraWeights::Orthogonal];
        let found = all.into_iter().find(|init| init.name() == Some(name));
        found.ok_or_else(|| E::unknown_variant(name, &NAMES))
    }
}

impl JsonSchema for InitLoraWeights {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "InitLoraWeights".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"oneOf": [
            {"type": "boolean", "const": true, "description": "true: A uniform in ±1 / sqrt(d_in), B zero."},
            {"type": "string", "const": "gaussian", "description":
                "A normal with a standard deviation of 1 / r, B zero."},
            {"type": "string", "const": "orthogonal", "description":
                "A and B random, from the odd and even rows of an orthogonal matrix, so that their product is zero; \
                 r must be even."},
        ]})
    }
}

//! A sweep as a user writes it. The doc comments become descriptions of the JSON schema.
#![expect(
    clippy::doc_markdown,
    reason = "editors show these descriptions as plain text"
)]

use std::{borrow::Cow, fmt};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};

use super::{EarlyStopping, StoppingMetric};

/// Adapters that differ in a few settings and are compared with each other: the points of a grid, or
/// adapters listed by name. All train on the same rows in the same order.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(
    deny_unknown_fields,
    expecting = "a mapping with `name` and `grid`, or with `name` and `adapters`"
)]
pub(crate) struct SweepFile {
    /// Unique name; the names of the grid's adapters begin with it.
    pub(crate) name: String,
    /// Adapter that the points of the grid take all other settings from; by default `defaults`. The
    /// base is trained as well. A point that equals it is not trained twice: the base takes its place,
    /// unless `early_stopping` could stop it or the base is in another sweep.
    pub(crate) base: Option<String>,
    /// Lists of values by dotted path, such as lora.r and train.learning_rate. Every combination
    /// becomes an adapter, named after the sweep and its values, such as lr-3e-4-r8.
    pub(crate) grid: Option<GridFile>,
    /// Names of adapters to compare, instead of `grid`.
    #[schemars(length(min = 1))]
    pub(crate) adapters: Option<Vec<String>>,
    /// Stops adapters that fall behind the others of this sweep. By default all train to the end.
    pub(crate) early_stopping: Option<EarlyStoppingFile>,
}

/// Asynchronous successive halving (ASHA). At the steps grace_period · reduction_factor^k, k = 0,
/// 1, 2, …, the best 1/reduction_factor of the adapters that have reached the step continue and the
/// others stop. Adapters that reach it in the same iteration are compared together.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a mapping with `grace_period`")]
pub(crate) struct EarlyStoppingFile {
    /// Loss that is compared; lower is better. By default eval_loss if the dataset has validation rows,
    /// else train_loss.
    pub(crate) metric: Option<StoppingMetric>,
    /// Optimizer steps of every adapter before the first comparison.
    #[schemars(range(min = 1))]
    pub(crate) grace_period: usize,
    /// Ratio between the steps of two comparisons, and inverse of the share that continues.
    #[schemars(range(min = 2), extend("default" = EarlyStopping::REDUCTION_FACTOR))]
    pub(crate) reduction_factor: Option<usize>,
    /// Also stop an adapter at the step whose training loss exceeds this multiple of its first one. By default
    /// never.
    #[schemars(extend("exclusiveMinimum" = 1))]
    pub(crate) divergence: Option<f64>,
}

/// A grid: any mapping, since its keys are paths. Its values are read from the tree.
#[derive(Debug)]
pub(crate) struct GridFile;

impl<'de> Deserialize<'de> for GridFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(GridVisitor)
    }
}

struct GridVisitor;

impl<'de> Visitor<'de> for GridVisitor {
    type Value = GridFile;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a mapping of settings to lists, such as {lora.r: [8, 16]}")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<GridFile, A::Error> {
        while access.next_entry::<String, IgnoredAny>()?.is_some() {}
        Ok(GridFile)
    }
}

impl JsonSchema for GridFile {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Grid".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let values = json_schema!({"type": "array", "minItems": 1});
        let values = values.to_value();
        let paths = super::paths::settable();
        let nested = |section: &str| -> serde_json::Map<_, _> {
            let inner = paths.iter().filter_map(|path| path.strip_prefix(section));
            inner.map(|key| (key.to_owned(), values.clone())).collect()
        };
        let mut properties: serde_json::Map<_, _> = paths
            .iter()
            .map(|path| (path.clone(), values.clone()))
            .collect();
        for section in ["lora", "objective", "train"] {
            let object = json_schema!({
                "type": "object",
                "properties": nested(&format!("{section}.")),
                "additionalProperties": false,
            });
            properties.insert(section.to_owned(), object.to_value());
        }
        json_schema!({
            "type": "object",
            "properties": properties,
            "additionalProperties": false,
            "minProperties": 1,
        })
    }
}

//! A sweep as a user may write it. The documentation of these types is what editors show.
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

use super::StoppingMetric;

/// Adapters that differ in a few settings and are compared with each other: the points of a grid, or
/// adapters that are written out. All see the same rows in the same order.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(
    deny_unknown_fields,
    expecting = "a mapping with `name` and `grid`, or with `name` and `adapters`"
)]
pub(crate) struct SweepFile {
    /// Unique name; the names of its points begin with it.
    pub(crate) name: String,
    /// Adapter that the points of the grid are like in everything else; default: what `defaults`
    /// says. The base is trained too, beside the sweep; a point that is equal to it is not trained a
    /// second time, the base takes its place in the sweep.
    pub(crate) base: Option<String>,
    /// Settings by dotted path, such as train.learning_rate and lora.r, each with a list of values.
    /// Every combination is an adapter, named after the sweep and its values: lr-3e-4-r8.
    pub(crate) grid: Option<GridFile>,
    /// Instead of `grid`: names of adapters that are written out.
    #[schemars(length(min = 1))]
    pub(crate) adapters: Option<Vec<String>>,
    /// Stops adapters that fall behind the others of the sweep; default never. Adapters outside of
    /// it are never stopped by it.
    pub(crate) early_stopping: Option<EarlyStoppingFile>,
}

/// Asynchronous successive halving (ASHA): at step grace_period · reduction_factor^k, for each k,
/// adapters outside the best one in reduction_factor of those that got so far are stopped. Those that
/// get there in the same iteration are compared together.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a mapping with `grace_period`")]
pub(crate) struct EarlyStoppingFile {
    /// What is compared; default eval_loss if the dataset has validation rows, else train_loss.
    pub(crate) metric: Option<StoppingMetric>,
    /// Optimizer steps that every adapter takes before it can be stopped.
    #[schemars(range(min = 1))]
    pub(crate) grace_period: usize,
    /// One in so many goes on, so many times as far; default 3.
    #[schemars(range(min = 2))]
    pub(crate) reduction_factor: Option<usize>,
    /// Also stop an adapter when its training loss is above so many times its own first one, or not
    /// finite; default never.
    #[schemars(extend("exclusiveMinimum" = 1))]
    pub(crate) divergence: Option<f64>,
}

/// A grid: any mapping, since its keys are paths. What they hold is read from the tree.
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
        for section in ["lora", "train"] {
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

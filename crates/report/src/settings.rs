//! The adapters and sweeps of a configuration, read as a plain tree, so that configurations of other versions work as
//! well.

use std::collections::{BTreeMap, BTreeSet};

use loraloom_config::{RunConfig, StoppingMetric};
use serde_json::Value;

/// Settings of adapters by dotted key, as in configurations.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Settings {
    adapters: Vec<(String, BTreeMap<String, Value>)>,
    pub(crate) sweeps: Vec<SweepSettings>,
}

/// A sweep: its adapters and its metric.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SweepSettings {
    pub(crate) name: String,
    pub(crate) adapters: Vec<String>,
    pub(crate) metric: Option<StoppingMetric>,
}

impl Settings {
    /// The settings of a resolved configuration; empty if it is not YAML.
    pub(crate) fn of_yaml(text: &str) -> Self {
        let tree: Value = serde_saphyr::from_str(text).unwrap_or_default();
        let mut settings = Self::default();
        settings.add_tree(&tree);
        settings
    }

    /// Adds the settings of further adapters.
    pub(crate) fn add(&mut self, config: &RunConfig) {
        self.add_tree(&serde_json::to_value(config).unwrap_or_default());
    }

    fn add_tree(&mut self, tree: &Value) {
        for adapter in list(&tree["adapters"]) {
            let Some(name) = adapter["name"].as_str() else {
                continue;
            };
            let mut leaves = BTreeMap::new();
            collect(adapter, String::new(), &mut leaves);
            leaves.remove("name");
            self.adapters.push((name.to_owned(), leaves));
        }
        for sweep in list(&tree["sweep"]) {
            let names = list(&sweep["adapters"]).iter();
            let names = names.filter_map(|name| Some(name.as_str()?.to_owned()));
            let name = sweep["name"].as_str().unwrap_or_default();
            let mut known = self.sweeps.iter_mut();
            if let Some(known) = known.find(|known| known.name == name) {
                known.adapters.extend(names);
                continue;
            }
            let metric = sweep["early_stopping"]["metric"].clone();
            self.sweeps.push(SweepSettings {
                name: name.to_owned(),
                adapters: names.collect(),
                metric: serde_json::from_value(metric).ok(),
            });
        }
    }

    /// Names of the adapters.
    pub(crate) fn adapters(&self) -> impl Iterator<Item = &str> {
        self.adapters.iter().map(|(name, _)| name.as_str())
    }

    /// Keys in which these adapters differ, with the value of each; null if it has none.
    pub(crate) fn differing(&self, names: &[&str]) -> Vec<(String, Vec<Value>)> {
        let of: BTreeMap<&str, &BTreeMap<String, Value>> = self
            .adapters
            .iter()
            .map(|(name, leaves)| (name.as_str(), leaves))
            .collect();
        let known: Vec<_> = names.iter().map(|name| of.get(name)).collect();
        let keys: BTreeSet<&String> = known
            .iter()
            .flatten()
            .flat_map(|leaves| leaves.keys())
            .collect();
        let values = keys.into_iter().map(|key| {
            let value = |leaves: &Option<_>| {
                let leaves: Option<&&BTreeMap<String, Value>> = *leaves;
                leaves.and_then(|leaves| leaves.get(key)).cloned()
            };
            let values: Vec<Option<Value>> = known.iter().map(value).collect();
            (key.clone(), values)
        });
        let differs = |(_, values): &(String, Vec<Option<Value>>)| {
            let mut there = values.iter().flatten();
            let first = there.next();
            there.any(|value| Some(value) != first)
        };
        let or_null = |(key, values): (String, Vec<Option<Value>>)| {
            let values = values.into_iter().map(Option::unwrap_or_default);
            (key, values.collect())
        };
        values.filter(differs).map(or_null).collect()
    }
}

/// Values by their dotted path; a list is one value.
fn collect(value: &Value, path: String, leaves: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let dot = if path.is_empty() { "" } else { "." };
                collect(value, format!("{path}{dot}{key}"), leaves);
            }
        }
        Value::Array(values) => {
            let words = values.iter().map(|value| match value {
                Value::String(word) => word.clone(),
                other => other.to_string(),
            });
            leaves.insert(path, Value::String(words.collect::<Vec<_>>().join(", ")));
        }
        leaf => {
            leaves.insert(path, leaf.clone());
        }
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::Settings;

    #[test]
    fn what_differs_between_adapters_is_found_by_its_key() {
        let text = "
adapters:
  - {name: a, lora: {r: 8, target_modules: [q_proj, v_proj]}, train: {learning_rate: 1.0e-3}, new_key: 1}
  - {name: b, lora: {r: 8, target_modules: [q_proj]}, train: {learning_rate: 3.0e-4}, new_key: 1}
  - {name: c, lora: {r: 4, target_modules: [q_proj]}, train: {learning_rate: 3.0e-4}, new_key: 1}
sweep:
  - {name: s, adapters: [a, b], early_stopping: {metric: train_loss}}
";
        let settings = Settings::of_yaml(text);
        let found = settings.differing(&["a", "b", "unknown"]);
        let expected = [
            (
                "lora.target_modules".to_owned(),
                vec![json!("q_proj, v_proj"), json!("q_proj"), json!(null)],
            ),
            (
                "train.learning_rate".to_owned(),
                vec![json!(1e-3), json!(3e-4), json!(null)],
            ),
        ];
        assert_eq!(found, expected);
        assert_eq!(settings.sweeps[0].adapters, ["a", "b"]);
        assert_eq!(
            settings.sweeps[0].metric,
            Some(loraloom_config::StoppingMetric::TrainLoss)
        );
        for broken in ["", "adapters: 3", "- a", "a: [", "adapters: [{lora: 1}, 2]"] {
            assert_eq!(Settings::of_yaml(broken), Settings::default(), "{broken}");
        }
    }
}

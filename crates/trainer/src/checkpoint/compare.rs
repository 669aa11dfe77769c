//! Differences between configurations that `--resume` accepts.

use loraloom_config::{ConfigError, RunConfig};
use loraloom_model::Projection;
use serde_json::{Map, Value, json};

/// Keys that may change: they decide where and how the run computes and where it writes. The digest identifies the
/// model.
const FREE: [&str; 6] = [
    "device",
    "gradient_checkpointing",
    "model",
    "output_dir",
    "pipeline",
    "scheduler",
];
/// Keys of an adapter that may change: they decide its order, its saves and its origin.
const FREE_OF_ADAPTER: [&str; 4] = ["init_from", "priority", "save", "tenant"];

/// Characters of a value that a message shows.
const MOST_SHOWN: usize = 60;

/// The first difference between two configurations.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Difference {
    /// A key with different values.
    Value {
        /// Its dotted path.
        key: String,
        /// The value that the run has.
        saved: String,
        /// The value now.
        now: String,
    },
    /// An adapter of the run is missing.
    Gone {
        /// Its name.
        adapter: String,
        /// Names of adapters that the run does not have.
        new: Vec<String>,
    },
}

/// A configuration as a checkpoint returns it.
///
/// # Errors
/// If a path is not valid Unicode, or the working directory cannot be told.
pub(crate) fn config_value(config: &RunConfig) -> Result<Value, ConfigError> {
    serde_json::to_value(config.absolute()?).map_err(|error| ConfigError::Write(error.to_string()))
}

/// The configuration of a run with defaults that are not written out, or were not by earlier versions.
fn filled(config: &Value) -> Value {
    let filled = serde_json::from_value(config.clone()).map(|mut config: RunConfig| {
        for adapter in &mut config.adapters {
            adapter.fill_defaults();
            let train = &mut adapter.train;
            train.lr_scheduler_kwargs = train.lr_scheduler_kwargs.filled(train.lr_scheduler_type);
        }
        config
    });
    filled
        .and_then(serde_json::to_value)
        .unwrap_or_else(|_| config.clone())
}

/// The first key that affects training and differs from the run's. New adapters are no difference; the data itself is
/// compared elsewhere.
pub(super) fn difference(saved: &Value, now: &Value) -> Option<Difference> {
    let (saved, now) = (by_name(&filled(saved)), by_name(&filled(now)));
    let none = Map::new();
    let (saved, now) = (saved.as_object()?, now.as_object().unwrap_or(&none));
    let new = now.keys().filter(|key| !saved.contains_key(*key));
    saved.keys().chain(new).find_map(|key| {
        let value = |of: &Map<String, Value>| of.get(key).cloned().unwrap_or_default();
        let (value, other) = (&value(saved), &value(now));
        match key.as_str() {
            key if FREE.contains(&key) => None,
            "adapters" => {
                gone(value, other).or_else(|| of_entries(key, value, other, &FREE_OF_ADAPTER))
            }
            "datasets" => of_entries(key, value, other, &["path"]),
            _ => deep(key, value, other),
        }
    })
}

/// The configuration with its adapters and sweeps by name.
fn by_name(config: &Value) -> Value {
    let mut config = config.clone();
    for key in ["adapters", "sweep"] {
        let Some(entries) = config.get_mut(key) else {
            continue;
        };
        let list = entries.as_array().into_iter().flatten();
        let named = list.filter_map(|entry| {
            let name = entry.get("name")?.as_str()?;
            Some((name.to_owned(), entry.clone()))
        });
        *entries = Value::Object(named.collect());
    }
    config
}

/// The first adapter that is missing.
fn gone(saved: &Value, now: &Value) -> Option<Difference> {
    let (saved, now) = (saved.as_object()?, now.as_object()?);
    let adapter = saved.keys().find(|name| !now.contains_key(*name))?;
    let new = now.keys().filter(|name| !saved.contains_key(*name));
    Some(Difference::Gone {
        adapter: adapter.clone(),
        new: new.cloned().collect(),
    })
}

fn of_entries(key: &str, saved: &Value, now: &Value, free: &[&str]) -> Option<Difference> {
    saved.as_object()?.iter().find_map(|(name, entry)| {
        let other = now.get(name)?;
        entry.as_object()?.iter().find_map(|(field, value)| {
            let other = other.get(field).unwrap_or(&Value::Null);
            // Files may have moved; their contents are compared.
            let files = field == "validation" && value.is_string() && other.is_string();
            if files || free.contains(&field.as_str()) {
                return None;
            }
            deep(&format!("{key}.{name}.{field}"), value, other)
        })
    })
}

/// `all-linear`, and what it was written as once: the seven layers of a decoder without fused ones.
fn is_all_linear(modules: &Value) -> bool {
    let seven = Projection::applied(false).iter();
    *modules == "all-linear" || *modules == json!(seven.map(|one| one.name()).collect::<Vec<_>>())
}

fn deep(key: &str, saved: &Value, now: &Value) -> Option<Difference> {
    let targets = key.ends_with(".target_modules");
    if saved == now || (targets && is_all_linear(saved) && is_all_linear(now)) {
        return None;
    }
    if let (Value::Object(saved), Value::Object(now)) = (saved, now) {
        return saved.keys().chain(now.keys()).find_map(|field| {
            let value = |map: &Map<String, Value>| map.get(field).cloned().unwrap_or_default();
            deep(&format!("{key}.{field}"), &value(saved), &value(now))
        });
    }
    if let (Value::Array(saved), Value::Array(now)) = (saved, now)
        && saved.len() == now.len()
    {
        return (0..saved.len()).find_map(|index| {
            let value = |list: &[Value]| list.get(index).cloned().unwrap_or_default();
            deep(&format!("{key}[{index}]"), &value(saved), &value(now))
        });
    }
    let (saved, now) = (saved.to_string(), now.to_string());
    let common = saved.chars().zip(now.chars());
    let common = common.take_while(|(saved, now)| saved == now).count();
    // A third of the text comes before the first character that differs.
    let from = match common {
        common if common < MOST_SHOWN => 0,
        common => common - MOST_SHOWN / 3,
    };
    Some(Difference::Value {
        key: key.to_owned(),
        saved: shown(&saved, from),
        now: shown(&now, from),
    })
}

/// Shortens a text for a message, from its character `from` on.
fn shown(text: &str, from: usize) -> String {
    let before = if from > 0 { "…" } else { "" };
    let after = if text.chars().nth(from + MOST_SHOWN).is_some() {
        "…"
    } else {
        ""
    };
    let shown: String = text.chars().skip(from).take(MOST_SHOWN).collect();
    format!("{before}{shown}{after}")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use loraloom_config::{LoadOptions, RunConfig};
    use serde_json::{Value, json};

    use super::{Difference, config_value, difference};

    fn config() -> Value {
        json!({
            "model": "m", "output_dir": "o", "seed": 1, "dtype": "auto", "device": "cpu",
            "pipeline": {"stages": ["cpu"]}, "scheduler": {"max_adapters": null},
            "datasets": {"d": {"path": ["x"], "template": null, "validation": "v.jsonl"}},
            "adapters": [
                {"name": "a", "priority": 0, "train": {"learning_rate": 1e-3, "max_steps": 5},
                 "save": {"steps": 5}},
                {"name": "b", "priority": 0, "train": {"learning_rate": 1e-3, "max_steps": 5},
                 "save": {"steps": 5}},
            ],
            "sweep": [{"name": "lr", "adapters": ["a", "b"], "early_stopping": null}],
        })
    }

    fn found(change: impl FnOnce(&mut Value)) -> Option<String> {
        let mut now = config();
        change(&mut now);
        difference(&config(), &now).map(|found| match found {
            Difference::Value { key, saved, now } => format!("{key} {saved} {now}"),
            Difference::Gone { adapter, new } => format!("{adapter} gone, {new:?} new"),
        })
    }

    /// From a file to a run's own configuration and its checkpoint, and back.
    #[test]
    fn numbers_keep_their_bits() {
        let mut word = 1_u64;
        let mut numbers = vec![8.204_030_546_886_696e-8, 1e-24, 1e-30, 0.1];
        while numbers.len() < 500 {
            word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let number = f64::from_bits(word);
            numbers.extend(Some(number).filter(|number| (1e-37..1e30).contains(number)));
        }
        let adapters = numbers.iter().enumerate().map(|(index, number)| {
            format!("  - {{name: a{index}, dataset: d, train: {{learning_rate: {number:e}}}}}\n")
        });
        let adapters: String = adapters.collect();
        let text = format!("model: m\ndatasets: {{d: {{path: p}}}}\nadapters:\n{adapters}");
        let load = |text: &str| {
            let loaded = RunConfig::load_yaml(text, Path::new("c.yaml"), &LoadOptions::default());
            loaded.expect("a configuration").config
        };
        let config = load(&text);
        for (adapter, number) in config.adapters.iter().zip(&numbers) {
            let read = adapter.train.learning_rate;
            assert_eq!(read.to_bits(), number.to_bits(), "{read:e} {number:e}");
        }
        let saved = config_value(&config).expect("a value").to_string();
        let saved: Value = serde_json::from_str(&saved).expect("JSON");
        let resumed = load(&config.to_yaml().expect("YAML"));
        let now = config_value(&resumed).expect("a value");
        assert_eq!(difference(&saved, &now), None);
    }

    #[test]
    fn defaults_may_be_written_out_or_left_out() {
        let load = |adapters: [&str; 4]| {
            let [plus, eva, dpo, simpo] = adapters;
            let text = format!(
                "model: m\ndatasets: {{d: {{path: p}}}}\nadapters:\n\
                 - {{name: a, train: {{loraplus_lr_ratio: 16{plus}}}}}\n\
                 - {{name: b, lora: {{init_lora_weights: eva{eva}}}}}\n\
                 - {{name: c, objective: {{type: dpo{dpo}}}}}\n\
                 - {{name: d, objective: {{type: simpo{simpo}}}}}\n"
            );
            let loaded = RunConfig::load_yaml(&text, Path::new("c.yaml"), &LoadOptions::default());
            config_value(&loaded.expect("a configuration").config).expect("a value")
        };
        let left_out = load([""; 4]);
        let written = load([
            ", loraplus_lr_embedding: 1e-6",
            ", eva_config: {tau: 0.99}",
            ", loss_type: sigmoid, loss_weights: [1], beta: 0.1, disable_dropout: true, reference: init",
            ", cpo_alpha: 0, simpo_gamma: 0.5",
        ]);
        assert_eq!(left_out, written);
        let mut earlier = left_out.clone();
        for (adapter, section) in [
            (0, "train"),
            (1, "lora"),
            (2, "objective"),
            (3, "objective"),
        ] {
            let section = earlier["adapters"][adapter][section].as_object_mut();
            let keep = |key: &str| {
                !["loraplus_lr_embedding", "eva_config", "beta", "reference"].contains(&key)
            };
            section.expect("a section").retain(|key, _| keep(key));
        }
        assert_ne!(earlier, left_out);
        assert_eq!(difference(&earlier, &left_out), None);
        let other = load(["", "", ", beta: 0.2", ""]);
        assert!(difference(&earlier, &other).is_some());
    }

    #[test]
    fn keywords_of_a_schedule_may_be_written_out_or_left_out() {
        let load = |train: &str| {
            let text = format!(
                "model: m\ndatasets: {{d: {{path: p}}}}\nadapters: [{{name: a, train: {{{train}}}}}]\n"
            );
            let loaded = RunConfig::load_yaml(&text, Path::new("c.yaml"), &LoadOptions::default());
            config_value(&loaded.expect("a configuration").config).expect("a value")
        };
        for (kind, default, other) in [
            ("cosine", "num_cycles: 0.5", "num_cycles: 1"),
            ("cosine_with_restarts", "num_cycles: 1", "num_cycles: 0.5"),
            ("polynomial", "power: 1, lr_end: 1e-7", "power: 2"),
            (
                "warmup_stable_decay",
                "num_decay_steps: 3, decay_type: cosine, warmup_type: linear, min_lr_ratio: 0",
                "num_decay_steps: 3, decay_type: linear",
            ),
        ] {
            let with = |kwargs: &str| {
                load(&format!(
                    "lr_scheduler_type: {kind}, lr_scheduler_kwargs: {{{kwargs}}}"
                ))
            };
            let needed = if kind == "warmup_stable_decay" {
                "num_decay_steps: 3"
            } else {
                ""
            };
            assert_eq!(difference(&with(needed), &with(default)), None, "{kind}");
            assert!(difference(&with(needed), &with(other)).is_some(), "{kind}");
        }
    }

    #[test]
    fn all_linear_is_the_seven_names_that_it_was_written_as() {
        let seven = [
            "q_proj",
            "k_proj",
            "v_proj",
            "o_proj",
            "gate_proj",
            "up_proj",
            "down_proj",
        ];
        let of = |modules: Value| {
            let mut config = config();
            config["adapters"][0]["lora"] = json!({"target_modules": modules});
            config
        };
        assert_eq!(
            difference(&of(json!(seven)), &of(json!("all-linear"))),
            None
        );
        assert_eq!(
            difference(&of(json!("all-linear")), &of(json!(seven))),
            None
        );
        assert!(difference(&of(json!(seven[..6])), &of(json!("all-linear"))).is_some());
    }

    #[test]
    fn what_decides_what_is_trained_must_be_the_same() {
        assert_eq!(found(|_| {}), None);
        for (pointer, value, told) in [
            ("/seed", json!(2), "seed 1 2"),
            ("/dtype", json!("float16"), "dtype \"auto\" \"float16\""),
            (
                "/datasets/d/template",
                json!("t"),
                "datasets.d.template null \"t\"",
            ),
            (
                "/datasets/d/validation",
                json!(0.1),
                "datasets.d.validation \"v.jsonl\" 0.1",
            ),
            (
                "/adapters/1/train/max_steps",
                json!(6),
                "adapters.b.train.max_steps 5 6",
            ),
        ] {
            let change = |config: &mut Value| *config.pointer_mut(pointer).unwrap() = value;
            assert_eq!(found(change).as_deref(), Some(told));
        }
        let new = found(|config| config["quantization"] = json!({"type": "nf4"}));
        assert_eq!(new.as_deref(), Some("quantization null {\"type\":\"nf4\"}"));
        let removed = found(|config| {
            config["adapters"].as_array_mut().unwrap().remove(0);
        });
        assert_eq!(removed.as_deref(), Some("a gone, [] new"));
        let renamed = found(|config| config["adapters"][1]["name"] = json!("c"));
        assert_eq!(renamed.as_deref(), Some("b gone, [\"c\"] new"));
        let more = found(|config| config["sweep"][0]["adapters"] = json!(["a", "b", "c"]));
        let listed = r#"sweep.lr.adapters ["a","b"] ["a","b","c"]"#;
        assert_eq!(more.as_deref(), Some(listed));
        let long = found(|config| config["seed"] = json!("x".repeat(900)));
        assert!(long.is_some_and(|told| told.chars().count() == "seed 1 ".len() + 61));
    }

    #[test]
    fn texts_that_differ_look_different() {
        let template = |end: &str| {
            let mut config = config();
            config["datasets"]["d"]["template"] = json!("{{ prompt }} ".repeat(30) + end);
            config
        };
        let found = difference(&template("{{ a }}"), &template("{{ b }}"));
        let Some(Difference::Value { saved, now, .. }) = found else {
            panic!("no difference");
        };
        assert_eq!(saved, "… }} {{ prompt }} {{ a }}\"");
        assert_eq!(now, "… }} {{ prompt }} {{ b }}\"");
    }

    #[test]
    fn where_and_when_may_change_and_adapters_may_be_added() {
        for (pointer, value) in [
            ("/model", json!("elsewhere")),
            ("/output_dir", json!("elsewhere")),
            ("/device", json!("wgpu")),
            ("/pipeline/stages", json!(["cpu", "cpu"])),
            ("/scheduler/max_adapters", json!(3)),
            ("/datasets/d/path", json!(["y"])),
            ("/datasets/d/validation", json!("w.jsonl")),
            ("/adapters/0/priority", json!(7)),
            ("/adapters/0/save/steps", json!(7)),
        ] {
            let change = |config: &mut Value| *config.pointer_mut(pointer).unwrap() = value;
            assert_eq!(found(change), None, "{pointer}");
        }
        let changed = found(|config| {
            let adapters = config["adapters"].as_array_mut().unwrap();
            adapters.reverse();
            adapters.push(json!({"name": "c"}));
        });
        assert_eq!(changed, None);
    }
}

//! Merges `defaults` into every adapter, key by key, before adapters are read.

use crate::{
    objective,
    tree::{Node, Value},
};

/// Keys that `null` in an adapter unsets. For other keys, `null` means that the key is absent.
pub(crate) const NULLABLE: [&str; 18] = [
    "max_steps",
    "patience",
    "lr_scheduler_kwargs",
    "loraplus_lr_ratio",
    "loraplus_lr_embedding",
    "loss_type",
    "loss_weights",
    "beta",
    "label_smoothing",
    "reference",
    "precompute_ref_log_probs",
    "disable_dropout",
    "desirable_weight",
    "undesirable_weight",
    "cpo_alpha",
    "simpo_gamma",
    "lambda",
    "temperature",
];

/// The tree with `defaults` and the run's `seed` merged into each adapter.
pub(crate) fn merged(tree: &Node) -> Node {
    let mut merged = tree.clone();
    let defaults = tree.get("defaults").cloned();
    let seed = tree.get("seed").filter(|seed| !is_null(seed)).cloned();
    if let Some(adapters) = merged.get_mut("adapters") {
        for adapter in adapters.items_mut() {
            if let Some(defaults) = &defaults {
                fill(adapter, defaults);
            }
            let unset = adapter.get("seed").is_none_or(is_null);
            if let Some(seed) = seed.clone().filter(|_| unset) {
                adapter.set("seed", seed);
            }
            unset_nulls(adapter);
        }
    }
    for section in ["defaults", "scheduler", "quantization"] {
        if let Some(section) = merged.get_mut(section) {
            unset_nulls(section);
        }
    }
    if let Value::Mapping(entries) = &mut merged.value {
        entries.retain(|(key, node)| key.name != "scheduler" || !is_null(node));
    }
    merged
}

pub(crate) fn is_null(node: &Node) -> bool {
    matches!(node.value, Value::Null)
}

/// The keys of `default` that an objective has: all that `own` has as well, if their types differ, but the variants of the
/// loss, which are others.
fn of_type(own: &Node, default: &Node) -> Node {
    let mut default = default.clone();
    let name = |node: &Node| node.get("type").and_then(Node::text).map(str::to_owned);
    let types = name(own).zip(name(&default));
    if let Some((own, other)) = types
        && own != other
        && let Value::Mapping(entries) = &mut default.value
    {
        let keys = objective::keys_of(&own);
        entries.retain(|(key, _)| key.name != "loss_type" && keys.contains(&key.name.as_str()));
    }
    default
}

/// Adds the keys of `defaults` that `node` does not have.
fn fill(node: &mut Node, defaults: &Node) {
    let Value::Mapping(shared) = &defaults.value else {
        return;
    };
    for (key, default) in shared {
        match node.get_mut(&key.name) {
            None => {
                node.set(&key.name, default.clone());
            }
            Some(own) if is_null(own) => {
                if !NULLABLE.contains(&key.name.as_str()) {
                    *own = default.clone();
                }
            }
            Some(own) if key.name == "objective" => fill(own, &of_type(own, default)),
            Some(own) => fill(own, default),
        }
    }
}

/// Marks keys without a value. They are not removed, since unknown keys are refused.
pub(crate) fn unset_nulls(node: &mut Node) {
    if let Value::Mapping(entries) = &mut node.value {
        for (_, node) in entries {
            if is_null(node) {
                node.value = Value::Unset;
            } else {
                unset_nulls(node);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Node, Value, merged};
    use crate::{place::Location, tree::Key};

    fn mapping(entries: &[(&str, Value)]) -> Value {
        let entry = |(name, value): &(&str, Value)| {
            let key = Key {
                name: (*name).to_owned(),
                location: Location::Unknown,
            };
            (key, Node::new(value.clone()))
        };
        Value::Mapping(entries.iter().map(entry).collect())
    }

    #[test]
    fn null_is_a_default_but_where_it_means_nothing() {
        let number = Value::Integer;
        let train = mapping(&[("max_steps", number(9)), ("batch_size", number(4))]);
        let own = mapping(&[("max_steps", Value::Null), ("batch_size", Value::Null)]);
        let tree = Node::new(mapping(&[
            ("seed", number(7)),
            ("defaults", mapping(&[("train", train)])),
            (
                "adapters",
                Value::Sequence(vec![Node::new(mapping(&[("train", own)]))]),
            ),
        ]));
        let tree = merged(&tree);
        let adapter = &tree.get("adapters").expect("it is there").items()[0];
        let max_steps = adapter.find("train.max_steps").map(|node| &node.value);
        assert!(matches!(max_steps, Some(Value::Unset)), "{max_steps:?}");
        for (path, expected) in [("train.batch_size", 4), ("seed", 7)] {
            let found = adapter.find(path).expect("it is there");
            assert!(
                matches!(found.value, Value::Integer(n) if n == expected),
                "{path}"
            );
        }
    }
}

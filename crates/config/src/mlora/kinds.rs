//! Kinds of adapters and tasks that mLoRA has and loraloom does not support.

use crate::{ConfigError, place::Source, tree::Node};

/// Refuses adapters and tasks of other kinds before their keys are reported as unknown.
pub(super) fn refuse_kinds(tree: &Node, source: &Source<'_>) -> Result<(), ConfigError> {
    let sections: [(_, &[&str], _); 2] = [
        ("adapters", &["lora", LORAPLUS, DORA], ADAPTERS),
        ("tasks", &["train", "dpo", "cpo", "cit"], TASKS),
    ];
    for (section, supported, refused) in sections {
        for (index, node) in tree.list(section).iter().enumerate() {
            let name = node.get("type").and_then(Node::text);
            let Some(name) = name.filter(|name| !supported.contains(name)) else {
                continue;
            };
            let (location, key) = (node.locate("type"), format!("{section}[{index}].type"));
            if let Some((_, reason)) = refused.iter().find(|(other, _)| *other == name) {
                return Err(ConfigError::Unsupported {
                    place: source.place(location),
                    key,
                    reason: format!("`{name}` is not supported: {reason}"),
                });
            }
            let valid = refused.iter().map(|(name, _)| *name);
            let valid = valid.chain(supported.iter().copied());
            return Err(source.unknown_name(location, key, "type", name, valid));
        }
    }
    Ok(())
}

/// The kind of adapters with magnitudes.
pub(super) const DORA: &str = "dora";

/// The kind of adapters with a learning rate for B of its own.
pub(super) const LORAPLUS: &str = "loraplus";

const ADAPTERS: &[(&str, &str)] = &[(
    "vera",
    "its factors are shared between layers, and mLoRA's export of it does not load in PEFT",
)];

const TASKS: &[(&str, &str)] = &[(
    "ppo",
    "it generates answers while it trains, which loraloom does not",
)];

//! Kinds of adapters and tasks that mLoRA has and loraloom does not support.

use crate::{ConfigError, place::Source, tree::Node};

/// Refuses adapters and tasks of other kinds before their keys are reported as unknown.
pub(super) fn refuse_kinds(tree: &Node, source: &Source<'_>) -> Result<(), ConfigError> {
    let sections = [("adapters", "lora", ADAPTERS), ("tasks", "train", TASKS)];
    for (section, supported, refused) in sections {
        for (index, node) in tree.list(section).iter().enumerate() {
            let name = node.get("type").and_then(Node::text);
            let Some(name) = name.filter(|name| *name != supported) else {
                continue;
            };
            let (location, key) = (node.locate("type"), format!("{section}[{index}].type"));
            if let Some((_, reason)) = refused.iter().find(|(other, _)| *other == name) {
                return Err(ConfigError::Unsupported {
                    place: source.place(location),
                    key,
                    reason: format!("`{name}` is not supported, only `{supported}` is: {reason}"),
                });
            }
            let valid = refused.iter().map(|(name, _)| *name).chain([supported]);
            return Err(source.unknown_name(location, key, "type", name, valid));
        }
    }
    Ok(())
}

const ADAPTERS: &[(&str, &str)] = &[
    (
        "vera",
        "its factors are shared between layers, and mLoRA's export of it does not load in PEFT",
    ),
    ("dora", "mLoRA neither trains nor saves its magnitudes"),
    (
        "loraplus",
        "a separate learning rate for B is not supported",
    ),
];

const TASKS: &[(&str, &str)] = &[
    ("dpo", "preference losses are not supported"),
    ("cpo", "preference losses are not supported"),
    ("cit", "contrastive losses are not supported"),
    ("ppo", "reinforcement learning is not supported"),
];

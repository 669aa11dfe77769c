//! Kinds of adapters and tasks that mLoRA has and this does not.

use crate::{ConfigError, place::Source, suggest::Candidates, tree::Node};

/// Refuses adapters and tasks of other kinds, before their keys are called unknown.
pub(super) fn refuse_kinds(tree: &Node, source: &Source<'_>) -> Result<(), ConfigError> {
    let sections = [("adapters", "lora", ADAPTERS), ("tasks", "train", TASKS)];
    for (section, supported, refused) in sections {
        let nodes = tree.get(section).map(Node::items).unwrap_or_default();
        for (index, node) in nodes.iter().enumerate() {
            let Some(kind) = node.get("type") else {
                continue;
            };
            let Some(name) = kind.text().filter(|name| *name != supported) else {
                continue;
            };
            let place = source.place(kind.location);
            let key = format!("{section}[{index}].type");
            if let Some((_, reason)) = refused.iter().find(|(other, _)| *other == name) {
                let reason = format!("`{name}` is not supported, only `{supported}` is: {reason}");
                return Err(ConfigError::Unsupported { place, key, reason });
            }
            let valid = refused.iter().map(|(name, _)| *name).chain([supported]);
            return Err(ConfigError::UnknownName {
                place,
                key,
                what: "type",
                name: name.to_owned(),
                valid: Candidates::of(name, valid),
            });
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
        "a learning rate of its own for B is not supported",
    ),
];

const TASKS: &[(&str, &str)] = &[
    ("dpo", "preference losses are not supported"),
    ("cpo", "preference losses are not supported"),
    ("cit", "contrastive losses are not supported"),
    ("ppo", "reinforcement learning is not supported"),
];

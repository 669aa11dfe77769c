//! Settings in which the adapters of a sweep may differ.

use schemars::JsonSchema;

use crate::{
    EvaConfig, LoraSettings, LrSchedulerKwargs, ObjectiveSettings, SloraConfig, TrainSettings,
    suggest::Candidates,
};

/// Settings that determine an adapter's rows, their order, the tokens that its loss counts, and how.
pub(crate) const SHARED: [&str; 6] = [
    "dataset",
    "seed",
    "train.max_seq_len",
    "train.shuffle",
    "train.train_on_prompt",
    "train.label_smoothing_factor",
];

const KEYWORDS: &str = "train.lr_scheduler_kwargs";
const EVA: &str = "lora.eva_config";
const SLORA: &str = "lora.slora_config";

/// Dotted paths of all settings that a grid may have.
pub(crate) fn settable() -> Vec<String> {
    let of = |section: &str, schema: schemars::Schema| -> Vec<String> {
        let properties = schema.get("properties").and_then(|value| value.as_object());
        let keys = properties.into_iter().flat_map(|object| object.keys());
        keys.map(|key| format!("{section}.{key}")).collect()
    };
    let mut paths = of("lora", schema::<LoraSettings>());
    paths.extend(of(EVA, schema::<EvaConfig>()));
    paths.extend(of(SLORA, schema::<SloraConfig>()));
    paths.extend(of("objective", schema::<ObjectiveSettings>()));
    paths.extend(of("train", schema::<TrainSettings>()));
    paths.extend(of(KEYWORDS, schema::<LrSchedulerKwargs>()));
    // Keywords are settings; their mapping is none.
    let mappings = [KEYWORDS, EVA, SLORA];
    paths.retain(|path| {
        let path = path.as_str();
        !SHARED.contains(&path) && !mappings.contains(&path)
    });
    paths
}

fn schema<T: JsonSchema>() -> schemars::Schema {
    schemars::schema_for!(T)
}

/// The settings of a grid as candidates for an unknown one. The last part of the path is compared as well, since the
/// first one is often omitted.
pub(crate) fn candidates(written: &str) -> Candidates {
    let paths = settable();
    let mut candidates = Candidates::of(written, paths.iter().map(String::as_str));
    if candidates.nearest.is_none() {
        let last = |path: &str| path.rsplit('.').next().unwrap_or_default().to_owned();
        let names: Vec<String> = paths.iter().map(|path| last(path)).collect();
        let found = Candidates::of(&last(written), names.iter().map(String::as_str)).nearest;
        let meant = |name: String| paths.iter().find(|path| last(path) == name).cloned();
        candidates.nearest = found.and_then(meant);
    }
    candidates
}

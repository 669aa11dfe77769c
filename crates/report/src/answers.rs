//! Answers of adapters before and after training, from the newest checkpoint.

use std::{collections::BTreeMap, fs, path::Path};

use serde::{Deserialize, Serialize};

/// A prompt and its answers.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct Answered {
    pub(crate) prompt: String,
    pub(crate) reference: String,
    pub(crate) before: String,
    pub(crate) after: String,
}

#[derive(Deserialize)]
struct Saved {
    #[serde(default)]
    tasks: Vec<SavedTask>,
}

#[derive(Deserialize)]
struct SavedTask {
    name: String,
    #[serde(default)]
    samples: Vec<Answered>,
}

/// The answers of each finished adapter of the run in `directory`.
pub(crate) fn answers(directory: &Path) -> BTreeMap<String, Vec<Answered>> {
    let entries = fs::read_dir(directory.join("checkpoints"));
    let mut numbers: Vec<u64> = entries
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    numbers.sort_unstable();
    let newest = numbers.into_iter().rev().find_map(|number| {
        let path = directory.join(format!("checkpoints/{number}/run.json"));
        serde_json::from_slice::<Saved>(&fs::read(path).ok()?).ok()
    });
    let tasks = newest.into_iter().flat_map(|saved| saved.tasks);
    let answered = tasks.filter_map(|mut task| {
        // Skips prompts that were answered before training and not yet after it.
        task.samples
            .retain(|sample| !sample.after.is_empty() || !sample.before.is_empty());
        (!task.samples.is_empty()).then_some((task.name, task.samples))
    });
    answered.collect()
}

//! Verifies adapters and merged models.
//!
//! Both are read from the disk again and compared with the notes that a save wrote beside the weights
//! ([`PeftNotes`](loraloom_model::PeftNotes), [`MergeRecord`](loraloom_model::MergeRecord)). A forward pass over
//! fixed prompts shows that they change the base model. A check without its notes or its base is reported and is no
//! failure.

mod adapter;
mod base;
mod logits;
mod merged;
mod shape;

use std::path::Path;

use loraloom_config::RunConfig;

use crate::TrainerError;

/// Result of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckResult {
    /// Name of the check.
    pub name: &'static str,
    /// Verdict of the check.
    pub verdict: Verdict,
    /// The numbers and names found.
    pub message: String,
    /// Advice for the user.
    pub hint: Option<String>,
}

/// Verdict of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The check passed.
    Holds,
    /// The check needs something that is missing.
    Unchecked,
    /// The check failed.
    Fails,
}

/// Reads the configurations that the adapters of a run were trained with, given its directory; an error is the reason
/// why they are unknown.
pub type Configurations<'a> = dyn Fn(&Path) -> Result<Vec<RunConfig>, String> + 'a;

/// Checks the adapter or the merged model in `path`. The base is `model`, or else the one that the adapter's run, the
/// adapter or the merged model names.
///
/// # Errors
/// If `model` cannot be read.
pub fn verify(
    path: &Path,
    model: Option<&Path>,
    configurations: &Configurations<'_>,
) -> Result<Vec<CheckResult>, TrainerError> {
    let mut results = CheckResults::default();
    let holds = |file: &&str| path.join(file).exists();
    if ["adapter_config.json", "adapter_model.safetensors"]
        .iter()
        .any(holds)
    {
        adapter::check(path, model, configurations, &mut results)?;
    } else if holds(&"config.json") {
        merged::check(path, model, &mut results)?;
    } else {
        let shown = path.display();
        let message = if path.exists() {
            format!("`{shown}` has neither `adapter_config.json` nor `config.json`")
        } else {
            format!("`{shown}` does not exist")
        };
        let hint = "an adapter of a run is in `RUN/adapters/NAME/last`";
        results.add("files", Verdict::Fails, message, Some(hint.to_owned()));
    }
    Ok(results.0)
}

/// The results so far.
#[derive(Debug, Default)]
struct CheckResults(Vec<CheckResult>);

impl CheckResults {
    fn holds(&mut self, name: &'static str, message: String) {
        self.add(name, Verdict::Holds, message, None);
    }

    fn unchecked(&mut self, name: &'static str, message: String) {
        self.add(name, Verdict::Unchecked, message, None);
    }

    fn fails(&mut self, name: &'static str, message: String) {
        self.add(name, Verdict::Fails, message, None);
    }

    fn fails_with(&mut self, name: &'static str, error: &TrainerError) {
        self.add(name, Verdict::Fails, error.to_string(), error.hint());
    }

    fn add(&mut self, name: &'static str, verdict: Verdict, message: String, hint: Option<String>) {
        self.0.push(CheckResult {
            name,
            verdict,
            message,
            hint,
        });
    }
}

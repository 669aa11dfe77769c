//! Whether an adapter or a merged model is what it claims to be.
//!
//! Both are read again from the disk. What a save noted beside the weights
//! ([`PeftNotes`](loraloom_model::PeftNotes), [`MergeRecord`](loraloom_model::MergeRecord)) is compared with what
//! is there now, and a forward pass over fixed prompts shows that the base with it is another model than the
//! base. What cannot be checked, for want of notes or of a base, is said and is no failure.

mod adapter;
mod base;
mod logits;
mod merged;
mod shape;

use std::path::Path;

use loraloom_config::RunConfig;

use crate::TrainerError;

/// Names that a message lists.
const LISTED: usize = 4;

/// What came of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proof {
    /// What was checked.
    pub name: &'static str,
    /// What came of it.
    pub verdict: Verdict,
    /// With the numbers and names found.
    pub message: String,
    /// What the user can do about it.
    pub hint: Option<String>,
}

/// What came of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is as it should be.
    Holds,
    /// Something that is needed for the check is not there.
    Unchecked,
    /// It is not what it claims to be.
    Fails,
}

/// The configurations that the adapters of a run were trained with, given its directory; an error says why they
/// are not known.
pub type Configurations<'a> = dyn Fn(&Path) -> Result<Vec<RunConfig>, String> + 'a;

/// Checks the adapter or the merged model in `path`. The base is `model`, or else the one that the run of the
/// adapter, or the adapter or merged model itself, names.
///
/// # Errors
/// If `model` cannot be read.
pub fn verify(
    path: &Path,
    model: Option<&Path>,
    configurations: &Configurations<'_>,
) -> Result<Vec<Proof>, TrainerError> {
    let mut proofs = Proofs::default();
    let holds = |file: &&str| path.join(file).exists();
    if ["adapter_config.json", "adapter_model.safetensors"]
        .iter()
        .any(holds)
    {
        adapter::check(path, model, configurations, &mut proofs)?;
    } else if holds(&"config.json") {
        merged::check(path, model, &mut proofs)?;
    } else {
        let path = path.display();
        let message = format!("`{path}` has neither `adapter_config.json` nor `config.json`");
        let hint = "an adapter of a run is in `RUN/adapters/NAME/last`";
        proofs.add("files", Verdict::Fails, message, Some(hint.to_owned()));
    }
    Ok(proofs.0)
}

/// Proofs in the making.
#[derive(Debug, Default)]
struct Proofs(Vec<Proof>);

impl Proofs {
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
        self.0.push(Proof {
            name,
            verdict,
            message,
            hint,
        });
    }
}

/// Modules that have something in common, of how many.
fn in_modules(modules: &[String], all: usize) -> String {
    match modules.len() {
        some if some == all => format!("in all {all} modules"),
        some => format!("in {some} of {all} modules: {}", listed(modules)),
    }
}

/// The first few of several, and how many more there are.
fn listed(items: &[String]) -> String {
    let shown = items[..items.len().min(LISTED)].join(", ");
    match items.len().saturating_sub(LISTED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

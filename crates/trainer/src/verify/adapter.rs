//! The checks of an adapter.

use std::{collections::BTreeMap, path::Path};

use loraloom_model::{LoraWeights, PeftAdapter, PeftNotes};

use super::{
    CheckResults, Configurations,
    base::Base,
    logits::{TestPrompts, differ, not_computed},
    shape::OwnRun,
};
use crate::{
    checkpoint::trained_over,
    error::Result,
    saved_adapter::{Changes, in_modules, listed},
    stages::quantized,
};

pub(super) fn check(
    path: &Path,
    model: Option<&Path>,
    configurations: &Configurations<'_>,
    results: &mut CheckResults,
) -> Result<()> {
    let adapter = match PeftAdapter::load(path) {
        Ok(adapter) => adapter,
        Err(error) => {
            results.fails_with("files", &error.into());
            return Ok(());
        }
    };
    results.holds("files", described(path, &adapter));
    effect(&adapter, results);
    notes(path, &adapter, results);

    let run = OwnRun::of(path, configurations);
    let named = adapter.config.base_model_name_or_path.as_deref();
    let named = named.map(Path::new);
    let recorded = run.as_ref().and_then(OwnRun::model).or(named);
    let base = Base::find(model, recorded, results)?;
    if let Some(run) = &run {
        let layers = base.as_ref().map(|base| base.config.num_hidden_layers);
        run.check(&adapter, layers, results);
    }
    let trained = run.as_ref().and_then(|run| trained_over(&run.directory));
    let Some(base) = base else {
        return Ok(());
    };
    let config = match run.as_ref().and_then(OwnRun::quantization) {
        Some(quantization) => quantized(base.config.clone(), quantization)?,
        None => base.config.clone(),
    };
    let fits = adapter.verify(&base.config);
    let fits = fits.and_then(|()| PeftAdapter::check_copies(path, &base.path));
    if let Err(error) = fits {
        results.fails_with("base", &error.into());
        return Ok(());
    }
    identity(&adapter, &base, trained.as_deref(), named, results);
    match TestPrompts::base(&base.path, &config, &[adapter]) {
        Ok((_, logits)) => differ(&logits[1], &logits[0], results),
        Err(error) => not_computed(&error, results),
    }
    Ok(())
}

fn described(path: &Path, adapter: &PeftAdapter) -> String {
    let parameters = adapter.num_params();
    let ranks = adapter.modules.values().map(|module| module.r);
    let (lowest, highest) = (ranks.clone().min(), ranks.max());
    let ranks = match (lowest, highest) {
        (Some(lowest), Some(highest)) if lowest < highest => format!("ranks {lowest} to {highest}"),
        (lowest, _) => format!("rank {}", lowest.unwrap_or(0)),
    };
    let (path, modules) = (path.display(), adapter.modules.len());
    format!("{path}: {modules} modules, {ranks}, {parameters} parameters")
}

/// Checks that no module's product is zero.
fn effect(adapter: &PeftAdapter, results: &mut CheckResults) {
    let mut without = BTreeMap::new();
    for (module, weights) in &adapter.modules {
        if let Some(why) = zero(weights) {
            let modules: &mut Vec<String> = without.entry(why).or_default();
            modules.push(module.clone());
        }
    }
    let all = adapter.modules.len();
    for (why, modules) in &without {
        let message = format!("{why} is zero {}", in_modules(modules, all));
        results.fails("effect", message);
    }
    if without.is_empty() {
        results.holds("effect", format!("no factor of the {all} modules is zero"));
    }
}

/// The factor that makes a module's product zero, if one does.
fn zero(weights: &LoraWeights) -> Option<&'static str> {
    let is_zero = |values: &[f32]| values.iter().all(|value| value.abs() <= 0.0);
    if is_zero(&weights.b) {
        Some("lora_B")
    } else if is_zero(&weights.a) {
        Some("lora_A")
    } else {
        (weights.scale.abs() <= 0.0).then_some("the scale")
    }
}

/// Compares factors and scales with the saved notes.
fn notes(path: &Path, adapter: &PeftAdapter, results: &mut CheckResults) {
    const NAME: &str = "as saved";
    let saved = match PeftNotes::read(path) {
        Ok(Some(saved)) => saved,
        Ok(None) => {
            let message = "the file has no digests, since another program wrote it: factors in the \
                           wrong place and a changed lora_alpha cannot be detected";
            return results.unchecked(NAME, message.to_owned());
        }
        Err(error) => return results.fails_with(NAME, &error.into()),
    };
    let changes = Changes::of(adapter, &saved);
    for change in &changes.scales {
        results.fails(NAME, change.clone());
    }
    // Zero factors were already reported.
    let is_zero = |module| adapter.modules.get(module).and_then(zero).is_some();
    let factors = changes.factors.iter();
    let factors = factors.filter(|(module, _)| !is_zero(*module));
    let factors: Vec<String> = factors.map(|(_, change)| change.clone()).collect();
    if !factors.is_empty() {
        results.fails(NAME, listed(&factors));
    } else if changes.scales.is_empty() {
        let message = format!(
            "factors and scales of all {} modules",
            adapter.modules.len()
        );
        results.holds(NAME, message);
    }
}

/// Compares the base with the one that the adapter was trained over.
fn identity(
    adapter: &PeftAdapter,
    base: &Base,
    trained: Option<&str>,
    named: Option<&Path>,
    results: &mut CheckResults,
) {
    const NAME: &str = "base";
    let path = base.path.display();
    let known = [
        ("the adapter", adapter.base.as_deref()),
        ("its run", trained),
    ];
    let known = known.map(|(who, digest)| digest.map(|digest| (who, digest)));
    let known: Vec<_> = known.into_iter().flatten().collect();
    let other = known.iter().find(|(_, digest)| *digest != base.digest);
    if let Some((who, _)) = other {
        let message = format!(
            "`{path}` is not the model that it was trained over: its weights or its config.json differ \
             from the digest in {who}"
        );
        return results.fails(NAME, message);
    }
    if !known.is_empty() {
        return results.holds(NAME, format!("`{path}` is the model it was trained over"));
    }
    // Other tools record at most the path of the model.
    let named = named.filter(|named| named.is_dir());
    match named.map(|named| (named.display(), Base::open(named))) {
        Some((named, Ok(other))) if other.digest != base.digest => {
            let message = format!("`{path}` differs from `{named}`, the model that it names");
            results.fails(NAME, message);
        }
        Some((_, Ok(_))) => results.holds(NAME, format!("`{path}` is the model it names")),
        _ => {
            let message =
                format!("`{path}` has its shape; the model it was trained over is not recorded");
            results.unchecked(NAME, message);
        }
    }
}

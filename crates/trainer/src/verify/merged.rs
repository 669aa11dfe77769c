//! The checks of a merged model.

use std::path::Path;

use loraloom_data::Tokenizer;
use loraloom_model::{
    HostTensor, MergePart, MergeRecord, Merger, PeftAdapter, TensorDtype, parameter_shapes,
};

use super::{
    CheckResults,
    base::Base,
    logits::{TestPrompts, differ, not_computed},
};
use crate::{error::Result, saved_adapter::listed};

pub(super) fn check(path: &Path, model: Option<&Path>, results: &mut CheckResults) -> Result<()> {
    let merged = match Base::open(path) {
        Ok(merged) => merged,
        Err(error) => {
            results.fails_with("files", &error);
            return Ok(());
        }
    };
    if !files(&merged, results)? {
        return Ok(());
    }
    let record = match MergeRecord::of(&merged.checkpoint) {
        Ok(record) => record,
        Err(error) => {
            results.fails_with("record", &error.into());
            return Ok(());
        }
    };
    if record.is_none() {
        let message =
            "the file does not record what it was merged from, since another program wrote it";
        results.unchecked("record", message.to_owned());
    }
    let recorded = record.as_ref().map(|record| Path::new(&record.base_path));
    let Some(base) = Base::find(model, recorded, results)? else {
        return Ok(());
    };
    if !is_same(&merged, &base, record.as_ref(), model.is_some(), results) {
        return Ok(());
    }
    if Tokenizer::load(&base.path).is_ok()
        && let Err(error) = Tokenizer::load(&merged.path)
    {
        results.fails_with("tokenizer", &error.into());
    }
    let parts = record.map(|record| parts(&record, results));
    let parts = parts.flatten().unwrap_or_default();
    let merger = Merger::new(&base.checkpoint, &base.config, &parts)?;
    effect(&merged, &base, results)?;
    if !parts.is_empty() {
        weights(&merged, &merger, results)?;
    }
    let adapters: Vec<_> = (!parts.is_empty())
        .then(|| merger.as_one())
        .into_iter()
        .collect();
    if let Err(error) = logits(&merged, &base, &adapters, results) {
        not_computed(&error, results);
    }
    Ok(())
}

/// Checks that every weight is finite.
fn files(merged: &Base, results: &mut CheckResults) -> Result<bool> {
    let parameters = parameter_shapes(&merged.config);
    let mut bad = Vec::new();
    for (name, shape) in &parameters {
        let values = merged.checkpoint.expect(name, shape)?.to_f32();
        if let Some(at) = values.iter().position(|value| !value.is_finite()) {
            bad.push(format!("`{name}` has {} at element {at}", values[at]));
        }
    }
    if bad.is_empty() {
        let (path, tensors) = (merged.path.display(), parameters.len());
        let architecture = merged.config.architecture;
        results.holds(
            "files",
            format!("{path}: {architecture}, {tensors} tensors"),
        );
    } else {
        results.fails("files", listed(&bad));
    }
    Ok(bad.is_empty())
}

/// Checks that the base is the merged one, as far as that is recorded, and of the same shape.
fn is_same(
    merged: &Base,
    base: &Base,
    record: Option<&MergeRecord>,
    is_given: bool,
    results: &mut CheckResults,
) -> bool {
    const NAME: &str = "base";
    let path = base.path.display();
    if parameter_shapes(&merged.config) != parameter_shapes(&base.config) {
        results.fails(NAME, format!("`{path}` is a model of another shape"));
        return false;
    }
    match record.map(|record| record.base == base.digest) {
        Some(true) => results.holds(NAME, format!("`{path}` is the model it was merged from")),
        None => results.unchecked(
            NAME,
            format!("`{path}` has its shape; its base is not recorded"),
        ),
        Some(false) if is_given => {
            let message = format!(
                "`{path}` is not the model it was merged from: weights or config.json differ from the \
                 recorded digest"
            );
            results.fails(NAME, message);
            return false;
        }
        Some(false) => {
            let message =
                format!("`{path}` has changed since the merge; give the base with `--model`");
            results.unchecked(NAME, message);
            return false;
        }
    }
    true
}

/// The merged adapters, if all are unchanged at their paths.
fn parts(record: &MergeRecord, results: &mut CheckResults) -> Option<Vec<MergePart>> {
    const NAME: &str = "weights";
    let mut parts = Vec::new();
    for part in &record.adapters {
        let directory = Path::new(&part.path);
        let path = directory.display();
        match PeftAdapter::load(directory) {
            Err(error) => {
                results.unchecked(NAME, format!("a merged adapter is missing: {error}"));
                return None;
            }
            Ok(adapter) if adapter.digest() != part.digest => {
                let message = format!("the adapter in `{path}` has changed since the merge");
                results.unchecked(NAME, message);
                return None;
            }
            Ok(adapter) => parts.push(MergePart {
                directory: directory.to_owned(),
                adapter,
                weight: part.weight,
            }),
        }
    }
    Some(parts)
}

/// Checks that some weight differs from the base's, stored in the same type.
fn effect(merged: &Base, base: &Base, results: &mut CheckResults) -> Result<()> {
    let alone = Merger::new(&base.checkpoint, &base.config, &[])?;
    let parameters = parameter_shapes(&merged.config);
    let mut changed = 0;
    for (name, _) in &parameters {
        let tensor = merged.checkpoint.tensor(name)?;
        // A value of the base may not be finite in this type, while the merged one is.
        let is_same = match alone.tensor(name, tensor.dtype) {
            Ok(bytes) => *bytes == *tensor.bytes,
            Err(_) => false,
        };
        changed += usize::from(!is_same);
    }
    let all = parameters.len();
    if changed == 0 {
        results.fails("effect", format!("all {all} tensors equal the base's"));
    } else {
        let message = format!("{changed} of {all} tensors differ from the base's");
        results.holds("effect", message);
    }
    Ok(())
}

/// Checks that every tensor is the sum of base and adapters, to the bit.
fn weights(merged: &Base, merger: &Merger<'_>, results: &mut CheckResults) -> Result<()> {
    let mut problems = Vec::new();
    let mut adapted = 0;
    for (name, _) in parameter_shapes(&merged.config) {
        let tensor = merged.checkpoint.tensor(&name)?;
        adapted += usize::from(merger.adapts(&name));
        let expected = merger.tensor(&name, tensor.dtype)?;
        if *expected != *tensor.bytes {
            let off = difference(&tensor, &expected);
            problems.push(format!("`{name}` is off by up to {off:.2e}"));
        }
    }
    if problems.is_empty() {
        let message = format!("base and adapters added up, to the bit: {adapted} adapted tensors");
        results.holds("weights", message);
    } else {
        let message = format!("not base and adapters added up: {}", listed(&problems));
        results.fails("weights", message);
    }
    Ok(())
}

fn difference(tensor: &HostTensor<'_>, bytes: &[u8]) -> f32 {
    let expected = HostTensor { bytes, ..*tensor }.to_f32();
    let found = tensor.to_f32();
    let pairs = found.iter().zip(&expected);
    pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// Checks that logits differ from the base's and match those of the base with its adapters.
fn logits(
    merged: &Base,
    base: &Base,
    adapters: &[PeftAdapter],
    results: &mut CheckResults,
) -> Result<()> {
    let (prompts, expected) = TestPrompts::base(&base.path, &base.config, adapters)?;
    let found = prompts.model(&merged.path)?;
    differ(&found, &expected[0], results);
    if let Some(adapted) = expected.get(1) {
        let distance = found.distance(adapted);
        let part = tolerance(merged.checkpoint.dtype());
        let message = format!(
            "differ from those of base and adapters by {distance}; {part:e} of the largest is allowed"
        );
        if distance.is_within(part) {
            results.holds("logits", message);
        } else {
            results.fails("logits", message);
        }
    }
    Ok(())
}

/// Fraction of the largest logit by which a merged model may differ from base and adapters in float32, since its
/// weights are rounded to their stored type.
fn tolerance(dtype: Option<TensorDtype>) -> f32 {
    match dtype {
        Some(TensorDtype::Float32) | None => 1e-4,
        Some(TensorDtype::Float16) => 1e-2,
        Some(TensorDtype::Bfloat16) => 5e-2,
    }
}
